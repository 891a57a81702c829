// A client of Node: 200 messages of 160 bytes, one every 20 ms; prints how many came back.
const WebSocket = require("ws");
const socket = new WebSocket(`ws://${process.env.SERVER_ADDRESS}:8080`);
let received = 0;
socket.on("open", () => {
  let sent = 0;
  const timer = setInterval(() => {
    socket.send(Buffer.alloc(160));
    if (++sent === 200) clearInterval(timer);
  }, 20);
});
socket.on("message", () => {
  if (++received === 200) {
    console.log(`${received} messages came back`);
    socket.close();
  }
});

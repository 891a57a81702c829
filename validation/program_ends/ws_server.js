// A WebSocket server of Node that sends every message back.
const { WebSocketServer } = require("ws");
new WebSocketServer({ port: 8080 }).on("connection", (socket) => {
  socket.on("message", (data, binary) => socket.send(data, { binary }));
});

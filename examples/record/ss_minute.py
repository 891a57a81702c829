import socket
import subprocess
import sys
import time

if sys.argv[1] == "server":
    with socket.create_server(("", 5001)) as l:
        c, _ = l.accept()
        while c.recv(65536): pass
else:
    with socket.create_connection(("server", 5001)) as c:
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = time.monotonic()
        for n in range(int(float(sys.argv[2]) / 0.02)):
            time.sleep(max(0, start + 0.02 * n - time.monotonic()))
            c.sendall(b"x" * 174)
            if n % 50 == 27:
                sys.stdout.write(f"{time.time():.9f}\n" + subprocess.run(["ss", "-tin", "dst", "server"], capture_output=True, text=True).stdout)
                sys.stdout.flush()

"""Programs over a link with a trace, in the guest: times, drops, and TCP in both directions."""

import sys

from guest_requirements import require
from tcpdelay.sim.network.link_trace import LinkTrace
from tcpdelay.testbed.backends import VirtualTimeBackend
from tcpdelay.testbed.programs import run_programs
from tcpdelay.testbed.topology import EmulatedPath

GUEST = VirtualTimeBackend(250)
SERVER = """
import socket, time
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind(("", 7000))
listening = socket.create_server(("", 7001))
times = []
for _ in range(12):
    own.recv(2048)
    times.append(time.monotonic())
print(*(round(1e3 * (later - earlier), 3) for earlier, later in zip(times, times[1:])), flush=True)
stream, _ = listening.accept()
while data := stream.recv(65536):
    stream.sendall(data)
"""
CLIENT = """
import socket, time
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(13):
    own.sendto(bytes(1472), ("server", 7000))
time.sleep(0.2)
stream = socket.create_connection(("server", 7001))
begin = time.monotonic()
stream.sendall(bytes(14480))
left = 14480
while left:
    left -= len(stream.recv(65536))
print(round(time.monotonic() - begin, 2), flush=True)
"""


def test_packets_leave_at_the_opportunities_of_the_trace(tmp_path):
    require(GUEST.problems(), "VIRTUAL")
    path = EmulatedPath(rtt=0.020, trace=LinkTrace.of_opportunities([10]), queue_packets=12)
    ends = [[sys.executable, "-c", text] for text in (CLIENT, SERVER)]
    found = run_programs(*ends, path, tmp_path / "run", GUEST, duration=30)
    # The last datagram finds twelve in the queue.
    assert found.output("server").splitlines() == [" ".join(["10.0"] * 11)]
    assert found.packets["bottleneck_dropped"] == 1
    assert found.status == {"client": 0, "server": 0}
    # A round trip, ten segments, one every 10 ms, and in each direction a wait for the first opportunity.
    assert 0.12 <= float(found.output("client")) <= 0.15

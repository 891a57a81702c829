"""The proxy between real sockets: bytes, ends, resets, a slow reader, the control, and its end."""

import asyncio
import gc
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import asdict, replace
from email import message_from_bytes
from functools import partial
from pathlib import Path as File

import pytest

from cli_process import process
from tcpdelay import Path, Stack, http_service
from tcpdelay.__main__ import run as run_program
from tcpdelay.http_service import Address
from tcpdelay.proxy.server import Proxy, changed_path, controlled, reset
from tcpdelay.proxy.stream import Activity
from tcpdelay.sim.engine import LiveConnection

LOCAL = "127.0.0.1"
FAST = Path(rtt=0.020, loss=0.0)
PATIENCE = 30.0
FULL_DISK = File("/dev/full")


async def echo(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    await closed(writer)


async def closed(writer):
    """Close a connection, and wait until its socket is closed."""
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def running(path, serve=echo, log=None):
    """Run a proxy in front of a server; yield it and its port."""
    target = await asyncio.start_server(serve, LOCAL, 0)
    proxy = Proxy(path, Stack.linux(), Activity(log))
    listening = await proxy.listen(LOCAL, 0, target.sockets[0].getsockname())
    try:
        yield proxy, listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await proxy.close()
        target.close()
        # The ends close their sockets meanwhile.
        await asyncio.sleep(0.1)


def in_loop(function):
    """Run a coroutine function, for some time at most."""
    return asyncio.run(asyncio.wait_for(function(), PATIENCE))


async def exchanged(port, data):
    """Send data and the end of the stream; return what comes back."""
    reader, writer = await asyncio.open_connection(LOCAL, port)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    await closed(writer)
    return answer


def test_bytes_pass_unchanged_both_ways_and_each_direction_ends_by_itself():
    data = random.Random(1).randbytes(120_000)

    async def run():
        async with running(Path(rtt=0.020, loss=0.03)) as (proxy, port):
            assert await exchanged(port, data) == data
            assert proxy.connections() == []
            found = proxy.summary()["directions"]
            assert [each["bytes"] for each in found.values()] == [len(data)] * 2
            assert all(each["mean"] >= 0.010 for each in found.values())

    in_loop(run)


def test_two_hundred_connections_at_once():
    async def run():
        async with running(FAST) as (proxy, port):
            messages = [str(number).encode() for number in range(200)]
            assert await asyncio.gather(*(exchanged(port, message) for message in messages)) == messages
            assert proxy.summary()["connections"] == 200

    in_loop(run)


@pytest.mark.parametrize("who", ["client", "target"])
def test_a_reset_reaches_the_other_end(who):
    async def run():
        met = asyncio.get_running_loop().create_future()

        async def serve(reader, writer):
            met.set_result((reader, writer))

        async with running(FAST, serve) as (proxy, port):
            reader, writer = await asyncio.open_connection(LOCAL, port)
            served_reader, served = await met
            reset((writer if who == "client" else served).transport)
            with pytest.raises(ConnectionResetError):
                await (reader if who == "target" else served_reader).read()
            while proxy.connections():
                await asyncio.sleep(0.01)
            for each in (writer, served):
                await closed(each)

    in_loop(run)


def test_a_reader_that_does_not_read_holds_back_the_writer():
    async def run():
        held_back = asyncio.Event()

        async def serve(reader, writer):
            writer.transport.pause_reading()
            await held_back.wait()
            writer.transport.abort()
            await closed(writer)

        async with running(Path(rtt=0.001, loss=0.0), serve) as (proxy, port):
            _, writer = await asyncio.open_connection(LOCAL, port)
            writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            sent, waits = 0, False
            # A machine that stalls may let a write wait before any buffer is full.
            while not (waits and proxy.activity.delays["to target"].pauses):
                writer.write(bytes(1 << 16))
                try:
                    await asyncio.wait_for(writer.drain(), 0.5)
                except TimeoutError:
                    waits = True
                sent += 1 << 16
                # The sockets' buffers and the proxy hold some megabytes, not everything.
                assert sent < 30_000_000
            held_back.set()
            writer.transport.abort()
            await closed(writer)

    in_loop(run)


def test_a_target_that_refuses_is_reported_and_the_client_reset():
    faults = []

    async def run():
        proxy = Proxy(FAST, Stack.linux(), Activity(), on_refusal=faults.append)
        with socket.create_server((LOCAL, 0)) as unused:
            target = unused.getsockname()
        listening = await proxy.listen(LOCAL, 0, target)
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await closed(writer)
        listening.close()
        await proxy.close()

    in_loop(run)
    assert faults == ["connection refused"]


def asked(address, what, content=None):
    """Return status and content of a request to the control."""
    data = None if content is None else content.encode()
    request = urllib.request.Request(f"http://{address[0]}:{address[1]}{what}", data, method=data and "PUT")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_control_changes_the_path_of_connections_that_are_open():
    log = io.StringIO()

    async def run():
        async with running(FAST, log=log) as (proxy, port):
            with controlled(proxy, Address(LOCAL, 0)) as address:
                reader, writer = await asyncio.open_connection(LOCAL, port)
                loop = asyncio.get_running_loop()

                async def round_trip():
                    start = loop.time()
                    writer.write(b"x")
                    assert await reader.readexactly(1) == b"x"
                    return loop.time() - start

                assert await round_trip() >= 0.020
                status, path = await asyncio.to_thread(asked, address, "/path", '{"rtt": "400ms", "loss": 0}')
                assert (status, path["rtt"], path["loss"]) == (200, 0.4, 0)
                assert await round_trip() >= 0.4
                status, (connection,) = await asyncio.to_thread(asked, address, "/connections")
                assert (status, connection["connection"]) == (200, 1)
                status, summary = await asyncio.to_thread(asked, address, "/summary")
                assert summary["directions"]["to target"]["writes"] == 2
                for wrong in ('{"loss": "120%"}', '{"speed": 1}', "[1]", "{", "[" * 9000, '{"bad_loss": 0.5}'):
                    status, answer = await asyncio.to_thread(asked, address, "/path", wrong)
                    assert status == 400
                    assert "\n" not in answer["error"]
                assert (await asyncio.to_thread(asked, address, "/else"))[0] == 404
                assert (await asyncio.to_thread(asked, address, "/connections", "{}"))[0] == 405
                assert proxy.path.rtt == 0.4
                await closed(writer)

    in_loop(run)
    delivered = [event for event in map(json.loads, log.getvalue().splitlines()) if event["event"] == "delivered"]
    # The times that were due: a machine that stalls is late.
    assert [event["delay"] - event["late"] for event in delivered] == pytest.approx([0.01, 0.01, 0.2, 0.2], abs=0.0002)


def test_nothing_of_a_connection_that_has_ended_waits_for_the_garbage_collector():
    async def run():
        async with running(FAST) as (_, port):
            for _ in range(5):
                assert await exchanged(port, b"hello") == b"hello"
            await asyncio.sleep(0.1)
            assert [each for each in gc.get_objects() if isinstance(each, LiveConnection)] == []

    # The stream with which a proxy compiles the kernels.
    gc.collect()
    gc.disable()
    try:
        in_loop(run)
    finally:
        gc.enable()


def test_garbage_is_collected_in_commands_that_stay(monkeypatch):
    found = []
    monkeypatch.setattr("tcpdelay.cli.program.main", lambda: found.append(gc.isenabled()) or 0)
    assert run_program() == 0
    assert found == [True]


def test_connections_may_end_by_a_change_of_the_path():
    async def run():
        async with running(Path(rtt=4.0, loss=0.0)) as (proxy, port):
            ends = [await asyncio.open_connection(LOCAL, port) for _ in range(5)]
            for _, writer in ends:
                writer.write_eof()
            # The target closes when the end has reached it.
            await asyncio.sleep(2.5)
            assert len(proxy.connections()) == 5
            with controlled(proxy, Address(LOCAL, 0)) as address:
                status, path = await asyncio.to_thread(asked, address, "/path", '{"rtt": "1ms"}')
            assert (status, path["rtt"]) == (200, 0.001)
            for reader, writer in ends:
                assert await reader.read() == b""
                await closed(writer)
            assert proxy.connections() == []

    in_loop(run)


@pytest.mark.parametrize(
    "path",
    [
        Path(rtt=0.08, loss=0.01),
        Path(rtt=0.06, loss=0.01, bad_time=0.1, bad_loss=0.5, one_way_delay=0.01, jitter=0.002, ack_loss=0.1),
        Path(rtt=0.06, loss=0.02, loss_burst=2.0, reordering=0.01),
    ],
)
def test_what_the_control_answers_can_be_put_and_null_is_the_default(path):
    assert changed_path(Path(rtt=1.0, loss=0.5, one_way_delay=0.3), asdict(path)) == path
    assert changed_path(replace(path, one_way_delay=0.01), {"one_way_delay": None}).forward_delay == path.rtt / 2
    with pytest.raises(ValueError, match="rtt must be a number"):
        changed_path(path, {"rtt": None})


def answer_to(address, request, patience=PATIENCE):
    """Return status, content type and body of the answer to the bytes of a request, and of nothing else."""
    with socket.create_connection(address[:2], patience) as client, suppress(ConnectionResetError):
        client.sendall(request)
        with client.makefile("rb") as stream:
            status = int(stream.readline().split()[1])
            headers = message_from_bytes(b"".join(iter(stream.readline, b"\r\n")))
            return status, headers["Content-Type"], stream.read()
    return None


def controlled_answer(*request):
    """Return what the control of a proxy answers to a request."""

    async def run():
        async with running(FAST) as (proxy, _):
            with controlled(proxy, Address(LOCAL, 0)) as address:
                return await asyncio.to_thread(
                    answer_to, address, b"\r\n".join((*request, b"Connection: close\r\n\r\n"))
                )

    return asyncio.run(asyncio.wait_for(run(), PATIENCE))


@pytest.mark.parametrize(
    ("request_line", "headers", "status", "error"),
    [
        (b"GET /path", [b"Host: evil.example"], 403, "the host 'evil.example' is another one"),
        (b"PUT /path", [b"Host: localhost", b"Origin: http://evil.example"], 403, "no answer to requests of"),
        (b"GET /path", [b"Host: localhost", b"Origin: http://[localhost"], 403, "no answer to requests of"),
        (b"GET /none", [b"Host: localhost"], 404, "there are only the pages /path, /connections, /summary"),
        (b"GET /none", [b"Host: evil.example"], 403, "the host 'evil.example' is another one"),
        (b"DELETE /path", [b"Host: localhost"], 405, "Method Not Allowed"),
        (b"BREW /path", [b"Host: localhost"], 405, "Method Not Allowed"),
        (b"PUT /path", [b"Host: localhost"], 400, "Expecting value"),
    ],
)
def test_errors_of_the_control_are_json(request_line, headers, status, error):
    found, content_type, body = controlled_answer(request_line + b" HTTP/1.1", *headers)
    assert (found, content_type) == (status, "application/json")
    assert error in json.loads(body)["error"]


def test_the_control_answers_to_its_own_names_and_origin():
    for host in (b"127.0.0.1:9002", b"[::1]:9002", b"LocalHost:1", b"198.51.100.7"):
        assert controlled_answer(b"GET /path HTTP/1.1", b"Host: " + host)[0] == 200
    own = b"Host: localhost:80", b"Origin: http://localhost:80"
    assert controlled_answer(b"GET /path HTTP/1.1", *own)[0] == 200
    status, _, body = controlled_answer(b"HEAD /path HTTP/1.1", b"Host: localhost")
    assert (status, body) == (200, b"")


@pytest.mark.parametrize("length", [b"-1", b"9999999999", b"x"])
def test_a_body_without_an_honest_length_is_not_read(length):
    found = controlled_answer(b"PUT /path HTTP/1.1", b"Host: localhost", b"Content-Length: " + length)
    assert found[0] == 400


@pytest.mark.parametrize(
    "begun", [b"", b"GET /pa", b"PUT /path HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"]
)
def test_a_slow_client_of_the_control_is_closed(monkeypatch, begun):
    monkeypatch.setattr(http_service, "PATIENCE", 0.3)

    async def run():
        async with running(FAST) as (proxy, _):
            with controlled(proxy, Address(LOCAL, 0)) as address:
                reader, writer = await asyncio.open_connection(*address)
                writer.write(begun)
                with suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), 5) == b""
                await closed(writer)

    in_loop(run)


def test_clients_of_the_control_that_reset_print_nothing(capfd, caplog):
    async def run():
        async with running(FAST) as (proxy, _):
            with controlled(proxy, Address(LOCAL, 0)) as address:
                requests = (b"GET /summary HTTP/1.1\r\nHost: localhost\r\n\r\n", b"PUT /path HTTP/1.1\r\nContent-Len")
                for number in range(40):
                    _, writer = await asyncio.open_connection(*address)
                    writer.write(requests[number % 2])
                    await asyncio.sleep(0)
                    reset(writer.transport)
                # More than may be open at a time.
                many = [await asyncio.open_connection(*address) for _ in range(3 * http_service.MOST_CONNECTIONS)]
                for _, writer in many:
                    await closed(writer)
                await asyncio.sleep(0.2)
                assert (await asyncio.to_thread(asked, address, "/path"))[0] == 200

    in_loop(run)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


@pytest.mark.parametrize("form", [b"multipart/form-data", b"multipart/form-data; boundary=x"])
def test_a_body_that_cannot_be_read_prints_nothing(caplog, form):
    headers = b"Host: localhost", b"Content-Type: " + form, b"Content-Length: 1", b"Connection: close\r\n\r\n?"
    assert controlled_answer(b"PUT /path HTTP/1.1", *headers)[0] == 400
    assert caplog.records == []


@pytest.mark.skipif(not FULL_DISK.exists(), reason="needs Linux")
def test_a_full_disk_ends_the_log_but_not_the_proxy():
    with socket.create_server((LOCAL, 0)) as target:
        arguments = [*GIVEN, "--to", f"{LOCAL}:{target.getsockname()[1]}", "--log", str(FULL_DISK)]
        with process("proxy", *arguments, stdout=subprocess.PIPE) as started:
            port = int(started.stderr.readline().split(";")[0].rpartition(":")[2])
            for _ in range(2):
                with socket.create_connection((LOCAL, port), PATIENCE) as client, target.accept()[0] as server:
                    client.sendall(b"hello")
                    assert server.recv(5) == b"hello"
            started.send_signal(signal.SIGINT)
            printed, errors = started.communicate(timeout=PATIENCE)
    assert errors == "warning: --log: No space left on device: /dev/full ends here\n"
    assert (started.returncode, printed.splitlines()[0]) == (1, "2 connections")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_out_of_descriptors_the_proxy_turns_clients_away_and_goes_on():
    import resource

    with socket.create_server((LOCAL, 0), backlog=200) as target:
        arguments = [*GIVEN, "--to", f"{LOCAL}:{target.getsockname()[1]}", "--control", f"{LOCAL}:0"]
        limited = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (64, 64))
        with process("proxy", *arguments, stdout=subprocess.PIPE, preexec_fn=limited) as started:
            control = started.stderr.readline().strip().rpartition("/")[2].split(":")
            port = int(started.stderr.readline().split(";")[0].rpartition(":")[2])
            with ExitStack() as opened:
                clients = [opened.enter_context(socket.create_connection((LOCAL, port), PATIENCE)) for _ in range(150)]
                # 64 open files less those that are reserved are 16 ends.
                kept = [opened.enter_context(target.accept()[0]) for _ in range(8)]
                for each in kept:
                    each.sendall(b"hello")
                answers = []
                for client in clients:
                    client.settimeout(PATIENCE)
                    with suppress(ConnectionResetError):
                        answers.append(client.recv(5))
                assert answers == [b"hello"] * 8
                assert len(asked(control, "/connections")[1]) == 8
            started.send_signal(signal.SIGINT)
            printed, errors = started.communicate(timeout=PATIENCE)
    assert all("turned away: " in line and "the limit of open files" in line for line in errors.splitlines())
    assert 1 <= errors.count("\n") < 10
    assert (started.returncode, printed.splitlines()[0]) == (0, "150 connections, of which 142 turned away")


def test_a_reader_that_has_reset_gets_no_end_of_the_stream():
    async def run():
        async with running(Path(rtt=0.4, loss=0.0)) as (proxy, port):
            _, writer = await asyncio.open_connection(LOCAL, port)
            writer.write_eof()
            await asyncio.sleep(0.1)
            # Behind the end of its bytes, the proxy reads nothing more of the client.
            reset(writer.transport)
            while proxy.connections():
                await asyncio.sleep(0.01)

    in_loop(run)


GIVEN = ["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "--rtt", "80ms", "--loss", "1%"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--listen", "9000"], "--listen: must be HOST:PORT, such as 127.0.0.1:9000 or [::1]:9000, got '9000'"),
        (["--to", "host:99999"], "--to: must be HOST:PORT, such as 127.0.0.1:9000 or [::1]:9000, got 'host:99999'"),
        (
            ["--listen", f"{LOCAL}:{'9' * 5000}"],
            "--listen: must be HOST:PORT, such as 127.0.0.1:9000 or [::1]:9000, got '127.0.0.1:9",
        ),
        (["--to", "127.0.0.1:0"], "--to: the port of the server must be 1 or more, got 0"),
        (["--to", "a..b:80"], "--to: a..b:80: no host can have this name"),
        (["--listen", "a..b:80"], "--listen: a..b:80: no host can have this name"),
        (["--to", "no.such.host.invalid:80"], "--to: no.such.host.invalid:80: "),
        (["--loss", "120%"], "--loss: '120%' is not below 100%"),
        (["--seed", "-1"], "--seed: must be 0 or more, got -1"),
        (["--send-buffer", "0B"], "--send-buffer: "),
        (["--log", "/no/such/folder/log"], "--log: "),
    ],
)
def test_bad_input_is_answered_by_one_line(refused, arguments, complaint):
    assert refused("proxy", *GIVEN, *arguments).startswith(f"tcpdelay proxy: {complaint}")


@pytest.mark.parametrize(
    ("listen", "to"), [(LOCAL, "localhost"), ("0.0.0.0", LOCAL), (LOCAL, "0.0.0.0"), ("[::]", "[::1]")]
)
def test_a_server_that_is_the_proxy_itself_is_refused(refused, listen, to):
    with socket.create_server((LOCAL, 0)) as unused:
        port = unused.getsockname()[1]
    assert (
        refused("proxy", *GIVEN, "--listen", f"{listen}:{port}", "--to", f"{to}:{port}")
        == f"tcpdelay proxy: --to: {to}:{port} is the proxy itself, at --listen\n"
    )


@pytest.mark.parametrize("option", ["--listen", "--control"])
def test_a_port_that_is_taken_is_one_line(run, option):
    with socket.create_server((LOCAL, 0)) as taken:
        address = f"{LOCAL}:{taken.getsockname()[1]}"
        status, printed, errors = run("proxy", *GIVEN, option, address)
    assert (status, printed, errors) == (2, "", f"tcpdelay proxy: {option}: {address}: address already in use\n")


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_it_ends(tmp_path, ending):
    log = tmp_path / "log.jsonl"
    with socket.create_server((LOCAL, 0)) as target:
        arguments = [*GIVEN, "--to", f"{LOCAL}:{target.getsockname()[1]}", "--log", str(log)]
        with process("proxy", *arguments, start_new_session=True) as started:
            port = int(started.stderr.readline().split(";")[0].rpartition(":")[2])
            with socket.create_connection((LOCAL, port)) as client, target.accept()[0] as server:
                for end in (client, server):
                    end.settimeout(PATIENCE)
                client.sendall(b"hello")
                assert server.recv(5) == b"hello"
                while "delivered" not in log.read_text():
                    time.sleep(0.01)
                os.kill(started.pid, ending)
                for end in (client, server):
                    with suppress(ConnectionResetError):
                        assert end.recv(1) == b""
            assert started.wait(PATIENCE) == (0 if ending == signal.SIGTERM else -ending)
        # No process of its session goes on, and the port is free.
        with pytest.raises(ProcessLookupError):
            os.killpg(started.pid, 0)
        with socket.create_server((LOCAL, port)):
            pass
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event["event"] for event in events][:2] == ["opened", "delivered"]
    assert events[1]["delay"] >= 0.040
    assert (events[-1]["event"] == "summary") is (ending == signal.SIGTERM)
    assert {file.name for file in tmp_path.iterdir()} == {"log.jsonl"}

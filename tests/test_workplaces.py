import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tcpdelay.testbed import workplaces
from tcpdelay.testbed.workplaces import guests_of, parent_of_workplaces, remove_leftovers, workplace

pytestmark = pytest.mark.usefixtures("temporary_directory")


def test_a_workplace_is_removed_whatever_happens():
    places = []

    def fail():
        with workplace() as place:
            places.append(place)
            (place / "session").mkdir()
            (place / "session" / "file").touch()
            raise RuntimeError("oops")

    with pytest.raises(RuntimeError, match="oops"):
        fail()
    assert not places[0].exists()


def test_a_workplace_in_use_is_left_alone():
    with workplace() as place:
        assert remove_leftovers() == []
        with workplace() as other:
            assert other != place
        assert place.is_dir()


HOLDER = """
import subprocess, sys, time
from tcpdelay.testbed.workplaces import workplace
with workplace() as place:
    session = place / "session"
    session.mkdir()
    guest = subprocess.Popen(["sleep", "300"], cwd=session, start_new_session=True)
    print(place, guest.pid, flush=True)
    time.sleep(300)
"""


def ended(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def kill_keeper(place):
    """Kill the process that waits for the end of a run."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(place).encode() in command:
                os.kill(int(entry.name), signal.SIGKILL)


@pytest.mark.parametrize("linked", [False, True], ids=["plain", "linked"])
@pytest.mark.parametrize("keeper", ["alive", "killed"])
def test_the_workplace_and_the_guests_of_a_killed_run_are_removed_at_once_or_by_the_next(
    tmp_path, temporary_directory, monkeypatch, linked, keeper
):
    if linked:
        # A directory for temporary files may be reached by a symbolic link.
        (tmp_path / "link").symlink_to(temporary_directory)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "link"))
        monkeypatch.setenv("TMPDIR", str(tmp_path / "link"))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    guest = None
    try:
        place, guest = holder.stdout.readline().split()
        guest = int(guest)
        assert parent_of_workplaces() == Path(place).parent
        assert guests_of(Path(place)) == [guest]
        assert remove_leftovers() == []
        if keeper == "killed":
            kill_keeper(Path(place))
        holder.kill()
        holder.wait()
        if keeper == "killed":
            assert Path(place).is_dir()
            assert not ended(guest)
            with workplace():
                pass
        deadline = time.monotonic() + 10
        while not ended(guest) or Path(place).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
        if guest is not None and not ended(guest):
            os.kill(guest, signal.SIGKILL)


def test_guests_are_found_by_where_they_work(tmp_path):
    inside, outside = tmp_path / "run" / "session", tmp_path / "run-2"
    inside.mkdir(parents=True)
    outside.mkdir()
    guests = [subprocess.Popen(["sleep", "60"], cwd=place) for place in (inside, outside)]
    try:
        assert guests_of(tmp_path / "run") == [guests[0].pid]
        assert sorted(guests_of(tmp_path)) == sorted(guest.pid for guest in guests)
        # A directory that is gone is remembered by the kernel.
        inside.rmdir()
        assert guests_of(inside) == [guests[0].pid]
        assert guests_of(tmp_path / "run" / "other") == []
    finally:
        for guest in guests:
            guest.kill()
            guest.wait()


def test_a_workplace_of_somebody_else_is_not_used(temporary_directory, tmp_path, monkeypatch):
    parent_of_workplaces().symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="belongs to another user; set TMPDIR"), workplace():
        pass
    parent_of_workplaces().unlink()
    another = os.getuid() + 1
    (temporary_directory / f"tcpdelay-testbed-{another}").mkdir()
    monkeypatch.setattr(workplaces.os, "getuid", lambda: another)
    with pytest.raises(PermissionError, match="belongs to another user"), workplace():
        pass

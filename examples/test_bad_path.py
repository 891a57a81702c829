"""A test over a bad path, with the fixture of tcpdelay: `pytest examples/test_bad_path.py`.

The server and the client are programs of Python's library here. Yours take their place.
"""

import sys

import pytest

SERVER = [sys.executable, "-m", "http.server", "80"]
CLIENT = [
    sys.executable,
    "-c",
    "import urllib.request as u; print(len(u.urlopen('http://server/pyproject.toml').read()))",
]


@pytest.mark.tcpdelay(rtt=0.2, loss=0.05, seed=3)
def test_the_whole_file_arrives_in_time(tcpdelay_path, pytestconfig):
    """A page over 200 ms and 5 % loss."""
    run = tcpdelay_path.run(server=SERVER, client=CLIENT, working_directory=pytestconfig.rootpath)
    assert run.status["client"] == 0
    assert int(run.output("client")) == (pytestconfig.rootpath / "pyproject.toml").stat().st_size
    assert 0.4 < run.ended["client"] < 5  # time in the guest [s]: two round trips at least

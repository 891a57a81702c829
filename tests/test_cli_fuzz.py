"""Whatever is typed: an answer, or one line that says what is wrong."""

import contextlib
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tcpdelay.chain import delay_model as model
from tcpdelay.cli.options import OPTIONS
from tcpdelay.cli.program import main

EXAMPLES = Path(__file__).parents[1] / "examples"
PATH = ["--rtt", "100ms", "--loss", "2%"]
VOIP = [*PATH, "--app", "voip"]
NUMBERS = st.sampled_from(
    ["0", "-0", "-1", "1", "2", "100", "0.02", "1e-9", "1e9", "1e308", "1e999", "nan", "inf", "-inf", "0x10", "1,5"]
) | st.sampled_from(["1_000", "\u0663", "½", "", "9" * 70, "+5", "1..2", ".", "1e", "--"])
UNITS = st.sampled_from(
    ["", "%", "%%", " %", "s", "ms", "us", "µs", "MS", "min", "m", "h", "B", "kB", "GB", "bit", "bit/s", "kbit/s"]
) | st.sampled_from(["Gbit/s", "bps", " ", "\t", "\u017f", "\u202e", "[red]", "\x1b[0m", "\n", "\U0001f4a5"])
WORDS = st.sampled_from(["voip", "game", "random", "bytes", "sack", "grow", "json", "csv", "a b", "./", "no/such/file"])
VALUES = st.builds("{}{}".format, NUMBERS, UNITS) | WORDS | st.text(max_size=12)
VALUED = [f"--{name.replace('_', '-')}" for name in OPTIONS]
GIVEN = st.tuples(st.sampled_from(VALUED), VALUES)
BASE = st.sampled_from([[], PATH, VOIP, [*PATH, "--bitrate", "64kbit/s"], ["--ping", str(EXAMPLES / "ping.txt")]])
EXTRA = (
    st.just([])
    | VALUES.map(lambda value: [value])
    | st.sampled_from(
        [
            ["--limited-transmit"],
            ["--format", "csv"],
            ["--chart", "x.gif"],
            ["--chart", ""],
            ["--nonsense"],
            ["--"],
            ["-"],
        ]
    )
)


@settings(max_examples=500)
@given(base=BASE, options=st.lists(GIVEN, max_size=3), extra=EXTRA)
def test_whatever_is_typed_gives_an_answer_or_one_line(base, options, extra):
    arguments = ["predict", *base, *(word for option in options for word in option), *extra]
    printed, errors = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patched,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(errors),
    ):
        # Larger chains are refused, so that no input takes long.
        patched.setattr(model, "LARGEST_MEMORY", 2**22)
        status = main(arguments)
    complaints = [line for line in errors.getvalue().split("\n")[:-1] if not line.startswith("warning: ")]
    if status == 0:
        assert not complaints
        assert printed.getvalue()
    else:
        assert (status, printed.getvalue(), len(complaints)) == (2, "", 1)
        assert complaints[0].startswith("tcpdelay predict: ")
        assert complaints[0].isprintable()

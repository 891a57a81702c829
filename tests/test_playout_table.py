"""`tcpdelay playout`: the table of playout buffers, its formats, and bad input."""

import csv
import io
import json
import math

import pytest

import tcpdelay as td
from tcpdelay.report.answers import TitledTable, notes, to_markdown, to_page
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.study.playout import PlayoutCell, playout_table

SMALL = ("playout", "--app", "voip", "--rtt", "200ms,100ms", "--loss", "0.1%,2%", "--method", "chain")


def test_each_buffer_is_the_predicted_delay_less_the_one_way_delay(run):
    controls = ("--congestion-control", "cubic", "--congestion-control", "reno")
    status, printed, errors = run(*SMALL, *controls, "--format", "csv")
    assert (status, errors) == (0, "")
    rows = list(csv.DictReader(io.StringIO(printed)))
    cells = [(row["stack"], float(row["rtt_s"]), float(row["loss_fraction"])) for row in rows]
    assert cells == [(cc, rtt, loss) for cc in ("cubic", "reno") for rtt in (0.1, 0.2) for loss in (0.001, 0.02)]
    for row, (control, rtt, loss) in zip(rows, cells, strict=True):
        stack = td.Stack.linux(congestion_control=control)
        delays = td.predict_delay(td.Flow(174, 0.020), td.Path(rtt, loss), stack, method="chain")
        delay = delays.quantile(0.95)
        assert float(row["delay_s"]) == pytest.approx(delay, rel=1e-5)
        assert float(row["buffer_s"]) == pytest.approx(delay - rtt / 2, abs=1e-6)
        assert float(row["buffer_rtts"]) == pytest.approx((delay - rtt / 2) / rtt, abs=1e-5)
        assert float(row["buffer_error_s"]) == pytest.approx(delays.expected_error.p90 * delay, rel=1e-5)
        assert row["verdict"] == ("fails" if (rtt, loss) == (0.2, 0.02) else "works")


def test_every_format_has_the_cells_and_the_pages_have_the_command(run, tmp_path):
    for suffix in ("html", "md", "txt", "csv", "json"):
        assert run(*SMALL, "-o", f"wall.{suffix}") == (0, "", "")
    pages = {suffix: (tmp_path / f"wall.{suffix}").read_text() for suffix in ("html", "md", "txt", "json")}
    for suffix in ("html", "md", "txt"):
        for text in ("0.90 RTT", "RTT ✗", "voip over cubic"):
            assert text in pages[suffix]
    for suffix in ("html", "md"):
        assert f"tcpdelay {' '.join(SMALL)} -o wall.{suffix}" in pages[suffix]
    assert pages["html"].count('<td class="works">') == 3
    assert pages["html"].count('<td class="fails">') == 1
    assert [record["rtt_s"] for record in json.loads(pages["json"])] == [0.1, 0.1, 0.2, 0.2]


def test_a_path_that_is_not_validated_and_a_flow_that_is_not_carried_are_marked():
    call = Scenario(td.Flow(1448, 0.005), td.Path(0.5, 0.001), target=td.Target(0.2))
    table = playout_table(call, [0.1, 0.5], [0.001, 0.1], method="chain")
    outside, last = [[bool(cell.outside) for cell in row] for row in table.rows], table.rows[1][1]
    assert outside == [[False, False], [True, True]]
    assert (last.verdict, last.buffer) == ("not carried", math.inf)
    titled = [TitledTable(None, "cubic", table)]
    assert "not carried*" in to_page(titled, "tcpdelay playout")
    assert "not carried\\*" in to_markdown(titled, "tcpdelay playout")
    assert any("round-trip times of 5 ms to 400 ms" in note for note in notes(titled))


def test_a_cell_without_an_answer_says_why():
    call = Scenario(td.Flow(174, 0.020), td.Path(0.1, 0.001, reordering=0.01), target=td.Target(0.2))
    table = playout_table(call, [0.1], [0.02], method="chain")
    cell = table.rows[0][0]
    assert (cell.verdict, cell.method) == ("no answer", "")
    assert math.isnan(cell.buffer)
    assert any(cell.refusal in note for note in notes([TitledTable("voip", "cubic", table)]))


def test_the_one_way_delay_of_the_path_is_taken_off():
    assert PlayoutCell(td.Path(0.1, 0.02, one_way_delay=0.03), 0.14, 0.1, "works", "chain").buffer == pytest.approx(
        0.11
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rtt", "20ms,40"), "--rtt: '40' has no unit"),
        (("--rtt", "100s"), "--rtt: must lie between 1e-06 and 60 s, got 100"),
        (("--rtt", "20ms,100s"), "--rtt: must lie between 1e-06 and 60 s, got 100"),
        (("--loss", "1%,200%"), "--loss: "),
        (("--loss", ",".join(f"{i / 10}%" for i in range(51))), "--loss: must have 1 to 50 values"),
        (("--congestion-control", "vegas"), "--congestion-control: must be one of cubic, reno, bbr, got 'vegas'"),
        (("--congestion-control", "reno", "--stack", "newreno_2008"), "--congestion-control: goes with --stack linux"),
        (("-o", "wall.pdf"), "--output: 'wall.pdf' does not end in one of "),
    ],
)
def test_a_wrong_option_is_named_in_one_line(run, arguments, message):
    status, printed, errors = run("playout", "--app", "voip", "--method", "chain", *arguments)
    assert (status, printed) == (2, "")
    assert errors.startswith("tcpdelay playout: ")
    assert message.replace("'", "") in errors.replace("'", "")
    assert errors.count("\n") == 1

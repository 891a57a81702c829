"""Contenders side by side: the same packets and losses for each, and figures that can be checked by hand."""

import csv
import io
import json
import math

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import binom

import tcpdelay as td
from tcpdelay.quality.voice import voice_mos
from tcpdelay.report.transports import (
    comparison_table,
    conclusion,
    tcp_beside_quic,
    to_html,
    to_json,
    to_markdown,
    to_text,
)
from tcpdelay.scenario.scenario import application
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate
from tcpdelay.study.transports import UNLIMITED, default_duration

VOICE = td.Flow(174, 0.020)
QUIC = ("quic-stream", "quic-streams", "quic-datagram")
PATH = td.Path(rtt=0.100, loss=0.02)
SHARED = td.SharedPath(access_delay=0.05)


@pytest.fixture(scope="module")
def alone():
    """Return a comparison on a path of its own."""
    return td.compare(VOICE, PATH, duration=2000, seed=3)


@pytest.fixture(scope="module")
def beside_bulk():
    """Return a comparison beside a long transfer, on a link that is too slow for the flow with most contenders."""
    return td.compare(
        td.Flow(1448, 0.010),
        td.Path(rtt=0.100, loss=0),
        link=td.Bottleneck(rate=1.5e6, capacity=30),
        others=[Bulk(path=SHARED, stack=td.Stack.linux())],
        duration=60,
    )


def rows_of(comparison):
    return {row.contender.name: row for row in comparison.rows}


def test_every_packet_of_every_contender_is_counted_once(alone, beside_bulk):
    for comparison in (alone, beside_bulk):
        for row in comparison.rows:
            result = row.result
            assert result.offered == result.delivered + result.lost + result.unfinished, row.contender.name
    assert {row.result.offered for row in alone.rows} == {95_000}


def test_datagrams_are_as_late_as_the_path_and_lose_what_it_loses(alone):
    udp = rows_of(alone)["udp"].result
    assert udp.delays.quantile(1.0) == pytest.approx(0.050, abs=2e-6)
    # Three standard deviations of a binomial share.
    assert 1 - udp.delivered_fraction == pytest.approx(0.02, abs=3 * math.sqrt(0.02 * 0.98 / 95_000))


def test_a_message_is_lost_if_any_of_its_datagrams_is():
    frame, path = td.Flow(14_000, 0.100), td.Path(rtt=0.080, loss=0.005)
    found = td.compare(frame, path, duration=2000, ways=["udp"])
    table = {row["name"]: row for row in comparison_table(found).rows}
    # 14 000 bytes are 10 datagrams of up to 1472 bytes; three standard deviations of a binomial share.
    lost = 1 - 0.995**10
    assert table["udp"]["lost_fraction"] == pytest.approx(lost, abs=3 * math.sqrt(lost * (1 - lost) / 19_000))
    assert table["udp"]["late_fraction"] == pytest.approx(table["udp"]["lost_fraction"])


def test_the_plain_flow_is_what_the_simulator_of_one_flow_says(alone):
    simulated = td.simulate(VOICE, PATH, td.Stack.linux(), packets=200_000, seed=1)
    plain = rows_of(alone)["tcp"]
    assert plain.result.mean_interval.value == pytest.approx(simulated.mean, rel=0.03)
    assert plain.result.p95_interval.value == pytest.approx(simulated.quantile(0.95), rel=0.03)
    assert plain.predicted.quantile(0.95) == pytest.approx(simulated.quantile(0.95), rel=0.03)


def test_one_seed_gives_one_result():
    first, again, other = (to_json(td.compare(VOICE, PATH, duration=200, seed=seed)) for seed in (3, 3, 4))
    assert first == again != other


def test_what_the_flow_takes_is_what_the_others_lack(beside_bulk):
    for row in beside_bulk.rows:
        assert beside_bulk.taken(row) == beside_bulk.undisturbed - row.others
        assert row.others + row.result.throughput < 1.5e6
        assert row.predicted is None
    # Nothing else is on the link.
    assert beside_bulk.undisturbed == pytest.approx(1.5e6 * 1448 / 1500, rel=0.02)
    taken = {name: beside_bulk.taken(row) for name, row in rows_of(beside_bulk).items()}
    assert taken["udp"] > taken["tcp"] > 0


def test_a_backlog_that_grows_never_settles(beside_bulk):
    table = {row["name"]: row for row in comparison_table(beside_bulk).rows}
    assert not table["tcp"]["sustainable"]
    assert table["tcp"]["p95"] == table["tcp"]["worst"] == math.inf
    assert table["tcp"]["late_fraction"] == 1
    assert not table["tcp"]["meets_target"]
    assert table["udp"]["sustainable"]
    assert math.isfinite(table["udp"]["p95"])


def test_json_has_every_contender_and_no_number_that_json_does_not_know(beside_bulk):
    record = json.loads(to_json(beside_bulk), parse_constant=pytest.fail)
    rows = {row["name"]: row for row in record["contenders"]}
    assert rows.keys() == rows_of(beside_bulk).keys()
    assert rows["tcp"]["p95"] is None
    assert record["scenario"]["link"] == 1.5e6


def test_the_page_needs_nothing_from_elsewhere_and_names_every_contender(alone):
    page = to_html(alone)
    assert "http" not in page
    for row in alone.rows:
        assert f'class="name">{row.contender.name}</th>' in page
        assert f"<dt>{row.contender.name}</dt>" in page
    assert page.count("<svg") == 1
    assert 'role="img"' in page


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"path": td.Path(rtt=0.1, loss=0.02, jitter=0.01)}, "jitter must be 0 in a comparison, got 0.01"),
        ({"path": td.Path(rtt=0.1, loss=0.02, loss_pattern="correlated")}, "loss_pattern must be 'random'"),
        ({"others": [ConstantRate(flow=VOICE, path=SHARED, stack=td.Udp())]}, "others need a link"),
        ({"stack": td.Stack.newreno_2008()}, "stack must be one of Stack.linux"),
        ({"stack": td.Stack.quic()}, "stack must be one of Stack.linux"),
        ({"stack": "linus"}, "stack must come from one of the profiles"),
        ({"stack": td.Udp()}, "stack must come from one of the profiles"),
        ({"duration": 0}, "duration must lie between"),
        ({"seed": -1}, "seed must be a whole number, 0 or more, got -1"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(arguments, complaint):
    with pytest.raises(ValueError, match=complaint) as refused:
        td.compare(**{"flow": VOICE, "path": PATH} | arguments)
    assert "\n" not in str(refused.value)


def test_contenders_are_ranked_by_lost_and_late_packets(alone, beside_bulk):
    for comparison in (alone, beside_bulk):
        ranked = [(rank, row) for rank, row in comparison.ranked() if rank is not None]
        assert {row.contender.name for _, row in comparison.ranked()[len(ranked) :]} == {
            row.contender.name for row in comparison.rows if comparison.unsettled(row)
        }
        ranks = [rank for rank, _ in ranked]
        shares = [float(f"{comparison.missed(row):.3g}") for _, row in ranked]
        assert shares == sorted(shares)
        assert {row.contender.name for _, row in comparison.ranked()} == rows_of(comparison).keys()
        assert [row["rank"] for row in comparison_table(comparison).rows if row["settled"]] == ranks
    assert not any(alone.unsettled(row) for row in alone.rows)


def test_contenders_within_the_statistical_error_have_one_rank(alone):
    ranked = alone.ranked()
    assert len({rank for rank, _ in ranked}) < len(ranked)
    for place, (rank, row) in enumerate(ranked):
        _, best = ranked[rank - 1]
        difference = alone.missed(row) - alone.missed(best)
        allowed = math.hypot(alone.missed_error(row), alone.missed_error(best))
        # A contender has the rank of the best of its rank, or its own place.
        assert difference <= max(allowed, 5e-4 * alone.missed(row))
        if rank == place + 1 > 1:
            before = ranked[ranked[place - 1][0] - 1][1]
            assert alone.missed(row) - alone.missed(before) > math.hypot(
                alone.missed_error(row), alone.missed_error(before)
            )


def test_the_error_of_independent_losses_is_that_of_a_binomial_share(alone):
    udp = next(row for row in comparison_table(alone).rows if row["name"] == "udp")
    assert udp["late_error"] == pytest.approx(1.96 * math.sqrt(0.02 * 0.98 / 95_000), rel=0.3)


def test_every_format_has_the_statistical_error(alone):
    row = comparison_table(alone).rows[0]
    assert alone.missed_error(alone.ranked()[0][1]) == row["late_error"] > 0
    assert json.loads(to_json(alone))["contenders"][0]["late_error"] == pytest.approx(row["late_error"], rel=1e-4)
    assert "late_fraction,late_error" in comparison_table(alone).to_csv()
    for text in (to_text(alone, 140), to_markdown(alone), to_html(alone)):
        assert f"{100 * row['late_error']:.3g} %" in text.replace("\N{NO-BREAK SPACE}", " ")


def test_bbr_is_a_contender_beside_loss_based_tcp(alone):
    bbr = rows_of(alone)["tcp-bbr"]
    simulated = td.simulate(VOICE, PATH, td.Stack.linux("bbr"), packets=200_000, seed=1)
    assert bbr.result.p95_interval.value == pytest.approx(simulated.quantile(0.95), rel=0.05)
    only = td.compare(VOICE, PATH, td.Stack.linux("bbr"), duration=20)
    assert [row.contender.name for row in only.rows].count("tcp-bbr") == 0


def test_p95_is_compared_with_that_of_tcp(alone):
    rows = {row["name"]: row for row in comparison_table(alone).rows}
    tcp = rows["tcp"]
    for row in rows.values():
        assert row["p95_difference_to_tcp"] == pytest.approx(row["p95"] - tcp["p95"])
        assert row["p95_ratio_to_tcp"] == pytest.approx(row["p95"] / tcp["p95"])
        assert row["p95_difference_to_tcp_low"] <= row["p95_difference_to_tcp"] <= row["p95_difference_to_tcp_high"]
        # No narrower than the interval of TCP alone.
        width = row["p95_difference_to_tcp_high"] - row["p95_difference_to_tcp_low"]
        assert width >= tcp["p95_high"] - tcp["p95_low"] - 1e-12
    # Datagrams are as late as the path, at every share.
    assert rows["udp"]["p95_difference_to_tcp"] == pytest.approx(0.050 - tcp["p95"], abs=2e-6)


def test_words_say_what_tcp_costs_over_quic_and_the_reverse(alone):
    rows = {row["name"]: row for row in comparison_table(alone).rows}
    beside = tcp_beside_quic(alone)
    assert len(beside) == 4
    more = -1e3 * rows["udp"]["p95_difference_to_tcp"]
    ratio = 1 / rows["udp"]["p95_ratio_to_tcp"]
    said = beside[-1]
    assert said.startswith(f"At p95, tcp takes {more:.3g} ms")
    assert f" more than udp: {ratio:.2f}" in said
    assert json.loads(to_json(alone))["tcp_beside_quic"] == beside
    for written in (to_text(alone, 400), to_markdown(alone), to_html(alone)):
        assert all(sentence in written.replace("\N{NO-BREAK SPACE}", " ") for sentence in beside)
    # A frame of 10 segments: TCP's first window holds it, and QUIC's pacing spreads it.
    frames = td.compare(td.Flow(14_000, 0.100), td.Path(rtt=0.080, loss=0), duration=60, ways=["quic-stream"])
    assert tcp_beside_quic(frames)[0].startswith("At p95, quic-stream takes ")


def test_what_never_settles_has_no_ratio(beside_bulk):
    row = comparison_table(beside_bulk).rows[0]
    assert math.isnan(row["p95_difference_to_tcp"])
    assert math.isnan(row["p95_ratio_to_tcp_high"])
    assert tcp_beside_quic(beside_bulk) == []


def test_only_the_named_ways_are_simulated(alone):
    found = td.compare(VOICE, PATH, duration=2000, seed=3, ways={"udp", "quic-streams"})
    assert [row.contender.name for row in found.rows] == ["tcp", "quic-streams", "udp"]
    for row in found.rows:
        assert row.result.p95_interval == rows_of(alone)[row.contender.name].result.p95_interval
    with pytest.raises(ValueError, match=r"ways must be one of tcp, tcp-bbr, .* udp, got 'carrier-pigeon'"):
        td.compare(VOICE, PATH, ways=["carrier-pigeon"])


def test_the_conclusion_names_plain_tcp_and_the_best(alone, beside_bulk):
    said = conclusion(alone)
    rows = {row["name"]: row for row in comparison_table(alone).rows}
    count = sum(row["meets_target"] for row in rows.values())
    assert said.startswith(f"{count} of 18 meet the target, 95 % of the packets within 200 ms.")
    assert (
        f"Plain TCP (tcp) meets it: {100 * rows['tcp']['late_fraction']:.3g} % of the packets are lost or late." in said
    )
    fewest = 100 * rows["quic-streams"]["late_fraction"]
    assert said.endswith(f"The fewest has quic-streams ({rows['quic-streams']['title']}): {fewest:.3g} %.")
    said = conclusion(beside_bulk)
    best = comparison_table(beside_bulk).rows[0]
    assert "Plain TCP (tcp) misses it: 100 % of the packets are lost or late." in said
    assert f"The fewest has {best['name']} ({best['title']}): " in said
    assert " over the same TCP" in said


def test_the_conclusion_says_whose_verdict_the_statistical_error_leaves_open():
    # The share of lost datagrams is 2 %, and 98 % of the packets must arrive.
    found = td.compare(VOICE, PATH, target=td.Target(0.200, 0.98), duration=400)
    (udp,) = (row for row in found.rows if row.contender.name == "udp")
    assert abs(found.missed(udp) - 0.02) < found.missed_error(udp)
    assert found.undecided(udp)
    assert not found.undecided(rows_of(found)["sack"])
    names = " and ".join(row.contender.name for row in found.rows if found.undecided(row))
    assert f"The statistical error leaves open whether {names} meet" in conclusion(found)


@pytest.fixture(scope="module")
def never():
    """Return a comparison on a path over which no way has a packet of 12 segments on time."""
    path = td.Path(rtt=0.100, loss=0.02)
    with pytest.warns(td.ValidityWarning, match="packet_size"):
        return td.compare(td.Flow(16_666, 1 / 30), path, None, td.Target(0.04), duration=60)


def test_ways_without_packets_on_time_are_ranked_by_what_arrives(never):
    ranked = [(rank, row) for rank, row in never.ranked() if rank is not None]
    assert all(never.missed(row) == 1 for _, row in ranked)
    arriving = [float(f"{row.result.throughput / never.flow.bitrate:.3g}") for _, row in ranked]
    assert arriving == sorted(arriving, reverse=True)
    assert len({rank for rank, _ in ranked}) >= 4
    best = ranked[0][1].contender
    assert f"No way has packets on time; most arrive over {best.name} ({best.title}): " in conclusion(never)


def test_ways_that_deliver_all_packets_too_late_are_ranked_by_their_delays():
    found = td.compare(td.Flow(174, 0.020), td.Path(rtt=0.400, loss=0.02), None, td.Target(0.15), duration=400)
    results = [row.result for _, row in found.ranked() if row.result.settled]
    arriving = [float(f"{result.throughput / found.flow.bitrate:.3g}") for result in results]
    delays = [result.p95_interval.value for result, share in zip(results, arriving, strict=True) if share == 1]
    assert arriving == sorted(arriving, reverse=True)
    assert delays == pytest.approx(sorted(delays), rel=0.01)
    assert len({rank for rank, _ in found.ranked()}) > 5


def test_lost_packets_of_an_endless_backlog_are_not_known(never):
    endless = [row for row in comparison_table(never).rows if row["sustainable"] is False]
    assert {"tcp", "par-2"} <= {row["name"] for row in endless}
    assert all(math.isnan(row["lost_fraction"]) for row in endless)
    assert "Where delays never settle, the share of lost packets is not known." in comparison_table(never).note


def test_a_way_over_which_nothing_arrives_has_its_reason():
    # A message of ten datagrams arrives with a probability of 6e-6.
    path, link = td.Path(rtt=0.080, loss=0.7), td.Bottleneck(rate=1e9, capacity=1000)
    found = td.compare(td.Flow(14_000, 0.100), path, link=link, duration=20)
    udp = next(row for row in comparison_table(found).rows if row["name"] == "udp")
    assert udp["reason"] == "every packet is lost"
    assert "Nothing arrives over udp: every packet is lost." in conclusion(found)


@pytest.fixture(scope="module")
def large_frames():
    """Return comparisons of three lengths with frames of nine segments, which are often larger than the window."""
    return [td.compare(td.Flow(12_000, 0.033), td.Path(rtt=0.040, loss=0.01), duration=d) for d in (250, 1000, 4000)]


@pytest.mark.filterwarnings("ignore::tcpdelay.ValidityWarning")
def test_shares_do_not_depend_on_the_length_of_the_simulation(large_frames):
    longest = rows_of(large_frames[-1])
    compared = set()
    for comparison in large_frames[:-1]:
        for name, row in rows_of(comparison).items():
            if comparison.unsettled(row) or large_frames[-1].unsettled(longest[name]):
                continue
            compared.add(name)
            allowed = math.hypot(comparison.missed_error(row), large_frames[-1].missed_error(longest[name]))
            # Of some twenty intervals of 95 %, one or two miss.
            assert abs(comparison.missed(row) - large_frames[-1].missed(longest[name])) <= 2 * allowed, name
    assert {"discard", "min-buf-1-0", "min-buf-1-3", "udp"} <= compared


@pytest.mark.filterwarnings("ignore::tcpdelay.ValidityWarning")
def test_a_window_below_a_frame_does_not_block_the_sender(large_frames):
    rows = rows_of(large_frames[-1])
    # A packet that the sender discards helps the others: fewer are late than with plain TCP.
    for name in ("discard", "min-buf-1-3", "min-buf-1-0"):
        assert large_frames[-1].missed(rows[name]) < large_frames[-1].missed(rows["tcp"])
    # The limit with three more packets discards less.
    assert rows["min-buf-1-3"].result.lost < rows["min-buf-1-0"].result.lost


def test_a_call_is_rated_over_each_way():
    found = td.compare("voip", td.Path(rtt=0.100, loss=0.02), duration=400)
    table = comparison_table(found)
    rows = {row["name"]: row for row in table.rows}
    assert {row["codec"] for row in table.rows} == {"g711"}
    # The E-model of ITU-T G.107 for 2 % random losses and a mouth-to-ear delay of 220 ms.
    lost = rows["udp"]["lost_fraction"]
    assert rows["udp"]["mos"] == pytest.approx(float(voice_mos(0.220, lost, "g711")), abs=0.001)
    late = rows["tcp"]["late_fraction"]
    assert rows["tcp"]["mos"] == pytest.approx(float(voice_mos(0.220, late, "g711")), abs=0.001)
    text = to_text(found, 140)
    assert "MOS (g711)" in text
    assert f"{rows['tcp']['mos']:.2f}" in text
    assert "score of a call with g711 that plays out each packet 200 ms after its write" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 140
    assert json.loads(to_json(found))["contenders"][0]["mos"] == pytest.approx(table.rows[0]["mos"], abs=1e-4)
    assert "mos,codec" in table.to_csv()
    assert "MOS (g711)" in to_html(found)


def test_what_is_no_call_has_no_score(alone):
    assert all(row["mos"] is None is row["codec"] for row in comparison_table(alone).rows)
    assert "MOS" not in to_text(alone, 140)


def test_a_way_that_cannot_carry_a_call_has_the_lowest_score():
    flow = td.Flow(14_480, 0.020)
    found = td.compare(flow, td.Path(rtt=0.2, loss=0.02), duration=60, application=application("voip"))
    tcp = comparison_table(found).rows[[row["name"] for row in comparison_table(found).rows].index("tcp")]
    assert (tcp["sustainable"], tcp["mos"]) == (False, pytest.approx(1.0, abs=0.01))


@pytest.mark.parametrize("written", [lambda found: to_text(found, 140), to_markdown, to_html])
def test_every_name_is_explained_and_the_conclusion_is_given(alone, written):
    text = " ".join(written(alone).split())
    assert all(row.contender.title in text for row in alone.rows)
    assert conclusion(alone) in text
    assert json.loads(to_json(alone))["conclusion"] == conclusion(alone)


@pytest.fixture(scope="module")
def near_capacity():
    """Return a comparison at about the rate that plain TCP carries."""
    flow, path, target = td.Flow(1448, 0.0046336), td.Path(rtt=0.078, loss=0.005), td.Target(5.0, 0.999)
    with pytest.warns(td.ValidityWarning, match="interval"):
        return td.compare(flow, path, None, target, duration=900)


def test_delays_that_depend_on_the_length_of_a_simulation_are_not_settled(near_capacity):
    plain, table = near_capacity.rows[0], comparison_table(near_capacity)
    carried = plain.result.carried
    assert (plain.result.sustainable, plain.result.settled) == (True, False)
    assert carried.low < 1 < carried.high
    assert near_capacity.unsettled(plain)
    assert math.isnan(near_capacity.missed(plain))
    assert not near_capacity.meets(plain)
    records = {row["name"]: row for row in table.to_records()}
    tcp = records["tcp"]
    hidden = (
        "rank",
        "mean",
        "p50",
        "p95",
        "p99",
        "worst",
        "late_fraction",
        "lost_fraction",
        "sustainable",
        "sender_delay",
    )
    assert (tcp["settled"], [tcp[name] for name in hidden]) == (False, [None] * len(hidden))
    assert (tcp["carried_low"], tcp["carried_high"]) == pytest.approx((carried.low, carried.high), rel=1e-5)
    # Nothing waits where datagrams are not sent again.
    assert records["udp"]["settled"]
    assert records["udp"]["p95"] == pytest.approx(0.039)


def test_every_format_says_what_is_not_settled(near_capacity):
    unsettled = [row.contender.name for row in near_capacity.rows if near_capacity.unsettled(row)]
    ranked = [row.contender.name for _, row in near_capacity.ranked()]
    assert ranked[-len(unsettled) :] == unsettled
    said = conclusion(near_capacity)
    assert "Plain TCP (tcp) is not settled." in said
    assert (
        "Not settled after 900 s, so that the delays still depend on how long is simulated: tcp (carries between"
        in said
    )
    for text in (to_text(near_capacity, 140), to_markdown(near_capacity), to_html(near_capacity)):
        # In the columns of the 95th percentile and of the share of late packets.
        assert text.count("not settled") >= 2 * len(unsettled)
    assert max(map(len, to_text(near_capacity, 140).splitlines())) <= 140
    lines = {line["name"]: line for line in csv.DictReader(io.StringIO(comparison_table(near_capacity).to_csv()))}
    assert (lines["tcp"]["settled"], lines["tcp"]["p95"], lines["tcp"]["rank"]) == ("False", "", "")
    labels = [label.get_text() for label in near_capacity.plot(Figure().subplots()).texts]
    assert labels.count("not settled") == len(unsettled)


def test_a_longer_simulation_does_not_contradict_a_shorter_one():
    source = ConstantRate(
        flow=td.Flow(1448, 0.0046336), path=td.SharedPath(access_delay=0.04, loss=0.005), stack=td.Stack.linux()
    )
    carried = []
    for duration in (500.0, 2000.0, 8000.0):
        flow = simulate_network([source], UNLIMITED, duration=duration, warm_up=0.05 * duration).flows[0]
        # The chain says that TCP carries a little less than this rate.
        assert not (flow.sustainable and flow.settled)
        carried.append(flow.carried)
    assert max(interval.low for interval in carried) < min(interval.high for interval in carried)


def test_parity_datagrams_recover_lost_datagrams():
    frame, path = td.Flow(14_000, 0.100), td.Path(rtt=0.080, loss=0.02)
    found = td.compare(frame, path, duration=2000, parity=2, ways=["udp", "udp-parity-2"])
    rows = {row["name"]: row for row in comparison_table(found).rows}
    # 14 000 bytes are 10 datagrams of up to 1472 bytes, and 12 with parity.
    for name, datagrams, spare in (("udp", 10, 0), ("udp-parity-2", 12, 2)):
        lost = binom.sf(spare, datagrams, 0.02)
        assert rows[name]["lost_fraction"] == pytest.approx(lost, abs=4 * math.sqrt(lost * (1 - lost) / 19_000))
    assert found.rows[-1].contender.source.stack.parity == 2
    assert "udp-parity" not in str([row.contender.name for row in td.compare(frame, path, duration=20).rows])


def test_a_source_is_carried_by_the_ways_that_are_defined_for_it():
    """The kernel's TCP is what `simulate` says, and over UDP a frame is lost with any of its datagrams."""
    video = td.Video(500_000, key_ratio=10)
    path, duration = td.Path(rtt=0.060, loss=0.01), default_duration(video, None, td.Stack.linux())
    comparison = td.compare(video, path, target=td.Target(0.3), parity=1, duration=duration)
    rows = rows_of(comparison)
    assert [*rows] == ["tcp", "tcp-bbr", *QUIC, "udp", "udp-parity-1"]
    # A million segments; the mean frame has 2083 bytes.
    assert comparison.duration == pytest.approx(500_000 / 30)
    plain, single = rows["tcp"].result, td.simulate(video, comparison.path, packets=200_000)
    for kind in video.kinds:
        assert plain.by_kind[kind].delays.quantile(0.95) == pytest.approx(single.by_kind[kind].quantile(0.95), rel=0.1)
    sizes = video.messages(comparison.duration)["size"]
    lost = np.mean(1 - 0.99 ** np.ceil(sizes / 1472))
    udp = rows["udp"].result
    assert udp.lost / udp.offered == pytest.approx(lost, rel=0.03)
    assert udp.by_kind["key frame"].lost / udp.by_kind["key frame"].offered > 5 * lost
    assert rows["udp-parity-1"].result.lost < 0.2 * udp.lost
    record = json.loads(to_json(comparison))
    assert record["scenario"]["source"]["kind"] == "video"
    assert record["scenario"]["source"]["key_ratio"] == 10
    assert to_text(comparison, 140).startswith("video of 500 kbit/s in the mean")
    assert comparison.call(comparison.rows[0]) is None


def test_a_contender_ends_when_its_rank_and_its_verdict_are_settled():
    ways = {"par-5", "udp"}
    longest = default_duration(VOICE, None, td.Stack.linux())
    found = td.compare(VOICE, PATH, ways=ways)
    whole = td.compare(VOICE, PATH, ways=ways, duration=longest)
    # The three differ by far.
    assert (found.duration, whole.duration) == (longest / 16, longest)
    assert [(rank, row.contender.name) for rank, row in found.ranked()] == [
        (rank, row.contender.name) for rank, row in whole.ranked()
    ]
    for quick, long in zip(found.rows, whole.rows, strict=True):
        assert found.meets(quick) == whole.meets(long)
        error = math.hypot(found.missed_error(quick), whole.missed_error(long))
        assert abs(found.missed(quick) - whole.missed(long)) <= 2 * error
        assert found.missed_error(quick) > whole.missed_error(long)
    # The allowed share lies within the interval of a short simulation, which therefore goes on.
    close = td.compare(VOICE, PATH, ways={"udp"}, target=td.Target(0.2, 0.98))
    assert {row.contender.name: row.duration for row in close.rows}["udp"] > longest / 16


def test_a_trace_is_compared_to_its_end():
    trace = td.Trace([0.02 * number for number in range(2000)], [300] * 2000)
    comparison = td.compare(trace, PATH)
    assert comparison.duration == pytest.approx(2000 * trace.mean_interval)
    # All but the first 5 %.
    assert [row.result.offered for row in comparison.rows] == pytest.approx([1900] * 6, abs=2)

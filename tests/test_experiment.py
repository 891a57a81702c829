import json
import math
import re
from dataclasses import asdict, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.testbed.experiment import Experiment

QUIC = {"application": "quic", "congestion_control": "reno"}
LIMITED = {"bottleneck_rate": 1e6, "queue_packets": 50}

# The settings that a campaign may vary, each with few enough digits for a name.
COMMON = {
    "packet_size": st.integers(16, 65_000),
    "flows": st.integers(1, 64),
    "nodelay": st.booleans(),
    "rtt": st.integers(1, 9_999).map(lambda ms: ms / 1000),
    "loss": st.integers(1, 400).map(lambda permille: permille / 1000),
    "loss_burst": st.integers(10, 99).map(lambda tenths: tenths / 10),
    "ack_loss": st.integers(0, 400).map(lambda permille: permille / 1000),
    "jitter": st.integers(0, 1000).map(lambda ms: ms / 1000),
    "delayed_ack": st.booleans(),
    "sack": st.booleans(),
    "slow_start_after_idle": st.booleans(),
    "recovery": st.integers(0, 7),
    "early_retrans": st.integers(0, 4),
    "bulk_flows": st.integers(0, 400),
    "web_flows": st.integers(0, 400),
}
CONTROLS = st.sampled_from(["reno", "cubic", "bbr", "vegas", "westwood"])
INTERVALS = st.integers(1, 10_000).map(lambda ms: ms / 1000)
QUEUES = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"bottleneck_rate": st.integers(10, 10**6).map(lambda kbit: 1e3 * kbit)}).flatmap(
        lambda rate: st.one_of(
            st.integers(1, 100_000).map(lambda packets: rate | {"queue_packets": packets}),
            st.integers(1514, 10**8).map(lambda size: rate | {"queue_bytes": size}),
            st.fixed_dictionaries(
                {
                    "queue": st.sampled_from(["codel", "fq_codel", "red", "pie", "cake", "dualpi2"]),
                    "queue_target": st.none() | st.integers(1, 1000).map(lambda ms: ms / 1000),
                    "ecn": st.booleans(),
                }
            ).map(lambda queue: rate | queue),
        )
    ),
)
OF_APPLICATIONS = st.one_of(
    st.fixed_dictionaries(
        {
            "application": st.just("cbr"),
            "interval": INTERVALS,
            "pieces": st.integers(1, 16),
            "connections": st.integers(1, 16),
            "scheduling": st.sampled_from(["blind", "intelligent"]),
            "congestion_control": CONTROLS,
        }
    ),
    st.fixed_dictionaries(
        {
            "application": st.just("adaptive"),
            "notsent_lowat": st.none() | st.integers(1, 10**7),
            "congestion_control": CONTROLS,
        }
    ),
    st.fixed_dictionaries({"application": st.just("udp"), "interval": INTERVALS}),
    st.fixed_dictionaries(
        {
            "application": st.just("quic"),
            "interval": INTERVALS,
            "delivery": st.sampled_from(["stream", "stream_per_message", "stream_per_group", "datagram"]),
            "group": st.integers(1, 100_000),
        }
    ).flatmap(
        lambda settings: st.sampled_from([("aioquic", "reno"), ("aioquic", "cubic"), ("quic-go", "reno")]).map(
            lambda chosen: settings | {"implementation": chosen[0], "congestion_control": chosen[1]}
        )
    ),
)
OF_TCP = {
    *("nodelay", "delayed_ack", "sack", "slow_start_after_idle", "recovery", "early_retrans"),
    *("bulk_flows", "web_flows"),
}
"""Settings in `COMMON` that QUIC does not have."""


@st.composite
def experiments(draw):
    settings = draw(OF_APPLICATIONS) | draw(QUEUES) | draw(st.fixed_dictionaries({}, optional=COMMON))
    if settings["application"] == "quic":
        settings = {name: value for name, value in settings.items() if name not in OF_TCP}
    if settings["application"] == "adaptive":
        settings = {"bottleneck_rate": 1e6, "queue_packets": 9, "loss": 0.01} | settings
        if settings.get("queue_bytes") is not None or settings.get("queue") == "cake":
            del settings["queue_packets"]
    if settings.get("bulk_flows") and settings.get("loss", 0) == 0 and "bottleneck_rate" not in settings:
        settings["bulk_flows"] = 0
    return Experiment(**settings)


WRONG = [
    ({"application": "tcp"}, r"application must be one of 'cbr', 'adaptive', 'udp', 'source', 'quic', got 'tcp'"),
    ({"application": ["cbr"]}, r"application must be one of .*, got \['cbr'\]"),
    ({"scheduling": "random"}, r"scheduling must be one of 'blind', 'intelligent', got 'random'"),
    ({"congestion_control": "bic"}, r"congestion_control must be one of 'reno', .*, got 'bic'"),
    ({"nodelay": 1}, r"nodelay must be True or False, got 1"),
    ({"delayed_ack": "no"}, r"delayed_ack must be True or False, got 'no'"),
    ({"sack": None}, r"sack must be True or False, got None"),
    ({"slow_start_after_idle": 0}, r"slow_start_after_idle must be True or False, got 0"),
    ({"packet_size": 0}, r"packet_size must lie between 1 and 65000 bytes, got 0"),
    ({"packet_size": 65_001}, r"packet_size must lie between 1 and 65000 bytes, got 65001"),
    ({"packet_size": 174.5}, r"packet_size must be a whole number of bytes, got 174\.5"),
    ({"packet_size": True}, r"packet_size must be a number in bytes, got True"),
    ({"packet_size": None}, r"packet_size must be a number in bytes, got None"),
    ({"packet_size": 10**400}, r"packet_size must be finite, got 1e\+400"),
    ({"interval": "20ms"}, r"interval must be a number in s, got '20ms'"),
    ({"interval": 0.0009}, r"interval must lie between 0\.001 and 60 s, got 0\.0009"),
    ({"pieces": 17}, r"pieces must lie between 1 and 16 writes, got 17"),
    ({"connections": 0}, r"connections must lie between 1 and 16 connections, got 0"),
    ({"notsent_lowat": 0}, r"notsent_lowat must lie between 1 and 1e\+07 bytes, got 0"),
    ({"flows": 65}, r"flows must lie between 1 and 64 flows, got 65"),
    ({"rtt": math.nan}, r"rtt must be finite, got nan"),
    # No model has a path without any delay, and a capture of it could not be read.
    ({"rtt": 0}, r"rtt must lie between 1e-06 and 10 s, got 0"),
    ({"rtt": -0.1}, r"rtt must lie between 1e-06 and 10 s, got -0\.1"),
    ({"loss": 0.50001}, r"loss must be a fraction from 0 to 0\.5, got 0\.50001"),
    ({"loss": 0.5000000001}, r"loss must be a fraction from 0 to 0\.5, got 0\.5000000001"),
    ({"loss_burst": 0.9}, r"loss_burst must lie between 1 and 100 segments, got 0\.9"),
    ({"bad_time": 61}, r"bad_time must lie between 0 and 60 s, got 61; the duration is given in seconds: .*"),
    ({"loss": 0.1, "bad_time": 0.1, "bad_loss": 0.1}, r"loss must be below the bad_loss of 0\.1, got 0\.1"),
    ({"bad_time": 0.1, "loss_burst": 2}, r"loss_burst must be 1 with a bad_time of 0\.1 s, got 2"),
    ({"bad_loss": 0.5}, r"bad_loss must be 1 without a bad_time, got 0\.5"),
    ({"ack_loss": 1}, r"ack_loss must be a fraction from 0 to 0\.5, got 1; for 1 % write 0\.01"),
    ({"bottleneck_rate": 9999}, r"bottleneck_rate must lie between 10000 and 1e\+09 bit/s, got 9999"),
    ({"queue_packets": 0}, r"queue_packets must lie between 1 and 100000 packets, got 0"),
    ({"queue_bytes": 1513}, r"queue_bytes must lie between 1514 and 1e\+08 bytes, got 1513"),
    ({"recovery": 8}, r"recovery must lie between 0 and 7 \(a sysctl\), got 8"),
    ({"early_retrans": 5}, r"early_retrans must lie between 0 and 4 \(a sysctl\), got 5"),
    ({"bulk_flows": 401}, r"bulk_flows must lie between 0 and 400 flows, got 401"),
    ({"web_flows": -1}, r"web_flows must lie between 0 and 400 users, got -1"),
    ({"duration": math.inf}, r"duration must be finite, got inf"),
    ({"duration": 0.5}, r"duration must lie between 1 and 86400 s, got 0\.5"),
    ({"queue_packets": 9}, r"queue_packets needs a bottleneck_rate"),
    ({"queue_bytes": 9999}, r"queue_bytes needs a bottleneck_rate"),
    ({"bottleneck_rate": 1e6}, r"bottleneck_rate needs one of queue_packets and queue_bytes, got 0 of them"),
    ({**LIMITED, "queue_bytes": 9999}, r"bottleneck_rate needs one of .*, got 2 of them"),
    ({"queue": "codel"}, r"queue needs a bottleneck_rate"),
    ({**LIMITED, "queue": "sfq"}, r"queue must be one of 'fifo', .*, 'policer', got 'sfq'"),
    ({**LIMITED, "queue_target": 0.005}, r"queue_target must go with a queue other than 'fifo', got 0\.005"),
    ({**LIMITED, "ecn": True}, r"ecn must go with a queue other than 'fifo', got True"),
    (
        {**LIMITED, "queue": "codel", "queue_target": 2},
        r"queue_target must lie between 0\.001 and 1 s, got 2; the delay is given in seconds: .*",
    ),
    ({**LIMITED, "queue": "cake"}, r"queue_packets must be absent with cake, got 50"),
    ({**LIMITED, "l4s": True}, r"l4s must go with a queue other than 'fifo', got True"),
    ({**LIMITED, "burst": 0}, r"burst must lie between 2000 and 1e\+06 bytes, got 0"),
    ({"burst": 9000}, r"burst needs a bottleneck_rate"),
    ({"bottleneck_rate": 1e6, "queue": "cake", "burst": 9000}, r"burst must be absent with cake, .*, got 9000"),
    ({**LIMITED, "peak_rate": 2e6}, r"peak_rate must go with a burst, and not with a policer, got 2000000"),
    ({**LIMITED, "burst": 9000, "peak_rate": 1e6}, r"peak_rate must be above the rate, 1e\+06 bit/s, got 1000000"),
    ({"bottleneck_rate": 1e6, "queue": "policer"}, r"burst must go with a policer, got None"),
    ({**LIMITED, "queue": "policer", "burst": 9000}, r"queue_packets must be absent with policer, got 50"),
    (
        {"bottleneck_rate": 1e6, "queue": "policer", "burst": 9000, "ecn": True},
        r"ecn must be absent with policer, got True",
    ),
    ({"bottleneck_rate": 1e6, "queue": "pie", "l4s": True}, r"l4s must go with the queue 'dualpi2', got True"),
    (
        {"bottleneck_rate": 1e6, "queue": "dualpi2", "l4s": True},
        r"congestion_control must be 'dctcp' with l4s, got 'cubic'",
    ),
    ({"cross_control": "bic"}, r"cross_control must be one of 'reno', .*, 'dctcp', got 'bic'"),
    ({"bottleneck_rate": 1e6, "queue": "pie", "queue_bytes": 9999}, r"queue_bytes must be absent with pie, got 9999"),
    ({**LIMITED, "application": "adaptive", "pieces": 2}, r"pieces and connections are for .* 'cbr', not 'adaptive'"),
    ({"application": "udp", "connections": 2}, r"pieces and connections are for the application 'cbr', not 'udp'"),
    ({"application": "udp", "packet_size": 7}, r"packet_size must be at least 8 bytes when .* in datagrams, got 7"),
    ({**QUIC, "delivery": "datagram", "packet_size": 7}, r"packet_size must be at least 8 bytes when .*, got 7"),
    ({**QUIC, "implementation": "quiche"}, r"implementation must be one of 'aioquic', .*, 'quinn', got 'quiche'"),
    ({**QUIC, "delivery": "streams"}, r"delivery must be one of 'stream', .*, 'datagram', got 'streams'"),
    ({**QUIC, "group": 0}, r"group must lie between 1 and 100000 messages, got 0"),
    ({**QUIC, "sack": False}, r"sack does not go with 'quic'"),
    ({**QUIC, "congestion_control": "bbr"}, r"congestion_control must be 'reno' or 'cubic' with aioquic, got 'bbr'"),
    (
        {**QUIC, "implementation": "quic-go", "congestion_control": "cubic"},
        r"congestion_control must be 'reno' with quic-go, got 'cubic'",
    ),
    ({"delivery": "datagram"}, r"delivery is for the application 'quic', not 'cbr'"),
    ({"notsent_lowat": 1448}, r"notsent_lowat is for the application 'adaptive', not 'cbr'"),
    ({"packet_size": 3, "pieces": 4}, r"pieces must not exceed packet_size \(3 bytes\), got 4"),
    ({"application": "adaptive"}, r"a source that fills its window needs a path with loss or with a bottleneck_rate"),
    ({"bulk_flows": 1}, r"a source that fills its window needs .*"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=[str(settings)[:60] for settings, _ in WRONG])
def test_wrong_settings_are_told_in_one_line(settings, message):
    with pytest.raises(ValueError, match=f"^{message}$") as caught:
        Experiment(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"packet_size": 1},
        {"packet_size": 65_000},
        {"application": "udp", "packet_size": 8},
        {"interval": 0.001},
        {"interval": 10, "rtt": 1e-6, "loss": 0, "ack_loss": 0.5, "duration": 1},
        {"pieces": 16, "packet_size": 16, "connections": 16, "flows": 64},
        {"loss": 0.5, "loss_burst": 100.0, "duration": 86_400},
        {"bottleneck_rate": 1e4, "queue_bytes": 1514, "bulk_flows": 400, "web_flows": 400},
        {"application": "adaptive", "notsent_lowat": 1, "loss": 0.01, "recovery": 7, "early_retrans": 4},
    ],
)
def test_the_ends_of_the_ranges_are_allowed(settings):
    experiment = Experiment(**settings)
    assert {name: getattr(experiment, name) for name in settings} == settings


def test_an_unknown_setting_is_told_with_those_there_are():
    with pytest.raises(ValueError, match=r"^'delay' is no setting of an experiment; there are ack_loss, .*"):
        Experiment.from_table({"packet_size": 174, "delay": 0.1})


@given(experiments())
def test_settings_survive_json(experiment):
    text = experiment.to_json()
    assert "\n" not in text
    again = Experiment.from_table(json.loads(text))
    assert again == experiment
    # What is left out has no effect, and has the value that it has without being named.
    assert asdict(again) == asdict(Experiment()) | json.loads(text)
    assert (again.name, again.digest) == (experiment.name, experiment.digest)


def test_equal_numbers_are_equal_settings():
    whole, float_ = Experiment(rtt=1, interval=1, duration=60), Experiment(rtt=1.0, interval=1.0, duration=60.0)
    assert (whole, whole.digest) == (float_, float_.digest)


@given(experiments(), experiments())
def test_different_experiments_have_different_names_and_digests(one, other):
    assume(one != other)
    assert one.digest != other.digest
    assert one.name != other.name


@pytest.mark.parametrize(
    ("changed", "base"),
    [
        *[
            ({name: value}, {})
            for name, value in {
                "application": "udp",
                "packet_size": 175,
                "interval": 0.021,
                "pieces": 2,
                "connections": 2,
                "scheduling": "intelligent",
                "nodelay": False,
                "flows": 2,
                "rtt": 0.1001,
                "loss": 0.0101,
                "loss_burst": 1.5,
                "bad_time": 0.1,
                "ack_loss": 0.001,
                "congestion_control": "reno",
                "delayed_ack": True,
                "sack": False,
                "slow_start_after_idle": False,
                "recovery": 0,
                "early_retrans": 0,
                "bulk_flows": 1,
                "web_flows": 1,
            }.items()
        ],
        ({"bad_loss": 0.5}, {"bad_time": 0.1}),
        ({"bottleneck_rate": 1.1e6}, LIMITED),
        ({"queue_packets": 51}, LIMITED),
        ({"queue_packets": None, "queue_bytes": 50_000}, LIMITED),
        ({"notsent_lowat": 1448}, {"application": "adaptive"}),
        ({"implementation": "quic-go"}, QUIC),
        ({"delivery": "datagram"}, QUIC),
        ({"group": 3}, QUIC),
        ({"packet_size": 175}, QUIC),
        ({"interval": 0.021}, QUIC),
    ],
    ids=str,
)
def test_a_single_changed_setting_changes_name_and_digest(changed, base):
    before = Experiment(loss=0.01, **base)
    after = replace(before, **changed)
    assert after.name != before.name
    assert after.digest != before.digest


def test_the_duration_changes_the_digest_alone():
    short, long = Experiment(duration=60), Experiment(duration=120)
    assert short.name == long.name
    assert short.digest != long.digest


@given(experiments())
def test_names_and_digests_are_fit_for_files(experiment):
    assert re.fullmatch(r"[A-Za-z0-9._+-]{1,220}", experiment.name)
    assert re.fullmatch("[0-9a-f]{8}", experiment.digest)


def test_names_read_as_documented():
    assert Experiment().name == "cbr-174B-20ms-rtt100ms-loss0pct-cubic"
    switched = Experiment(loss=0.005, nodelay=False, delayed_ack=True, loss_burst=2.5, recovery=0, **LIMITED)
    assert switched.name == (
        "cbr-174B-20ms-rtt100ms-loss0.5pct-cubic-nodelay-off-burst2.5-rate1e+06-queue50p-delack-on-recovery0"
    )
    adaptive = Experiment(application="adaptive", packet_size=1448, notsent_lowat=16384, loss=0.01)
    quic = Experiment.from_table({"application": "quic", "delivery": "stream_per_message", "loss": 0.01})
    assert quic.name == "aioquic-stream-per-message-174B-20ms-rtt100ms-loss1pct-reno"
    assert adaptive.name == "adaptive-1448B-rtt100ms-loss1pct-cubic-lowat16384"
    assert Experiment(application="udp").name == "udp-174B-20ms-rtt100ms-loss0pct"


def test_a_source_replaces_size_and_interval():
    experiment = Experiment.from_table({"source": {"kind": "video", "bitrate": "1Mbit/s", "seed": 2}, "loss": 0.01})
    assert experiment.name == "video-bitrate1000000-seed2-rtt100ms-loss1pct-cubic"
    settings = json.loads(experiment.to_json())
    assert not {"packet_size", "interval"} & settings.keys()
    assert settings["source"]["kind"] == "video"
    again = Experiment.from_table(settings)
    assert (again, again.digest) == (experiment, experiment.digest)
    with pytest.raises(ValueError, match=r"^flow must be a Flow, which has a constant rate, got Video"):
        _ = experiment.flow
    constant = {"kind": "flow", "packet_size": 174, "interval": 0.02}
    # A record leaves out a lateness of 0.
    assert Experiment.from_table({"source": constant}).flow == Flow(174, 0.02, write_jitter=0)


def test_the_settings_of_constant_flows_are_as_before():
    # Losses in time are drawn from this digest, so that a change would change captures.
    assert Experiment(packet_size=174, interval=0.02, rtt=0.1, loss=0.02).digest == "113f9836"


def test_the_models_get_the_flow_and_the_path():
    experiment = Experiment(packet_size=1448, interval=0.03, rtt=0.3, loss=0.02)
    assert experiment.flow == Flow(1448, 0.03, write_jitter=0)
    assert experiment.path == Path(0.3, 0.02)
    assert not experiment.routed
    assert Experiment(**LIMITED).routed

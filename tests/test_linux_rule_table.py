"""The table of rules of the chain of Linux says what the kernels compute: events, probabilities and durations."""

import re
import tomllib
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path as FilePath
from typing import NamedTuple

import numpy as np
import pytest

from chain_structure import profile_of, rows_within
from tcpdelay.chain.linux.bursts import burst_chance, more_lost, outage_chance, repair_rounds, repair_segments
from tcpdelay.chain.linux.detection import rest_chance, retransmission_times
from tcpdelay.chain.linux.losses import open_window
from tcpdelay.chain.linux.parameters import linux_parameters
from tcpdelay.chain.linux.phases import KIND_NAMES
from tcpdelay.chain.linux.transitions import linux_transitions
from tcpdelay.chain.linux.windows import reduced_window, window_before
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack

TABLE = tomllib.loads((FilePath(__file__).parents[1] / "docs" / "appendix" / "chain-linux-rules.toml").read_text())
SYMBOLS, TIMES = TABLE["symbols"], TABLE["times"]
LARGER = "OPEN with w + 1, or w + 2 if the ACK of a packet of several segments adds two"
"""The next phase if an open window grows, as the table names it."""


class State(NamedTuple):
    """A state of the table."""

    kind: str
    case: str

    @property
    def name(self):
        return ", ".join(filter(None, self))


class Rule(NamedTuple):
    """An event of the table."""

    states: tuple[State, ...]
    event: str
    probability: str
    duration: str
    leads_to: tuple[str, ...]
    functions: tuple[str, ...]
    deciding: int


STATES = {state.name: state for state in (State(one["kind"], one["case"]) for one in TABLE["states"])}
RULES = [
    Rule(
        tuple(STATES[name] for name in one["states"]),
        one["event"],
        one["probability"],
        one["duration"],
        tuple(one["leads_to"]),
        tuple(one["functions"]),
        one["deciding"],
    )
    for one in TABLE["rules"]
]
RULE_OF = {(state, target): rule for rule in RULES for state in rule.states for target in rule.leads_to}
VOICE = Flow(174, 0.02)
RENO, BBR = Stack.linux(congestion_control="reno"), Stack.linux(congestion_control="bbr")
SCENARIOS = {
    "voip, CUBIC": (VOICE, Path(0.1, 0.02), Stack.linux()),
    "voip, Reno": (VOICE, Path(0.1, 0.02), RENO),
    "voip, BBR": (VOICE, Path(0.1, 0.02), BBR),
    "1448 B, BBR, a long path": (Flow(1448, 0.005), Path(0.3, 0.03), BBR),
    "half a round-trip time between packets": (VOICE, Path(0.05, 0.05), RENO),
    "1200 B": (Flow(1200, 0.02), Path(0.1, 0.005), Stack.linux()),
    "1200 B, a long path": (Flow(1200, 0.02), Path(0.3, 0.01), RENO),
    "full segments, Reno": (Flow(1448, 0.01), Path(0.1, 0.01), RENO),
    "full segments, CUBIC": (Flow(1448, 0.02), Path(0.25, 0.005), Stack.linux()),
    "several segments": (Flow(3000, 0.04), Path(0.05, 0.01), Stack.linux()),
    "many segments": (Flow(15_000, 0.08), Path(0.075, 0.003), RENO),
    "thin flow": (Flow(160, 0.2), Path(0.05, 0.01), Stack.linux()),
    "very thin flow": (Flow(160, 0.5), Path(0.05, 0.05), Stack.linux()),
    "byte queue": (VOICE, Path(0.1, 0.1, bottleneck="bytes"), Stack.linux()),
    "loss bursts": (VOICE, Path(0.1, 0.02, loss_burst=1.5), Stack.linux()),
    "loss bursts, long": (Flow(1200, 0.02), Path(0.2, 0.004, loss_burst=2), RENO),
    "correlated losses": (VOICE, Path(0.1, 0.02, "correlated"), Stack.linux()),
    "correlated losses, long path": (Flow(1200, 0.02), Path(0.35, 0.004, "correlated"), RENO),
    "correlated losses, several timeouts": (Flow(1200, 0.02), Path(0.1, 0.03, "correlated"), RENO),
    "correlated losses, thin flow": (Flow(160, 0.2), Path(0.05, 0.05, "correlated", "bytes"), Stack.linux()),
    "loss bursts, thin flow": (Flow(160, 0.2), Path(0.05, 0.01, loss_burst=1.2), Stack.linux()),
}
LETTERS = tuple(SYMBOLS)


def value(equation, values):
    """Return the value of an equation of the table."""
    return eval(equation, {"__builtins__": {"min": min, "max": max}}, values)


def is_equation(text):
    """Return whether a duration is an equation, not words."""
    try:
        return set(compile(text, "", "eval").co_names) <= set(TIMES)
    except SyntaxError:
        return False


class Chain:
    """The phases, transitions and records of a scenario, with the table's names."""

    def __init__(self, name):
        flow, path, stack = SCENARIOS[name]
        # The table has the rules of exact writes, over which late writes are a mean.
        self.scenario = replace(flow, write_jitter=0.0), path, stack
        self.p = linux_parameters(*self.scenario)
        self.o = open_window(self.p)
        self.phases, self.transitions, layout = linux_transitions(self.p)
        self.sending = layout.sending
        profile = profile_of(*self.scenario)
        rows = rows_within(profile, profile.first_bound)
        self.reached = [phase for phase in range(len(self.phases) - 1) if rows["low"][phase] <= rows["high"][phase]]

    def kind(self, phase):
        window, lost = self.phases["window"][phase], self.sending["lost"][phase]
        name = KIND_NAMES[self.sending["kind"][phase]].upper()
        if name == "LOST_TWO" and lost > 0:
            return "OUTAGE" if lost == window else "LOST_BURST"
        if name == "LOST" and self.sending["place"][phase] > 0:
            return "LOST_REST"
        return name

    def state(self, phase):
        """Return the state of the table."""
        kind = self.kind(phase)
        case = ""
        if kind == "TIMEOUT":
            case = "the last" if phase == self.p.backoffs - 1 else "not the last"
        elif kind in ("REPAIR", "REPAIR_OPEN"):
            enough = self.phases["window"][phase] >= self.o.needed
            case = "application-limited" if enough else "cwnd-limited"
        return STATES[State(kind, case).name]

    def outgoing(self, phase):
        """Return the records of the transitions of a phase."""
        first, last = self.phases["first_transition"][phase : phase + 2]
        return [e for e in self.transitions[first:last] if e["probability"] > 0]

    def events(self, phase):
        """Return the targets, with and without a backlog, the probability and the duration [slots] of each event."""
        for e in self.outgoing(phase):
            targets = [int(e["target"]), int(e["target_when_empty"])]
            grown = self.kind(phase) == "OPEN" and self.phases["window"][targets[0]] > self.phases["window"][phase]
            yield (
                [LARGER if grown else self.kind(target) for target in targets],
                float(e["probability"]),
                float(e["duration"]),
            )

    def values(self, phase):
        """Return the values of the letters, from the functions that the table names."""
        p, o, window, s = self.p, self.o, int(self.phases["window"][phase]), self.sending[phase]
        kind, openings, lost = self.kind(phase), float(s["openings"]), int(s["lost"])
        bursts = p.followed_losses > 0
        found = {
            "p": p.loss,
            "r": p.next_loss,
            "q": p.repeated_loss,
            "t": float(s["timeout_chance"]),
            "e": o.loss,
            "f": o.loss if self.state(phase).name == "REPAIR_OPEN, application-limited" else p.loss,
            "v": 0.0 if bursts else o.next_lost,
            "b": burst_chance(p, max(window, 1), 1),
            "o": outage_chance(p, max(window, 1)),
            "n": openings,
            "w": window,
            "h": int(p.rest_lost),
            "z": 0.0,
        }
        rounds = repair_rounds(repair_segments(p, window))
        if p.rest_lost and kind in ("TIMEOUT", "OUTAGE", "LOST"):
            slow_start = repair_rounds(repair_segments(p, p.flight + 1)) if kind == "TIMEOUT" else 1 + rounds
            found["z"] = 1 - (1 - p.loss) ** slow_start
        if kind == "LOST_OPEN":
            telling = max(openings - o.telling, 0) * p.segments_per_packet
            (further,) = {one.further for one in o.detections if one.share > 0 and one.wait == s["wait"]} or {0.0}
            found |= {"q": 1 - (1 - o.repeated_loss) * (1 - further), "m": more_lost(p, telling, False)}
        elif kind == "LOST_BURST":
            further = repair_segments(p, lost) - 1
            found |= {"q": 1 - (1 - p.repeated_loss) * (1 - p.loss) ** further}
            found |= {"m": more_lost(p, max(openings - lost, 0), False)}
        elif kind == "LOST" and p.rest_lost:
            found |= self.rest_values(phase)
        elif kind in ("LOST", "LOST_REPAIRING"):
            found |= {"m": more_lost(p, openings, True)}
        elif kind == "OPEN":
            larger = sum(chance for targets, chance, _ in self.events(phase) if LARGER in targets)
            found |= {"g": larger / (1 - o.loss)}
            if p.load >= 1:
                growth = min(p.segments_per_packet / window * (8 / 15 if p.cubic else 1), 1)
                assert found["g"] == 0 or found["g"] == pytest.approx(growth)
        return found

    def rest_values(self, phase):
        """Return the values of the letters that depend on the lost segments, which are in the phase before."""
        p, s, window = self.p, self.sending[phase - 1], int(self.phases["window"][phase])
        if self.sending["lost"][phase] == window:
            return {"o": 1.0, "q": 0.0, "m": 0.0}
        under_way = int(s["openings"]) - window + int(s["place"])
        repairs = repair_segments(p, int(s["lost"]))
        return {"o": 0.0, "q": 1 - (1 - p.loss) ** repairs, "m": more_lost(p, under_way, False)}

    def further_retransmissions(self, phase):
        """Return the time from the first retransmission of a loss burst to the last, or to the next ACK less a slot."""
        p, s, window = self.p, self.sending[phase], int(self.phases["window"][phase])
        further, lost = repair_segments(p, int(s["lost"])) - 1, int(s["lost"])
        if not p.rest_lost:
            return further
        before = int(np.floor(s["wait"] - lost + 1e-9))
        sacks = int(s["openings"]) + 1 - lost - before
        times = retransmission_times(p, further + 1, sacks, 1.0, reduced_window(p, window), before == 0)
        return max(times[0], times[1] - 1)

    def times(self, phase):
        """Return the values of the letters of durations [slots]."""
        p, s, window = self.p, self.sending[phase], int(self.phases["window"][phase])
        limited = p.full_segments and 2 <= window < self.o.needed and self.kind(phase) != "REPAIR_OPEN"
        return {
            "i": 1.0,
            "a": max(p.load / window_before(p, window), 1 / p.segments_per_packet) if limited else 0.0,
            "y": p.load / window if limited else 0.0,
            "RTT": p.load,
            "RTO": p.timeout,
            "d": float(s["wait"]),
            "k": phase,
            "s": self.further_retransmissions(phase) if self.kind(phase) == "LOST_BURST" else 0,
            "c": repair_rounds(repair_segments(p, p.flight + 1)) if p.followed_losses else 0,
        }


@pytest.fixture(scope="module", params=SCENARIOS)
def chain(request):
    return Chain(request.param)


def test_every_event_of_the_chain_has_one_rule_and_every_rule_an_event():
    found = set()
    for name in SCENARIOS:
        c = Chain(name)
        for phase in c.reached:
            found |= {(c.state(phase), target) for targets, _, _ in c.events(phase) for target in targets}
    listed = Counter((state, target) for rule in RULES for state in rule.states for target in rule.leads_to)
    assert {pair for pair, rules in listed.items() if rules > 1} == set()
    assert {(state.name, target) for state, target in found ^ set(listed)} == set()
    assert {state for rule in RULES for state in rule.states} == set(STATES.values())


@pytest.mark.parametrize("state", STATES.values(), ids=list(STATES))
def test_the_probabilities_of_a_state_add_up_to_one(state):
    random = np.random.default_rng(20100504)
    rules = [rule for rule in RULES if state in rule.states]
    for _ in range(100):
        values = dict(zip(LETTERS, random.random(len(LETTERS)).tolist(), strict=True))
        values |= {"n": float(random.integers(1, 40)), "w": int(random.integers(2, 40))}
        # A burst of one segment and an outage exclude each other.
        values["o"] *= 1 - values["b"]
        chances = [value(rule.probability, values) for rule in rules]
        assert sum(chances) == pytest.approx(1, abs=1e-12)
        assert min(chances) >= -1e-12
        assert max(chances) <= 1 + 1e-12


def test_the_chain_has_the_probabilities_of_the_rules(chain):
    for phase in chain.reached:
        state, values, computed = chain.state(phase), chain.values(phase), defaultdict(float)
        for targets, chance, _ in chain.events(phase):
            rules = {RULE_OF[state, target] for target in targets}
            assert len(rules) == 1, (state.name, targets)
            computed[rules.pop()] += chance
        for rule in RULES:
            if state in rule.states:
                assert computed[rule] == pytest.approx(value(rule.probability, values), rel=1e-9, abs=1e-12), (
                    state.name,
                    rule.event,
                )


def test_each_letter_has_one_meaning():
    assert set(SYMBOLS) & set(TIMES) == set()


def test_the_letters_follow_from_the_equations_of_their_meanings(chain):
    p = chain.p
    for phase in chain.reached:
        state, values = chain.state(phase), chain.values(phase)
        loss, after_loss, window, openings = values["p"], values["r"], values["w"], values["n"]
        packet = values["e"]
        assert packet == pytest.approx(1 - (1 - p.loss_of_one_packet) ** p.segments_per_packet)
        assert any(values["v"] == pytest.approx(chance) for chance in (0, packet, 1 - (1 - packet) ** 3))
        assert values["h"] == (chain.scenario[1].loss_pattern == "correlated")
        if p.rest_lost and state.kind == "OPEN":
            alone = rest_chance(p.loss_of_one_packet, min(p.flight, window), 0, 1)
            # The next round is not lost as a whole, or the window allows more than both rounds.
            assert any(values["b"] == pytest.approx(alone * chance) for chance in (1, 1 - p.loss_of_one_packet))
        elif p.rest_lost:
            assert 0 <= values["o"] <= 1
        elif p.followed_losses and window >= 2:
            assert values["b"] == pytest.approx(1 - after_loss)
            assert any(values["o"] == pytest.approx(after_loss**further) for further in (window - 1, window))
        elif not p.followed_losses:
            assert (values["b"], values["o"]) == (1, 0)
        if state.name == "REPAIR, cwnd-limited":
            assert openings == max(window - 1, 1)
        if state.kind == "REPAIR_AGAIN" and 2 <= window < chain.o.needed:
            assert openings == pytest.approx(window if p.full_segments else window - 1)
        if state.name == "REPAIR_OPEN, cwnd-limited":
            assert openings <= window
        if p.rest_lost:
            if state.kind in ("REPAIR_MORE", "REPAIR_AGAIN"):
                assert values["t"] == 1
            elif state.kind in ("LOST", "LOST_OPEN", "LOST_BURST") and values["t"] > 0:
                # The first retransmission is lost, or it and a segment after it; the last cannot be more probable.
                assert loss**2 * (1 - 1e-9) <= values["q"] * values["t"] <= values["q"] * (1 + 1e-9)
        elif state.kind.startswith(("LOST", "REPAIR_")) and p.segments_per_packet == 1 and values["t"] > 0:
            pairs = np.log(values["t"]) / np.log(after_loss if p.followed_losses else 1 - (1 - loss) ** 2)
            assert pairs == pytest.approx(round(pairs), abs=1e-9), state.name
            assert round(pairs) <= window - 1
        if state.kind == "ROUND" and p.bbr:
            assert window == max(np.ceil(1.2375 * p.load), p.flight + 3)


def test_the_chain_has_the_durations_of_the_rules(chain):
    compared = 0
    for phase in chain.reached:
        state, values = chain.state(phase), chain.times(phase)
        for targets, _, duration in chain.events(phase):
            equation = RULE_OF[state, targets[0]].duration
            if is_equation(equation):
                assert duration == pytest.approx(value(equation, values)), (state.name, targets)
                compared += 1
    assert compared > 0


def test_lost_ends_at_the_last_ack_before_the_detection(chain):
    p = chain.p
    if p.followed_losses:
        return
    for phase in chain.reached:
        if chain.kind(phase) in ("LOST", "LOST_REPAIRING"):
            detected = p.load + chain.times(phase)["d"]
            for event in chain.outgoing(phase):
                if p.full_segments and event["target"] > 0:
                    # The recovery, whose window is the reduced one, has this time.
                    assert event["duration"] == pytest.approx(detected - chain.times(int(event["target"]))["a"])
                elif not p.full_segments:
                    assert p.load / 2 <= event["duration"] + 1e-9 <= detected + 2e-9


def test_an_outage_ends_with_its_last_retransmission_its_probe_or_its_first_round(chain):
    p = chain.p
    for phase in chain.reached:
        kind, window = chain.kind(phase), int(chain.phases["window"][phase])
        if kind == "OUTAGE" or (kind == "LOST" and p.rest_lost and chain.values(phase)["o"] == 1):
            durations = defaultdict(set)
            for (target, _), _, duration in chain.events(phase):
                durations[target].add(round(duration, 9))
            to_probe = min(durations["TIMEOUT"])
            if kind == "OUTAGE":
                assert to_probe == pytest.approx(min(window - 1 + 2 * p.load + p.probe_slack, p.timeout))
            assert durations["TIMEOUT"] == {to_probe} | ({round(to_probe + p.load, 9)} if p.rest_lost else set())
            rounds = np.floor(np.log2(np.ceil(window / max(p.packets_per_segment, 1) - 1e-9)))
            assert list(durations["REPAIR"]) == pytest.approx([to_probe + p.load * (1 + rounds)])


def test_a_lost_round_of_slow_start_takes_one_round_trip_time_and_the_first_timeout_follows(chain):
    p = chain.p
    for phase in chain.reached:
        if chain.kind(phase) == "TIMEOUT":
            lost_rounds = [event for event in chain.outgoing(phase) if event["target"] == 0]
            assert bool(lost_rounds) == (chain.values(phase)["z"] > 0)
            # The first timeout then follows itself: its duration is adapted to a whole number of packets.
            rounding = 0.5 if phase == 0 else 1e-9
            for event in lost_rounds:
                assert event["duration"] == pytest.approx(p.timeout * 2**phase + p.load, abs=rounding)


def test_a_loss_in_a_recovery_is_in_a_third_of_it_or_in_its_middle(chain):
    for phase in chain.reached:
        state, s = chain.state(phase), chain.sending[phase]
        if state.kind not in ("REPAIR", "REPAIR_OPEN") or (chain.p.rest_lost and state.case == "cwnd-limited"):
            continue
        losses = {round(lasts, 9) for targets, _, lasts in chain.events(phase) if not {"ROUND", "OPEN"} & set(targets)}
        if state.kind == "REPAIR_OPEN":
            assert list(losses) == pytest.approx([s["duration"] / 2] if s["openings"] > 0 else [])
            continue
        openings, begin = int(s["openings"]), chain.times(phase)["a"]
        parts = min(openings, 3)
        ends = [openings * part // parts for part in range(parts + 1)]
        assert len(losses) == parts
        for time, before, end in zip(sorted(losses), ends, ends[1:], strict=False):
            assert before + 1 - 1e-6 <= (time - begin) / s["spacing_after_run"] <= end + 1e-6


def test_bursts_and_full_queues_decide_what_they_lose(chain):
    for phase in chain.reached:
        for targets, _, _ in chain.events(phase):
            if targets[0] in ("LOST_BURST", "OUTAGE"):
                rule = RULE_OF[chain.state(phase), targets[0]]
                lost_by = "pfifo_enqueue" if chain.p.rest_lost else "loss_gilb_ell"
                assert lost_by in rule.functions[: rule.deciding]
    assert all(1 <= rule.deciding <= len(rule.functions) for rule in RULES)


def test_the_functions_of_a_letter_are_functions_of_a_rule_with_the_letter():
    for letter, entry in (SYMBOLS | TIMES).items():
        with_letter = [
            rule for rule in RULES if re.search(rf"\b{letter}\b", f"{rule.probability} {rule.duration} {rule.event}")
        ]
        assert set(entry.get("functions", ())) <= {one for rule in with_letter for one in rule.functions}, letter


def test_every_function_of_a_rule_is_described():
    assert {function for rule in RULES for function in rule.functions} == set(TABLE["functions"])
    for name, function in TABLE["functions"].items():
        assert name.isidentifier()
        assert function["file"].endswith((".c", ".h"))
        assert function["does"].endswith(".")
        # Only netem's losses, packets that share segments, and BBR are in no RFC.
        shared = ("tcp_sendmsg_locked", "tcp_retrans_try_collapse")
        in_no_rfc = name in ("loss_gilb_ell", *shared) or function["file"] == "tcp_bbr.c"
        assert function["rfc"].startswith("RFC ") or in_no_rfc


def test_every_letter_is_used():
    used = {name for rule in RULES for name in compile(rule.probability, "", "eval").co_names}
    assert used - {"min", "max"} == set(SYMBOLS)
    equations = [rule.duration for rule in RULES if is_equation(rule.duration)]
    assert {name for equation in equations for name in compile(equation, "", "eval").co_names} == set(TIMES)

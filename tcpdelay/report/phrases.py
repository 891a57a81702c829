"""Findings in words: sentences for the reports in the terminal, in Markdown and in HTML."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tcpdelay.accuracy.errors import WRONG_CALL, in_words
from tcpdelay.accuracy.throughput import RULE_OF_THUMB_UTILIZATION
from tcpdelay.advice.guideline import SourceFindings
from tcpdelay.ask import NotSettledError
from tcpdelay.declare import declarations
from tcpdelay.models.predict import COMPARED_PACKETS
from tcpdelay.quality.emodel import SMALLEST_USABLE_MOS
from tcpdelay.scenario.stack import Linux, Quic, transport_name
from tcpdelay.units import NOT_SETTLED, format_fraction, format_fraction_range, format_rate, format_time, quantile_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tcpdelay.advice.guideline import Findings
    from tcpdelay.advice.judged_delays import JudgedDelays
    from tcpdelay.advice.recommendation import Effect, Recommendation, Status
    from tcpdelay.capture.estimate import PathEstimate
    from tcpdelay.quality.experience import Call
    from tcpdelay.quality.voice import VoiceQuality
    from tcpdelay.scenario.scenario import Target
    from tcpdelay.scenario.stack import Stack
    from tcpdelay.study.margins import Margin

STATUS: dict[Status, str] = {
    "set": "set it",
    "not a setting": "change the application",
    "default": "the default of a current Linux",
    "built in": "built into Linux",
    "gone": "no longer exists",
    "missing": "does not exist today",
}
"""The action that a rule requires on a current Linux; rules that need action come first."""

QUANTITY = {"loss": "Loss", "rtt": "Round-trip time", "bitrate": "Bitrate"}

_NEGLIGIBLE_TIME = 1e-6


def sentence(text: str) -> str:
    """Return `text` with an initial capital and a full stop; the name of an argument at its start keeps its case."""
    first = text.split(" ", 1)[0]
    start = text[:1] if "_" in first else text[:1].upper()
    return start + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def format_quantity(quantity: str, value: float) -> str:
    """Return a value of a margin's quantity, "loss", "rtt" or "bitrate", with its unit."""
    return {"loss": format_fraction, "rtt": format_time, "bitrate": format_rate}[quantity](value)


def headline(guideline: JudgedDelays) -> str:
    """Return the verdict in a few words."""
    spare = guideline.target.limit - guideline.quantile
    if not guideline.answer.answered:
        return "Uncertain: the simulation does not settle"
    if guideline.verdict == "uncertain":
        cause = "the measurement does not settle it" if guideline.settled else "the prediction does not settle it"
        return f"Uncertain: {cause}"
    if guideline.verdict == "works":
        room = "nothing" if spare < _NEGLIGIBLE_TIME else format_time(spare)
        return f"Works, with {room} to spare"
    if math.isinf(guideline.quantile):
        lost = guideline.answer.sustainable
        return f"Does not work: {'too many datagrams are lost' if lost else cannot_carry(guideline.stack)}"
    return f"Does not work: {format_time(-spare)} too late"


def cannot_carry(stack: Stack) -> str:
    """Return in words that a transport cannot carry the flow."""
    return f"{transport_name(stack)} cannot carry this flow"


def verdict(found: Findings | SourceFindings) -> list[str]:
    """Return the sentences that explain the headline; the first compares the target's quantile with its limit."""
    target, answer = found.target, found.answer
    share, limit = format_fraction(target.quantile), format_time(target.limit)
    if isinstance(found, SourceFindings):
        endless = (
            f"{share} of the messages should arrive within {limit}, but the delay never settles: messages pile up in "
            f"the send buffer for as long as the source sends its {format_rate(found.source.mean_bitrate)}."
        )
        return [
            *outcome(found, (endless,)),
            *(_latest_kind(found) if math.isfinite(found.quantile) else []),
            "These delays are the chain's; delays by kind, margins, effects and delays at other losses are simulated."
            if answer.method == "chain"
            else "The rate of this source is not constant, so all figures are simulated.",
            *doubts(found),
        ]
    by_model = "" if found.settled else f" by the {answer.method}"
    endless = (
        f"{share} of the packets should arrive within {limit}, but{by_model} the delay never settles: packets pile up "
        "in the send buffer for as long as the flow sends."
    )
    sentences = outcome(found, (endless, _capacity(found)))
    if math.isfinite(found.quantile) and not answer.sustainable:
        sentences.append(
            "But TCP cannot carry this flow: the figures depend on where the published chain cuts off its backlog."
        )
    if answer.method == "simulation":
        sentences.append(_simulated(found))
    return sentences + doubts(found)


def _latest_kind(found: SourceFindings) -> list[str]:
    """Return in a sentence which kind of message is late most often; nothing if no message is late."""
    late = {kind: delays.late_fraction(found.target.limit) for kind, delays in found.by_kind.items()}
    kind = max(late, key=lambda each: late[each], default="")
    if not late.get(kind):
        return []
    return [f"Of the kind “{kind}”, {format_fraction(late[kind])} come later than the limit."]


def outcome(judged: JudgedDelays, endless: Sequence[str]) -> list[str]:
    """Return in sentences how late packets or messages arrive, compared with the limit."""
    target, refusal, messages = judged.target, judged.answer.refusal, judged.messages
    share, limit = format_fraction(target.quantile), format_time(target.limit)
    if isinstance(refusal, NotSettledError):
        return [
            f"{share} of the {messages} should arrive within {limit}. After {refusal.packets} simulated {messages} the "
            f"delay still depends on how many are simulated: {refusal.in_words}."
        ]
    if math.isinf(judged.quantile) and not judged.answer.sustainable:
        return list(endless)
    if math.isinf(judged.quantile):
        return [
            f"{share} of the {messages} should arrive within {limit}, but {format_fraction(judged.late_fraction)} are "
            "late or lost: a lost datagram is not sent again."
        ]
    allowed = allowed_lateness(judged) if judged.settled else ""
    missed = "are later than the limit, or lost" if math.isinf(judged.mean) else "come later than the limit"
    return [
        f"{share} of the {messages} arrive within {format_time(judged.quantile)}; the limit is {limit}. "
        f"{format_fraction(judged.late_fraction)} of the {messages} {missed}{allowed}."
    ]


def doubts(judged: JudgedDelays) -> list[str]:
    """Return why a verdict is uncertain, and what would settle it; nothing if the verdict is certain."""
    if not judged.answer.answered:
        return [deciding(judged)]
    if not judged.settled:
        allowed = f"{format_fraction_range(judged.late_range)} late {judged.messages}"
        return [
            f"The expected error of the prediction allows {allowed}, and the target allows "
            f"{format_fraction(1 - judged.target.quantile)}. {deciding(judged)}"
        ]
    if judged.verdict != "uncertain":
        return []
    return [
        f"On the path as measured it {'works' if judged.works else 'does not work'}, but not everywhere in the "
        "95 % confidence interval of the measurement. Measure for longer to be sure."
    ]


def settled(written: Callable[[float], str], figure: float) -> str:
    """Return a figure in words; "not settled" if it is NaN."""
    return NOT_SETTLED if math.isnan(figure) else written(figure)


def allowed_lateness(guideline: JudgedDelays) -> str:
    """Return in words the late packets that the expected error allows; nothing if the error makes no difference."""
    low, high = guideline.late_range
    if format_fraction(low) == format_fraction(high):
        return ""
    return f"; the expected error allows {format_fraction_range(guideline.late_range)}"


def _simulated(guideline: Findings) -> str:
    """Return in a sentence what is simulated."""
    reason = sentence(guideline.simulated_because).rstrip(".")
    chains = [f"the {QUANTITY[margin.quantity].lower()}" for margin in guideline.margins if margin.method == "chain"]
    figures = f"all figures except the margin of {' and that of '.join(chains)}" if chains else "all figures"
    each = "each other margin" if chains else "each margin"
    packets = "" if len(chains) == len(guideline.margins) else f": {each} with up to {COMPARED_PACKETS} packets"
    return f"{reason}, so {figures} are simulated{packets}. The critical loss and the time with a backlog are left out."


def deciding(guideline: JudgedDelays) -> str:
    """Return in words what would settle a verdict that a prediction leaves open."""
    other_bitrate = "A capture of the flow on this path would decide, or another bitrate: see the margins."
    if not guideline.answer.answered:
        return other_bitrate
    if guideline.answer.method == "simulation":
        return "A capture of the flow on this path would decide, or another limit."
    return "A simulation may decide: `--method simulation`."


def _capacity(guideline: Findings) -> str:
    """Return in words the offered bitrate and the largest bitrate that the transport can carry."""
    carrier = transport_name(guideline.stack)
    offered, most = format_rate(guideline.flow.bitrate), guideline.largest_sustainable_rate
    if most.edge is None:
        return f"The flow offers {offered}; no lower rate was found that {carrier} carries here."
    return f"The flow offers {offered}; {carrier} carries up to {format_quantity(most.quantity, most.edge)} here."


def format_edge(margin: Margin) -> str:
    """Return the edge of a margin with its unit; "or more" if larger values may work too."""
    if margin.edge is None:
        return "none found"
    return format_quantity(margin.quantity, margin.edge) + (" or more" if margin.at_least else "")


def within_error(quantity: str, certain: float | None, impossible: float | None) -> tuple[str, str]:
    """Return both ends of the range in which the expected error places a margin."""
    low, high = ("no value" if end is None else format_quantity(quantity, end) for end in (certain, impossible))
    return low, high


def room(margin: Margin, works: bool) -> str:
    """Return in words how much a quantity may grow, or how much it must shrink."""
    if margin.edge is None:
        return "a lower value alone does not help"
    edge = format_quantity(margin.quantity, margin.edge)
    if margin.edge == margin.now:
        return "at its edge"
    if not works:
        return f"{_percent(1 - margin.edge / margin.now)} less needed"
    if margin.at_least:
        return "no limit found"
    if edge == format_quantity(margin.quantity, margin.now):
        return "at its edge"
    if margin.now == 0:
        return f"up to {edge}"
    ratio = margin.edge / margin.now
    if ratio < 2:
        return f"{_percent(ratio - 1)} more"
    return f"{ratio:.2g} times as much" if ratio < 10 else f"{ratio:.0f} times as much"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else "more than 99 %"


def effect(found: Effect | None, target: Target, carrier: str = "TCP") -> str | None:
    """Return the effect of a rule on the target's quantile in words; None if the effect is not known.

    `carrier` is the name of the transport, "TCP" or "QUIC".
    """
    if found is None:
        return None
    said = _effect(found, target, carrier)
    return f"if {found.provided}: {said}" if said and found.provided else said


def _effect(found: Effect, target: Target, carrier: str) -> str | None:
    if found.basis == "unknown":
        return f"not computed: {found.reason}"
    if found.basis == "none":
        return "nothing to gain on a current Linux" if found.reason is None else f"nothing to gain: {found.reason}"
    if found.quantity == "late fraction":
        return _effect_on_lateness(found)
    if found.saves_up_to is not None:
        return f"saves up to {format_time(found.saves_up_to)} per packet"
    if found.without is None or found.with_rule is None:
        return None
    name, before, after = quantile_name(target.quantile), format_time(found.without), format_time(found.with_rule)
    basis = f"({found.basis})"
    if math.isinf(found.without) and math.isinf(found.with_rule):
        return f"not enough alone: {carrier} still cannot carry the flow {basis}"
    if math.isinf(found.with_rule):
        return f"worse here: {carrier} could no longer carry the flow {basis}"
    reached = ", which meets the limit" if target.is_met_by(found.with_rule) > target.is_met_by(found.without) else ""
    if math.isnan(found.without):
        return f"the simulation settles then: {name} {after}{reached} {basis}"
    if math.isinf(found.without):
        return f"{carrier} can then carry the flow: {name} {after}{reached} {basis}"
    if before == after:
        return f"{name} stays at {after} {basis}"
    worse = ", worse here" if found.with_rule > found.without else ""
    return f"{name} {before} → {after}{reached}{worse} {basis}"


def _effect_on_lateness(found: Effect) -> str | None:
    """Return the effect of a rule on the share of late packets."""
    if found.without is None:
        return None
    if found.with_rule is None or found.at is None:
        return f"concerns {format_fraction(found.without)} of the packets, and those behind them"
    before, after = format_fraction(found.without), format_fraction(found.with_rule)
    return f"late at the limit {before}, at {format_time(found.at)} {after} ({found.basis})"


def why_not_to_do(rule: Recommendation, target: Target, carrier: str = "TCP") -> str:
    """Return in a line why there is nothing to do for a rule: the reason, and the effect if it is computed."""
    found = rule.effect
    told = (
        found is not None
        and found.reason is None
        and (found.basis in ("chain", "simulation") or (found.basis == "bound" and rule.place == "little gain"))
    )
    words = [rule.why, effect(found, target, carrier) if told or rule.why is None else None]
    return f"{rule.title}: {'; '.join(word for word in words if word)}"


def utilization(guideline: Findings) -> str:
    """Return in words whether the connection's utilization is below the rule of thumb of one third."""
    side = "below" if guideline.utilization <= RULE_OF_THUMB_UTILIZATION else "above"
    return f"{side} one third, the rule of thumb for little added delay"


def measured_loss(estimate: PathEstimate, predicted_with: float) -> str:
    """Return the measured loss with its confidence interval, and the loss of the prediction."""
    low, high = (format_fraction(end) for end in estimate.loss_interval)
    predicted = f"Predicted with {format_fraction(predicted_with)}."
    counts = f"{estimate.lost} of {estimate.sent} lost"
    if estimate.lost == 0:
        return f"{counts}, which is not 0 %: up to {high} fits with it (95 % confidence). {predicted}"
    return f"{counts} = {format_fraction(estimate.loss)}, 95 % confidence interval {low} to {high}. {predicted}"


def measured_rtt(estimate: PathEstimate) -> str:
    """Return the measured round-trip time with its confidence interval, if there is one."""
    mean = format_time(estimate.rtt)
    if estimate.rtt_interval is None:
        return f"Smoothed RTT {mean}, without a confidence interval."
    low, high = (format_time(end) for end in estimate.rtt_interval)
    return f"Mean {mean}, 95 % confidence interval {low} to {high}."


def stack_words(stack: Stack) -> str:
    """Return the profile of the transport and its settings."""
    words = [
        f"{name.replace('_', ' ')} {declared.written(value)}"
        for name, declared in declarations(type(stack)).items()
        if (value := getattr(stack, name)) is not None and name not in _unused(stack)
    ]
    name = transport_name(stack) if isinstance(stack, Quic) else type(stack).__name__
    return f"{name}: {', '.join(words)}"


def _unused(stack: Stack) -> tuple[str, ...]:
    """Return the names of the settings that do not matter with the others."""
    return ("group",) if isinstance(stack, Quic) and stack.delivery != "stream_per_group" else ()


def call(rated: Call) -> tuple[str, ...]:
    """Return the method that rates a call and its limits, and whether no playout delay makes the call usable."""
    how = "approximately, " if rated.approximate else ""
    scale = "wideband" if rated.codec.wideband else "narrowband"
    method = (
        f"Mean opinion score, 1 to 4.5, {how}by the {scale} E-model for {rated.codec.name}. Packets that come after "
        "their playout count as lost. Late packets are assumed to be independent of one another."
    )
    if rated.usable:
        return (method,)
    return (
        method,
        f"No playout delay makes this call usable: its best score is {score(rated, rated.best)}, and ITU-T G.107 "
        f"recommends no connection below {SMALLEST_USABLE_MOS:.2f}.",
    )


def score(rated: Call, quality: VoiceQuality) -> str:
    """Return the mean opinion score of a call at one of its playout delays."""
    return ("about " if rated.approximate else "") + f"{quality.mos:.2f}"


def expected_error_in_full(found: JudgedDelays) -> str:
    """Return all that is known of the model's error in a sentence, for the end of the report."""
    return sentence(f"expected error: {in_words(found.expected_error, found.target.quantile)}")


def expected_error(guideline: Findings) -> str:
    """Return the model's error in similar scenarios in a sentence, for the explanation of the verdict."""
    error, answer = guideline.expected_error, guideline.answer
    if not answer.sustainable and answer.method == "simulation":
        return "In the simulation, the backlog grows over the whole time."
    if not answer.sustainable and isinstance(guideline.stack, Linux):
        if error.p90 < WRONG_CALL:
            return "In at least nine of ten similar scenarios, a simulation agrees that TCP cannot carry the flow."
        return "In some similar scenarios, TCP carries the flow in a simulation; see the end."
    if math.isnan(error.median):
        return "The model's error in such scenarios is not known; see the end."
    median = format_fraction(float(f"{error.median:.2g}"))
    return f"Expected error of {quantile_name(error.quantile)}: {median} (median); see the end."

"""The rules for a flow over QUIC.

No rule on settings of TCP holds for QUIC, which runs in the program: its settings are those of a library.

References
----------
.. [1] RFC 9000, sections 2.1 (streams), 13.2 (acknowledgements) and 18.2 (max_ack_delay).
.. [2] RFC 9002, section 6.2.1: the probe timeout contains max_ack_delay.
.. [3] RFC 9221: datagrams.
.. [4] W3C, WebTransport: createUnidirectionalStream, datagrams.
"""

from __future__ import annotations

from dataclasses import replace

from tcpdelay.advice.application_rules import APPLICATION_RULES
from tcpdelay.advice.rule import Effect, Rule, Settings, Situation, always
from tcpdelay.scenario.stack import Quic

EVIDENCE = "docs/quic.md"
SHORT_ACK_DELAY = 0.005
"""The `max_ack_delay` that is recommended [s]."""
STREAMS = "a unidirectional stream for each message, with the end of the stream in the same write"
DATAGRAMS = "the library's DATAGRAM frames (RFC 9221)"
ACK_DELAY = "the transport parameter max_ack_delay of the receiver, if its library has a setting for it"

(_BITRATE,) = (rule for rule in APPLICATION_RULES if rule.key == "bitrate")


def _delivery(s: Situation) -> str:
    """Return how messages travel now."""
    assert isinstance(s.stack, Quic)
    return s.stack.delivery


def _max_ack_delay(s: Situation) -> float:
    """Return the longest delay of an ACK [s]."""
    assert isinstance(s.stack, Quic)
    return s.stack.max_ack_delay


def _datagrams(s: Situation) -> Effect | None:
    """Return the effect of datagrams, which only an application can use that can do without a message."""
    effect = s.switch("delivery", _delivery(s), "datagram")
    return effect and replace(effect, provided="the application can do without the messages that are lost")


QUIC_RULES = (
    Rule(
        "delivery-per-message",
        "application",
        "Send each message on a stream of its own",
        "Messages on one stream wait for a lost message before them; messages on streams of their own do not.",
        "messages on streams that the receiver can use in any order",
        lambda s: _delivery(s) != "datagram",
        lambda s: s.switch("delivery", _delivery(s), "stream_per_message"),
        "not a setting",
        Settings(STREAMS, STREAMS, STREAMS, "WebTransport: `createUnidirectionalStream()` for each message"),
        EVIDENCE,
        stack_field=("delivery", "stream_per_message"),
        any_source=True,
    ),
    Rule(
        "datagrams",
        "application",
        "Send messages as datagrams (RFC 9221)",
        "A lost datagram is not sent again, and delays nothing; the message is lost.",
        "messages that are of no use when late",
        always,
        _datagrams,
        "not a setting",
        Settings(DATAGRAMS, DATAGRAMS, DATAGRAMS, "WebTransport: write to `datagrams`"),
        EVIDENCE,
        stack_field=("delivery", "datagram"),
        any_source=True,
    ),
    Rule(
        "max-ack-delay",
        "tcp",
        "Shorten max_ack_delay at the receiver",
        "The sender learns of a loss from ACKs, and its probe timeout waits for max_ack_delay beyond the RTT.",
        f"a max_ack_delay above {SHORT_ACK_DELAY * 1e3:g} ms, and messages that are sent again",
        lambda s: _max_ack_delay(s) > SHORT_ACK_DELAY and _delivery(s) != "datagram",
        lambda s: s.switch("max_ack_delay", _max_ack_delay(s), SHORT_ACK_DELAY),
        "set",
        Settings(ACK_DELAY, ACK_DELAY, ACK_DELAY),
        EVIDENCE,
        any_source=True,
    ),
    replace(
        _BITRATE,
        title="Send no more than QUIC carries in time",
        reason="Below about one third of the fair rate of TCP Reno, which NewReno of QUIC follows, backlogs are rare.",
        evidence=EVIDENCE,
    ),
)
"""Rules for the application, and for the library of QUIC that it uses."""

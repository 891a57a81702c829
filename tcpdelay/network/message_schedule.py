"""The messages of a source on a shared link, which become known to the compiled code piece by piece."""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpdelay.models.simulator.records import NEVER
from tcpdelay.models.tcp import SECOND
from tcpdelay.network.records import AHEAD
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.sources.message_stream import BLOCK, Source


class MessageSchedule:
    """The schedule of a flow: at any time between one and two blocks of messages ahead, so that memory stays bounded.

    Parameters
    ----------
    source : Source
        The source.
    seed : int
        Seed of the messages, 0 or more.
    flow : record
        The flow, of type `tcpdelay.network.records.FLOW`; its `first_write` is the time 0 of the source.
    """

    def __init__(self, source: Source, seed: int, flow: Any) -> None:
        self._source, self._flow = source, flow
        self._blocks, self._ended = source.blocks(seed), False
        self.fill()
        flow.next_write = flow.schedule[0].written if flow.messages_known else NEVER

    def fill(self) -> int:
        """Schedule further messages; return the time by the link's clock up to which all messages are known [us].

        Raises
        ------
        InvalidValueError
            If the source writes more messages at one time than a block holds.
        """
        flow = self._flow
        while not self._ended and flow.messages_known - flow.messages_taken <= BLOCK:
            self._append()
        if self._ended:
            return NEVER
        last = int(flow.schedule[(flow.messages_known - 1) % AHEAD].written)
        if last == flow.schedule[flow.messages_taken % AHEAD].written:
            raise InvalidValueError("flow", self._source, f"write at most {BLOCK} messages in a microsecond")
        return last + int(flow.access_delay)

    def _append(self) -> None:
        """Append a block of messages that are written before the flow stops."""
        flow = self._flow
        block = next(self._blocks, None)
        if block is None:
            self._ended = True
            return
        written = flow.first_write + np.rint(block["time"] * SECOND).astype(np.int64)
        count = int(np.searchsorted(written, flow.stop))
        self._ended = count < block.size
        places = np.arange(flow.messages_known, flow.messages_known + count) % AHEAD
        values = {"written": written, "length": block["size"], "kind": block["kind"]}
        for name, of_block in values.items():
            flow.schedule[name][places] = of_block[:count]
        flow.messages_known += count

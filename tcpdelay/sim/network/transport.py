"""The interface of a transport: the protocol that carries the messages of a flow over the shared link.

A transport consists of a state record, a function that prepares the record, and compiled functions (kernels). The
engine knows nothing else about it. To add a transport, write these parts, declare a `Stack` with the settings, and
call `tcpdelay.sim.network.transports.register`; no module of the engine changes.

Kernels are functions under `numba.njit(cache=True)`. The engine calls them by address, so it is compiled once for all
transports, a transport is compiled when a simulation first uses it, and each of them is cached on its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from llvmlite import ir
from numba import config, from_dtype, types
from numba.core import cgutils
from numba.extending import intrinsic

from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.network.bottleneck import LINK, SharedPath
from tcpdelay.sim.network.records import COUNTERS, FLOW, NETWORK_WIRE
from tcpdelay.sim.queues.waiting import PACKET

Feature = Literal[
    "constant rate",
    "messages",
    "sections",
    "deadlines",
    "bulk",
    "transfers",
    "dispatching",
    "ecn",
    "l4s",
    "send buffer",
    "notsent_lowat",
    "forging",
]
"""A kind of source that a transport can carry, or an option of a source that it honours."""
Kernel = Callable[..., Any]

INTERPRETED = bool(getattr(config, "DISABLE_JIT", False))
"""Whether kernels run in Python (NUMBA_DISABLE_JIT=1), which is slow, for debugging."""
IP_HEADER, UDP_HEADER, TCP_HEADER, TIMESTAMPS = 20, 8, 20, 12
IN_TIMEOUT = 1 << 50
"""Added to the send queue of a connection that waits for a retransmission timeout."""

_RECORDS = {"flow": FLOW, "wire": NETWORK_WIRE, "link": LINK, "samples": COUNTERS, "packet": PACKET}
_SIGNATURES = {
    "next_time": ("flow connection wire", types.int64),
    "step": ("flow connection wire link samples", types.int64),
    "deliver": ("flow connection wire link samples packet", types.int64),
    "begin": ("flow connection", types.none),
    "end": ("flow connection", types.none),
    "send_queue": ("flow connection", types.int64),
    "delay_of_next": ("flow connection", types.int64),
    "write": ("flow connection wire time size pieces", types.int64),
    "transmit": ("flow connection wire link samples", types.none),
}
"""Parameters and type of the result of each kernel."""
CARRIER = np.dtype([(name, np.int64) for name in ("connection", "initial", "size", *_SIGNATURES)])
"""What the engine needs to call a flow's transport.

`connection` and `initial` are the addresses of the connection's state and of the state that a new connection starts
from, `size` is their size [bytes]. The other fields are the addresses of the transport's kernels, 0 if it has none.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Transport:
    """A transport, as the engine of the shared link uses it.

    The arguments of the kernels are records: `flow` of type `tcpdelay.sim.network.records.FLOW`, `connection` of type
    `state`, `wire` of type `tcpdelay.sim.network.records.NETWORK_WIRE`, `link` of type
    `tcpdelay.sim.network.bottleneck.LINK` and `samples` of type `tcpdelay.sim.network.records.COUNTERS`. Times are
    whole microseconds.
    """

    state: np.dtype[Any]  # Record type of a connection; all fields are zero before `prepare`
    header: int  # Bytes of all headers of a packet from IP on
    # Sources that the transport carries, and options of sources that it honours. A stack that carries sections or bulk
    # data must have an attribute `mss` [bytes].
    features: frozenset[Feature]
    # ``prepare(stack, path, flow, connection, phase)`` sets the fields of a connection, in Python. The fields of `flow`
    # are set already. `phase` is a random time [us] by which the clock of the host is shifted.
    prepare: Callable[[Any, SharedPath, Any, Any, int], None]
    # ``next_time(flow, connection, wire)`` returns when the next event of the flow is due: the arrival of an
    # acknowledgement, a timer, or `flow.next_write`.
    next_time: Kernel
    # ``step(flow, connection, wire, link, samples)`` processes this event, sends what may be sent then, and returns
    # when the following event is due, as `next_time` does. Segments are sent with `tcpdelay.sim.network.records.cross`.
    # It returns when a segment reaches the receiver, so `step` can process the arrival as well: put an acknowledgement
    # into `wire`, and count messages that are read with `note_read`.
    step: Kernel
    # ``deliver(flow, connection, wire, link, samples, packet)`` processes a packet for which `cross_or_wait` returned
    # `WAITING`, when it leaves the managed queue or is dropped there, and returns when the next event is due. `packet`
    # is of type `tcpdelay.sim.queues.waiting.PACKET`; `tcpdelay.sim.network.records.leave` returns its arrival. Needed
    # for managed queues. Packets of a flow leave in the order of sending.
    deliver: Kernel | None = None
    # ``end(flow, connection)`` adds the counts of a closed connection to the counts of the flow.
    end: Kernel | None = None
    # ``begin(flow, connection)`` starts a new connection after its handshake, which took `flow.round_trip`; needed for
    # transfers.
    begin: Kernel | None = None
    # ``send_queue(flow, connection)`` returns the data written but not acknowledged, plus `IN_TIMEOUT` while the
    # connection waits for a retransmission timeout. This kernel and the following ones are needed for dispatching.
    send_queue: Kernel | None = None
    # ``delay_of_next(flow, connection)`` returns the expected delay of the next message [us], or
    # `tcpdelay.sim.records.NEVER` if the send buffer has no room for it.
    delay_of_next: Kernel | None = None
    # ``write(flow, connection, wire, time, size, pieces)`` takes a message into the send buffer, and returns where it
    # ends in the stream.
    write: Kernel | None = None
    # ``transmit(flow, connection, wire, link, samples)`` sends the segments that the window allows.
    transmit: Kernel | None = None

    @cached_property
    def addresses(self) -> dict[str, int]:
        """Addresses of the compiled kernels by name, 0 for a kernel that the transport does not have."""
        return {name: self._address(name) for name in _SIGNATURES}

    def _address(self, name: str) -> int:
        """Compile a kernel for the types of its records, or load it from the cache; return its address."""
        kernel: Any = getattr(self, name)
        if kernel is None:
            return 0
        if INTERPRETED:
            _KERNELS[id(kernel)] = kernel, self.state
            return id(kernel)
        parameters, result = _SIGNATURES[name]
        records = _RECORDS | {"connection": self.state}
        signature = tuple(
            from_dtype(records[parameter]) if parameter in records else types.int64 for parameter in parameters.split()
        )
        kernel.compile(signature)
        compiled = kernel.overloads[signature]
        if compiled.signature.return_type != result:
            raise TypeError(f"kernel {name} must return {result}, returns {compiled.signature.return_type}")
        return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def segment_size(stack: Stack) -> int:
    """Return the size of a full segment of a stack [bytes]."""
    return int(stack.mss)  # type: ignore[attr-defined]


def _kernel_call(result: Any) -> Callable[..., Any]:
    """Return the typing function of a call to a kernel at an address, with numba's calling convention."""

    def type_call(typing_context: Any, address: Any, flow: Any, connection: Any, others: Any) -> Any:
        argument_types = (flow, types.voidptr, *(types.int64 if isinstance(t, types.Integer) else t for t in others))

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            address, flow, connection, others = values
            arguments = [flow, builder.inttoptr(connection, cgutils.voidptr_t)]
            for index, given in enumerate(signature.args[3]):
                value = builder.extract_value(others, index)
                arguments.append(context.cast(builder, value, given, argument_types[index + 2]))
            function_type = context.call_conv.get_function_type(result, argument_types)
            function = builder.inttoptr(address, function_type.as_pointer())
            status, value = context.call_conv.call_function(builder, function, result, argument_types, arguments)
            with builder.if_then(status.is_error, likely=False):
                context.call_conv.return_status_propagate(builder, status)
            return value

        return result(types.int64, flow, types.int64, others), generate

    return type_call


_KERNELS: dict[int, tuple[Kernel, np.dtype[Any]]] = {}
"""Kernels and the types of their states by address, with NUMBA_DISABLE_JIT=1."""


def _interpret(address: int, flow: Any, connection: int, others: tuple[Any, ...]) -> Any:
    """Call a kernel in Python."""
    kernel, state = _KERNELS[int(address)]
    memory: Any = (ctypes.c_char * state.itemsize).from_address(int(connection))
    return kernel(flow, np.frombuffer(memory, state).view(np.recarray)[0], *others)


call_for_number: Any = _interpret if INTERPRETED else intrinsic(_kernel_call(types.int64))
"""Calls a kernel that returns an integer: ``call_for_number(address, flow, connection, others)``.

`address` and `connection` are addresses of a `CARRIER`, `others` is the tuple of the kernel's further arguments.
"""
call_for_effect: Any = _interpret if INTERPRETED else intrinsic(_kernel_call(types.none))
"""Calls a kernel that returns nothing."""


def _type_copy(typing_context: Any, destination: Any, source: Any, size: Any) -> Any:
    """Return signature and code of `copy_memory` for numba."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        copy: Any = cgutils.raw_memcpy
        destination, source = (builder.inttoptr(address, cgutils.voidptr_t) for address in values[:2])
        copy(builder, destination, source, values[2], ir.Constant(ir.IntType(64), 1))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), generate


copy_memory: Any = ctypes.memmove if INTERPRETED else intrinsic(_type_copy)
"""Copies memory: ``copy_memory(destination, source, size)``, two addresses and a size [bytes]."""

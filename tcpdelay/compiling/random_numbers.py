"""Random numbers in compiled code, from a generator of NumPy.

Compiled code calls the generator's C function by its address: a generator as an argument would need a reference count
at each call, which takes longer than most kernels of the simulator.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.record_types import Record


class Generator(Record):
    """A record that has the arguments of `uniform`."""

    next_double: int
    random_state: int


def generator_addresses(random: np.random.Generator) -> tuple[int, int]:
    """Return the addresses of the C function that draws a uniform number, and of its argument, the generator's state.

    The addresses are valid as long as the generator exists.
    """
    interface = random.bit_generator.ctypes
    return int(ctypes.cast(interface.next_double, ctypes.c_void_p).value or 0), int(interface.state_address)


def _type_call(typing_context: Any, function: Any, argument: Any) -> Any:
    """Call a function of type double (*)(void *)."""

    def generate(context: Any, builder: Any, signature: Any, addresses: Any) -> Any:
        function_type = ir.FunctionType(ir.DoubleType(), [cgutils.voidptr_t])
        function = builder.inttoptr(addresses[0], function_type.as_pointer())
        return builder.call(function, [builder.inttoptr(addresses[1], cgutils.voidptr_t)])

    return types.float64(types.int64, types.int64), generate


def _call_in_python(function: int, argument: int) -> float:
    """Call the function from Python, where NUMBA_DISABLE_JIT=1 is set."""
    return float(ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)(int(function))(int(argument)))


_call: Any = _call_in_python if config.DISABLE_JIT else intrinsic(_type_call)  # type: ignore[attr-defined]


@kernel()
def uniform(next_double: int, state: int) -> float:
    """Return the generator's next number, uniformly distributed from 0 to below 1, as `Generator.random` does."""
    return float(_call(next_double, state))

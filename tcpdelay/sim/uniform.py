"""Uniform random numbers of a NumPy generator in compiled code, which is given the address of its function.

Compiled functions count references to a generator, as to an array, at each call, which takes longer than most of what
they do here. Addresses are plain numbers.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


def generator_addresses(random: np.random.Generator) -> tuple[int, int]:
    """Return the addresses of the function that draws a uniform number, and of its argument, the generator's state.

    They are valid as long as the generator is.
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


_call: Any = intrinsic(_type_call)


@njit(cache=True)
def uniform(next_double: int, state: int) -> float:
    """Return the generator's next number, evenly distributed from 0 to below 1: what `Generator.random` would return.

    Examples
    --------
    >>> random, twin = np.random.default_rng(1), np.random.default_rng(1)
    >>> uniform(*generator_addresses(random)) == twin.random()
    True
    """
    return float(_call(next_double, state))

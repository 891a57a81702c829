"""How kernels are compiled that allocate nothing: they need not count references to what they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit
from numba.core.cpu import CPUTargetOptions

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def allocation_free(fastmath: frozenset[str] = frozenset()) -> Callable[[Kernel], Kernel]:
    """Return a decorator that compiles and caches a kernel which makes no array.

    Counting references takes atomic instructions at every access to an array of a record: half of the time of what
    collects the delays. Numba's switch for that is not a documented one; without it kernels are slower, and as right.

    Parameters
    ----------
    fastmath : set of str
        Freedoms of LLVM with floating-point arithmetic, such as "reassoc".

    Examples
    --------
    >>> import numpy as np
    >>> from tcpdelay.chain.sweep import total  # which is compiled so
    >>> float(total(np.array([1.0, 3.0])))
    4.0
    """
    options: dict[str, Any] = {"fastmath": set(fastmath)} if fastmath else {}
    if hasattr(CPUTargetOptions, "_nrt"):
        options["_nrt"] = False
    decorate: Callable[[Kernel], Kernel] = njit(cache=True, **options)
    return decorate

"""How kernels are compiled: one variant each, without needless work, and not silently; or run as plain Python.

With the environment variable NUMBA_DISABLE_JIT=1 kernels are plain Python functions, which a debugger can enter and a
coverage tool can measure.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba.core import config, event, types
from numba.core.cpu import CPUTargetOptions
from numba.extending import overload
from numpy.typing import NDArray

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

QUIET_TIME = 2.0
"""Time that compilation may take in one process before the user is told [s]."""
EXPECTED_TIMES = (
    ("tcpdelay.models.linux", 35),
    ("tcpdelay.models.published", 10),
    ("tcpdelay.models.simulator", 15),
    ("tcpdelay.network", 30),
    ("tcpdelay", 10),
)
"""About how long the kernels of a package take to compile, by the package of the first kernel that is called [s]."""


def kernel(*, nogil: bool = False) -> Callable[[Kernel], Kernel]:
    """Return a decorator that compiles a function, once for all calls with the same types, and caches it on disk.

    Parameters
    ----------
    nogil : bool
        Whether other threads of Python may run meanwhile.

    Examples
    --------
    >>> from tcpdelay.models import tcp
    >>> reduced_window = kernel()(tcp.reduced_window)
    >>> reduced_window(10, True)
    7
    """
    options: dict[str, Any] = {"nogil": True} if nogil else {}
    return _compiled(options)


def allocation_free(fastmath: frozenset[str] = frozenset()) -> Callable[[Kernel], Kernel]:
    """Return a decorator that compiles and caches a kernel which makes no array.

    Counting references takes atomic instructions at every access to an array of a record: half of the time of what
    collects the delays. Numba's switch for that is not documented; without it kernels are slower, and as right.

    Parameters
    ----------
    fastmath : set of str
        Freedoms of LLVM with floating-point arithmetic, such as "reassoc".

    Examples
    --------
    >>> from tcpdelay.models.solver.sweeps import total
    >>> float(total(np.array([1.0, 3.0])))
    4.0
    """
    options: dict[str, Any] = {"fastmath": set(fastmath)} if fastmath else {}
    if hasattr(CPUTargetOptions, "_nrt"):
        options["_nrt"] = False
    return _compiled(options)


def _compiled(options: dict[str, Any]) -> Callable[[Kernel], Kernel]:
    def decorate(function: Kernel) -> Kernel:
        compiled: Any = njit(cache=True, **options)(function)
        if not config.DISABLE_JIT:  # type: ignore[attr-defined]
            _compile_once(compiled)
        return compiled  # type: ignore[no-any-return]

    return decorate


def _compile_once(dispatcher: Any) -> None:
    """Let compiled code call a kernel with the type of a constant, not with a type that holds the constant's value.

    Otherwise Numba compiles a kernel anew for every constant that it is called with. If a later Numba no longer calls
    this method, kernels have several variants again, and their results stay the same.
    """
    resolve, unliteral = dispatcher.get_call_template, cast(Any, types.unliteral)

    def resolve_without_constants(arguments: Any, keywords: Any) -> Any:
        return resolve(
            tuple(unliteral(argument) for argument in arguments),
            {name: unliteral(argument) for name, argument in keywords.items()},
        )

    dispatcher.get_call_template = resolve_without_constants


def records(count: int, record: np.dtype[np.void]) -> Any:
    """Return an array of `count` records that are all zero, whose fields are attributes.

    Compiled code reaches the fields of every structured array as attributes; plain Python only those of this array.

    Examples
    --------
    >>> points = records(2, np.dtype([("x", np.int64), ("y", np.int64)]))
    >>> points.x[1] = 3
    >>> int(points[1].x), points["x"].tolist()
    (3, [0, 3])
    """
    zeros: NDArray[np.void] = np.zeros(count, record)
    return zeros.view(np.recarray)


@overload(records)
def _compiled_records(count: Any, record: Any) -> Callable[[Any, Any], Any]:
    def zeros(count: Any, record: Any) -> Any:
        return np.zeros(count, record)

    return zeros


class _CompilationNotice(event.Listener):
    """Tells the user, once per process, that kernels are being compiled, as soon as that has taken `QUIET_TIME`.

    Numba reports the compilation of a kernel within that of the kernel which calls it. It compiles in one thread at a
    time; the line is printed by another thread, while the compilation goes on.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._began = 0.0
        self._spent = 0.0
        self._timer: threading.Timer | None = None
        self._told = False

    def on_start(self, event: event.Event) -> None:
        """Note that the compilation of a kernel begins."""
        module = str(event.data["dispatcher"].py_func.__module__)
        self._depth += 1
        if self._depth > 1 or self._told or not f"{module}.".startswith("tcpdelay."):
            return
        self._began = time.monotonic()
        self._timer = threading.Timer(max(QUIET_TIME - self._spent, 0.0), self._tell, [module])
        self._timer.daemon = True
        self._timer.start()

    def on_end(self, event: event.Event) -> None:
        """Note that the compilation of a kernel has ended."""
        self._depth -= 1
        if self._depth == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._spent += time.monotonic() - self._began

    def _tell(self, module: str) -> None:
        self._told = True
        expected = next(seconds for package, seconds in EXPECTED_TIMES if module.startswith(package))
        line = f"tcpdelay: compiling for this machine, once, about {expected} s"
        if sys.stderr is not None:
            # On a terminal the line replaces what shows the progress.
            print(f"\r\x1b[K{line}" if sys.stderr.isatty() else line, file=sys.stderr, flush=True)


event.register("numba:compile", _CompilationNotice())  # type: ignore[no-untyped-call]

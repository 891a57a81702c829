"""How kernels are compiled; `stored_kernels` says where they are stored."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba.core import config, event, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import AnalysisPass, register_pass
from numba.core.cpu import CPUTargetOptions
from numba.core.dispatcher import Dispatcher
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import AnnotateTypes
from numba.extending import overload
from numpy.typing import NDArray

from tcpdelay.compiling.stored_kernels import KernelCache, is_compiled, unusable

# How kernels are compiled: one variant each, without needless work, and not silently; or run as plain Python.
#
# With the environment variable NUMBA_DISABLE_JIT=1 kernels are plain Python functions, which a debugger can enter and a
# coverage tool can measure.
#
# Compiling the kernels of a chain takes as long as some hundred small predictions in plain Python. Until the kernels
# are in the cache, single predictions therefore run as plain Python, for `INTERPRETED_TIME` in each process. After
# that, two processes compile side by side.
#
# A kernel that Python calls is compiled with all kernels below it as one piece of code, and stored in the cache.

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
Result = TypeVar("Result")

QUIET_TIME = 2.0
"""Time that compilation may take in one process before the user is told [s]."""
EXPECTED_TIMES = (
    ("tcpdelay.chain.linux", "the chain of Linux", 15),
    ("tcpdelay.chain.published", "the published chain", 10),
    ("tcpdelay.sim.quic", "the simulator of QUIC", 20),
    ("tcpdelay.sim.network", "the simulator of shared links", 20),
    ("tcpdelay.sim", "the simulator", 10),
    ("tcpdelay", "the solver", 10),
)
"""Packages of kernels, their names for the user, and about how much processor time their compilation takes if the first
kernel that is called belongs to them [s]."""
LEAST_SHARE = 0.05
"""Smallest share of a processor that an estimate of the time assumes."""

INTERPRETED_TIME = 5.0
"""Time for which the kernels of a process may run as plain Python before they are compiled [s]."""


def cached(function: Any, options: dict[str, Any]) -> Any:
    """Return the compiled function, which is looked up in the package and in the cache before it is compiled."""
    compiled = njit(**options)(function)
    if isinstance(compiled, Dispatcher):
        compiled._cache = KernelCache(function)  # type: ignore[attr-defined]
    return compiled


def kernel(*, nogil: bool = False, joins: bool = False) -> Callable[[Kernel], Kernel]:
    """Return a decorator that compiles a function, once for all calls with the same types, and caches it on disk."""
    options: dict[str, Any] = {"nogil": True} if nogil else {}
    return _compiled(options, joins)


def allocation_free(fastmath: frozenset[str] = frozenset(), inlined: bool = False) -> Callable[[Kernel], Kernel]:
    """Return a decorator that compiles and caches a kernel which makes no array.

    Without Numba's undocumented switch `_nrt`, counting references takes half of the time of the kernels that collect
    delays: an atomic instruction at every access to an array of a record. The results are the same. A kernel that is
    `inlined` becomes a part of its callers' code: a call copies each field of each tuple and array among its arguments.
    """
    options: dict[str, Any] = {"fastmath": set(fastmath), "forceinline": inlined}
    if hasattr(CPUTargetOptions, "_nrt"):
        options["_nrt"] = False
    return _compiled(options)


def _compiled(options: dict[str, Any], joins: bool = False) -> Callable[[Kernel], Kernel]:
    # No kernel is called from C, so Numba need not compile a function for such calls.
    options = {"no_cfunc_wrapper": True, **options}

    def decorate(function: Kernel) -> Kernel:
        compiled = cached(function, options)
        if not config.DISABLE_JIT:  # type: ignore[attr-defined]
            compiled.__class__ = _Kernel
            compiled.joins = joins
        return compiled  # type: ignore[no-any-return]

    return decorate


class _PartLibrary(JITCodeLibrary):
    """LLVM code of a kernel as a part of its callers, neither optimised nor translated by itself."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


@register_pass(mutates_CFG=False, analysis_only=True)  # type: ignore[no-untyped-call]
class _WritePart(AnalysisPass):
    """A step of Numba's compiler: the next step, which writes LLVM code, writes it into a `_PartLibrary`."""

    _name = "write_part"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def run_pass(self, state: Any) -> bool:
        """Set the library of the kernel that is being compiled; its address is not asked for."""
        library: Any = _PartLibrary
        state.library = library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        return False


class _PartCompiler(CompilerBase):
    """Numba's compiler with `_WritePart`."""

    def define_pipelines(self) -> list[Any]:
        """Return the steps of the compiler."""
        builder: Any = DefaultPassBuilder
        steps = builder.define_nopython_pipeline(self.state)
        steps.add_pass_after(_WritePart, AnnotateTypes)
        steps.finalize()
        return [steps]


class _Part(CPUDispatcher):
    """A kernel as other kernels call it: its code becomes a part of theirs.

    Numba by itself optimises and translates the code of a kernel again with every kernel that calls it.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__(function, targetoptions={**options, "no_cpython_wrapper": True}, pipeline_class=_PartCompiler)

    def add_overload(self, compiled: Any) -> None:
        """Keep compiled code. As it has no address, its description is the key by which callers find it."""
        self.overloads[tuple(compiled.signature.args)] = compiled
        target: Any = self.targetctx
        target.insert_user_function(compiled.fndesc, compiled.fndesc, [compiled.library])

    def get_overload(self, arguments: Any) -> Any:
        """Return the key of the code for arguments of these types."""
        compiled: Any = self.overloads[tuple(arguments)]
        return compiled.fndesc


class _TimeUsedUpError(Exception):
    """The time for plain Python is used up."""


class _Interpretation(threading.local):
    """What this thread computes, and until when its kernels run as plain Python."""

    single = False
    few = False
    until: float | None = None


_interpretation = _Interpretation()
_interpreted_time = 0.0
_first_compilation = threading.Lock()


_call_compiled = CPUDispatcher.__call__


class _Kernel(CPUDispatcher):
    """A kernel: compiled whole for calls from Python and as a `part` for calls from kernels, or interpreted."""

    joins: bool

    def __call__(self, *arguments: Any) -> Any:
        """Call the kernel from Python."""
        until = _interpretation.until
        if until is None:
            if self.joins and _interpretation.few and not (self.overloads or self._is_stored):
                return self.py_func(*arguments)
            return _call_compiled(self, *arguments)
        if time.monotonic() > until:
            raise _TimeUsedUpError
        return self.py_func(*arguments)

    @cached_property
    def part(self) -> Any:
        """The kernel as a part of others, made when it is first needed: most processes compile nothing."""
        return _Part(self.py_func, self.targetoptions)

    @cached_property
    def _is_stored(self) -> bool:
        """Whether the kernel was stored at its first call."""
        return is_compiled(self)

    def get_call_template(self, arguments: Any, keywords: Any) -> Any:
        """Compile the kernel for a call from another kernel, unless it is in the cache; return the types of the call.

        A kernel is compiled for the type of a constant, because Numba would compile it anew for each value.
        """
        unliteral = cast(Any, types.unliteral)
        callee: Any = super() if self._is_called_whole() else self.part
        return callee.get_call_template(
            tuple(unliteral(argument) for argument in arguments),
            {name: unliteral(argument) for name, argument in keywords.items()},
        )

    def get_overload(self, arguments: Any) -> Any:
        """Return the key of the code that other kernels call with arguments of these types."""
        callee: Any = super() if self._is_called_whole() else self.part
        return callee.get_overload(arguments)

    def _is_called_whole(self) -> bool:
        """Return whether other kernels call what is compiled for Python."""
        return not self.part.overloads and is_compiled(self)


@contextmanager
def single_prediction() -> Iterator[None]:
    """Let `interpreted_first` interpret kernels in this thread, because no second prediction follows at once.

    Plain Python rounds otherwise than compiled code, so tables and sweeps use only compiled kernels.
    """
    before, _interpretation.single = _interpretation.single, True
    try:
        yield
    finally:
        _interpretation.single = before


@contextmanager
def few_predictions() -> Iterator[None]:
    """Compile no kernel in this thread that only joins other kernels: compilation takes longer than it saves."""
    before, _interpretation.few = _interpretation.few, True
    try:
        yield
    finally:
        _interpretation.few = before


@contextmanager
def interpreted() -> Iterator[None]:
    """Run kernels in this thread as plain Python."""
    before, _interpretation.until = _interpretation.until, math.inf
    try:
        yield
    finally:
        _interpretation.until = before


@contextmanager
def compiled_elsewhere(function: Callable[[], object]) -> Iterator[None]:
    """Call a function, which compiles kernels, in another process meanwhile; this process finds them in the cache."""
    if getattr(sys, "frozen", False):
        # The executable of a frozen application is not Python.
        yield
        return
    module, name = function.__module__, function.__qualname__
    code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import {name}; {name}()"
    silent = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, "-c", code], stdin=silent, stdout=silent, stderr=silent)
    try:
        yield
        process.wait()
    finally:
        process.kill()
        process.wait()


def interpreted_first(
    compute: Callable[[], Result], last: Callable[..., Any], compile_first: Callable[[], object] | None = None
) -> Result:
    """Return `compute()`; in a single prediction, with kernels in plain Python while they are not compiled."""
    global _interpreted_time
    if is_compiled(last):
        return compute()
    time_left = INTERPRETED_TIME - _interpreted_time
    if _interpretation.single and time_left > 0:
        start = time.monotonic()
        _interpretation.until = start + time_left
        try:
            # Compiled kernels do not warn of overflows either.
            with np.errstate(all="ignore"):
                return compute()
        except _TimeUsedUpError:
            pass
        finally:
            _interpretation.until = None
            _interpreted_time += time.monotonic() - start
    if compile_first is not None:
        with _first_compilation:
            if not is_compiled(last):
                compile_first()
    return compute()


def records(count: int, record: np.dtype[np.void]) -> Any:
    """Return an array of `count` records, all zero, whose fields are attributes also for plain Python."""
    zeros: NDArray[np.void] = np.zeros(count, record)
    return zeros.view(np.recarray)


@overload(records)
def _compiled_records(count: Any, record: Any) -> Callable[[Any, Any], Any]:
    def zeros(count: Any, record: Any) -> Any:
        return np.zeros(count, record)

    return zeros


class _CollectionPause(event.Listener):
    """Keeps Python from looking for garbage while Numba compiles: it would find little, in an eighth of the time."""

    def __init__(self) -> None:
        self._depth = 0
        self._collects = False

    def on_start(self, event: event.Event) -> None:
        """Note that the compilation of a kernel begins."""
        self._depth += 1
        if self._depth == 1:
            self._collects = gc.isenabled()
            gc.disable()

    def on_end(self, event: event.Event) -> None:
        """Note that the compilation of a kernel has ended."""
        self._depth -= 1
        if self._depth == 0 and self._collects:
            gc.enable()


class _CompilationNotice(event.Listener):
    """Tells the user, once per process, that kernels are being compiled, as soon as that has taken `QUIET_TIME`.

    Events are nested: Numba compiles a kernel within the compilation of the kernel that calls it, in one thread.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._began = self._began_processor = 0.0
        self._spent = 0.0
        self._timer: threading.Timer | None = None
        self._told = False
        self.on_kernel: Callable[[], object] | None = None

    def on_start(self, event: event.Event) -> None:
        """Note that the compilation of a kernel begins."""
        module = str(event.data["dispatcher"].py_func.__module__)
        self._depth += 1
        if self.on_kernel is not None:
            self.on_kernel()
            return
        if self._depth > 1 or self._told or not f"{module}.".startswith("tcpdelay."):
            return
        self._began, self._began_processor = time.monotonic(), time.process_time()
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
        name, expected = next(
            (name, seconds) for package, name, seconds in EXPECTED_TIMES if module.startswith(package)
        )
        # Beside other work the compiler gets a share of a processor. The share so far is taken to stay.
        share = (time.process_time() - self._began_processor) / (time.monotonic() - self._began)
        seconds = round(expected / min(max(share, LEAST_SHARE), 1.0))
        # Another command may call other kernels of the same package.
        line = f"tcpdelay: compiling parts of {name}, about {seconds} s; each part is compiled once for this machine"
        if (reason := unusable()) is not None:
            line += f" ({reason})"
        if sys.stderr is not None:
            # On a terminal the line replaces what shows the progress.
            print(f"\r\x1b[K{line}" if sys.stderr.isatty() else line, file=sys.stderr, flush=True)


event.register("numba:compile", _CollectionPause())  # type: ignore[no-untyped-call]
_notice = _CompilationNotice()
event.register("numba:compile", _notice)  # type: ignore[no-untyped-call]


@contextmanager
def shown_by(on_kernel: Callable[[], object]) -> Iterator[None]:
    """Call a function whenever the compilation of a kernel begins, in place of the notice to the user."""
    _notice.on_kernel = on_kernel
    try:
        yield
    finally:
        _notice.on_kernel = None

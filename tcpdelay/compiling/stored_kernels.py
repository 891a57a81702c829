"""Where compiled kernels are stored, and when they are out of date.

A kernel is looked up in two places. The package's folder `compiled_kernels` holds kernels that were compiled when the
package was built: `make kernels` writes it, and wheels for one system and one Python carry it. The cache of Numba,
beside the sources or in the user's cache, holds what this machine compiled. A kernel that is in neither is compiled.

Kernels of the package are used only where they are right and safe: see `unusable`. They are compiled for the processors
of `CPU_NAME`, not for the processor that compiles them.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding
import numba
from numba.core import caching, codegen, config
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.environment import Environment, _rebuild_env, lookup_environment
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps

from tcpdelay.compiling.source_digest import PACKAGE, source_digest

FOLDER = PACKAGE / "compiled_kernels"
"""The kernels that were compiled when the package was built."""
STAMP = "stamp.json"
SWITCH = "TCPDELAY_KERNELS"
"""Environment variable: with the value `compile`, the kernels of the package are not used."""

CPU_NAME = "x86-64-v3"
CPU_FEATURES = (
    *("64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2"),
    *("sse3", "ssse3", "sse4.1", "sse4.2", "cx16", "sahf", "popcnt", "crc32"),
    *("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"),
)
"""LLVM's names of the features of x86-64-v3: processors of Intel since 2013 and of AMD since 2015.

Numba takes the features of the processor that compiles unless they are named; the name of the processor alone would
leave its AVX-512 on. (System V ABI for AMD64, version 1.0, table 3.1.)
"""
_DIGEST_SIZE = 16


@cache
def fingerprint() -> bytes:
    """Return `source_digest()`, which this process reads once."""
    return source_digest()


class Stamp(NamedTuple):
    """What the kernels of the package were compiled from, with and for; and the tag of a wheel with these kernels."""

    sources: str
    python: str
    numba: str
    llvmlite: str
    system: str
    features: tuple[str, ...]
    wheel: str


def stamp_here(features: tuple[str, ...] = CPU_FEATURES) -> Stamp:
    """Return the stamp of kernels that this process compiles for a processor with these features."""
    python = f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
    system = llvmlite.binding.get_process_triple()
    return Stamp(fingerprint().hex(), python, numba.__version__, llvmlite.__version__, system, features, _wheel_tag())


def unusable() -> str | None:
    """Return why kernels of the package are not used here, in words; None if they are used."""
    return _stamp()[1] or next(iter(_file_faults), None)


_file_faults: list[str] = []
"""Why single files of the package's kernels were not used in this process."""


@cache
def _stamp() -> tuple[bytes, str | None]:
    """Return the text of the package's stamp, and why none of its kernels can be used; None if they can."""
    if os.environ.get(SWITCH) == "compile":
        return b"", f"{SWITCH}=compile"
    try:
        if (fault := fault_of_mode(FOLDER.lstat(), FOLDER)) is not None:
            return b"", fault
        text = _read(STAMP)
        found = Stamp(**json.loads(text))
    except FileNotFoundError:
        return b"", "this installation has no compiled kernels"
    except _WritableError as error:
        return b"", str(error)
    except (OSError, ValueError, TypeError):
        return b"", f"{FOLDER / STAMP} cannot be read"
    return text, _difference(found)


def _difference(found: Stamp) -> str | None:
    """Return how kernels with this stamp differ from what this process needs; None if they are right."""
    here = stamp_here()
    for name, of in (("python", ""), ("numba", "Numba "), ("llvmlite", "llvmlite "), ("system", "")):
        theirs, ours = getattr(found, name), getattr(here, name)
        if theirs != ours:
            return f"the compiled kernels of this installation are for {of}{theirs}, not {ours}"
    if found.sources != here.sources:
        return "the stored kernels do not match this installation's sources"
    if lacking := sorted(set(found.features) - processor_features()):
        return f"this processor lacks {', '.join(lacking)}"
    settings: Any = config
    if settings.BOUNDSCHECK or settings.DEBUGINFO_DEFAULT or settings.OPT != 3:
        return "Numba's settings differ"
    return None


def processor_features() -> set[str]:
    """Return LLVM's names of the features that Numba may use in this process."""
    settings: Any = config
    named = settings.CPU_FEATURES
    text = codegen.get_host_cpu_features() if named is None else named  # type: ignore[no-untyped-call]
    return {feature[1:] for feature in text.split(",") if feature.startswith("+")}


class _WritableError(Exception):
    """A file of kernels could have been written by somebody whose code must not run here."""


def fault_of_mode(found: os.stat_result, file: Path) -> str | None:
    """Return in words why others can change a file or folder; None if only those can who can change the sources.

    Its group may write if this is the private group of the owner, the default of some distributions.
    """
    if os.name != "posix":
        return None
    if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
        return f"{file} is a link"
    if found.st_uid not in (0, os.geteuid(), Path(__file__).stat().st_uid):
        return f"{file} belongs to another user"
    group = bool(found.st_mode & stat.S_IWGRP) and not is_private_group(found.st_gid, found.st_uid)
    return f"others can write to {file}" if group or found.st_mode & stat.S_IWOTH else None


def is_private_group(group: int, user: int) -> bool:
    """Return whether a group has the user's name, and no other member."""
    import grp
    import pwd

    try:
        found, name = grp.getgrgid(group), pwd.getpwuid(user).pw_name
    except KeyError:
        return False
    return found.gr_name == name and not set(found.gr_mem) - {name}


def _read(name: str) -> bytes:
    """Return the content of a file of `FOLDER` that nobody else can write."""
    file = FOLDER / name
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as opened:
        if (fault := fault_of_mode(os.fstat(descriptor), file)) is not None:
            raise _WritableError(fault)
        return opened.read()


# A file holds all variants of a kernel: pickled results of Numba's compiler, by signature and digest of the code. It
# begins with a digest of the stamp and of the rest of the file: a file of another build is not used, nor half a file.


def _file_name(function: Callable[..., Any]) -> str:
    return f"{function.__module__.removeprefix('tcpdelay.')}.{function.__qualname__}.kernel".replace("<", "").replace(
        ">", ""
    )


def _code_digest(function: Callable[..., Any]) -> str:
    """Return a digest of a function's code and of what it takes from the function around it."""
    around = tuple(cell.cell_contents for cell in function.__closure__ or ())
    return hashlib.sha256(function.__code__.co_code + (dumps(around) if around else b"")).hexdigest()  # type: ignore[no-untyped-call]


def _seal(stamp: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(stamp + content, digest_size=_DIGEST_SIZE).digest()


def _stored_variants(function: Callable[..., Any]) -> Mapping[Any, bytes]:
    """Return the compiled variants of a function in the package; none if they cannot be used."""
    stamp, fault = _stamp()
    if fault is not None:
        return {}
    name = _file_name(function)
    try:
        content = _read(name)
    except FileNotFoundError:
        return {}
    except (OSError, _WritableError) as error:
        _file_faults.append(str(error))
        return {}
    if content[:_DIGEST_SIZE] != _seal(stamp, content[_DIGEST_SIZE:]):
        _file_faults.append(f"{FOLDER / name} is damaged")
        return {}
    variants: Mapping[Any, bytes] = pickle.loads(content[_DIGEST_SIZE:])
    return variants


def _environment(module: str, constants: list[Any], name: str) -> Environment:
    """Return the environment of a function in a stored kernel: its constants, without the names of its module."""
    if module in sys.modules or not module.startswith("numba."):
        return _rebuild_env(module, constants, name)  # type: ignore[no-untyped-call,no-any-return]
    found: Any = lookup_environment(name)  # type: ignore[no-untyped-call]
    if found is None:
        found = Environment({"__name__": module})
        found.consts[:] = constants
        found.env_name = name
        Environment._memo[name] = found
    return found  # type: ignore[no-any-return]


class _Unpickler(pickle.Unpickler):
    """Reads stored kernels with `_environment`."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function by name."""
        rebuilds = (module, name) == (_rebuild_env.__module__, _rebuild_env.__name__)
        return _environment if rebuilds else super().find_class(module, name)


class _StoredLibrary(codegen.JITCodeLibrary):
    """A stored kernel: its code is used as it is, and its LLVM code is parsed only for kernels compiled with it."""

    _bitcode = b""

    @classmethod
    def _unserialize(cls, codegen: Any, state: Any) -> _StoredLibrary:
        name, _, (object_code, bitcode) = state
        self: Any = codegen.create_library(name)
        self._bitcode = bitcode
        self.enable_object_caching()
        self._set_compiled_object(object_code)
        self._finalize_final_module()
        return self  # type: ignore[no-any-return]

    def get_pointer_to_function(self, name: str) -> int:
        """Return the address of a function of the kernel, which Numba would look up in the LLVM code."""
        return int(self._codegen._engine.get_function_address(name))

    def _get_module_for_linking(self) -> Any:
        if self._shared_module is None:
            self._shared_module = llvmlite.binding.parse_bitcode(self._bitcode)
            engine: Any = self._codegen._engine
            engine._load_defined_symbols(self._shared_module)
        return self._shared_module


@contextmanager
def _loading(target_context: Any) -> Iterator[None]:
    """Load kernels as `_StoredLibrary`, without what Numba needs only to compile, which takes a second."""
    rtsys.initialize(target_context)
    compiler = target_context.codegen()
    usual, compiler._library_class = compiler._library_class, _StoredLibrary
    try:
        yield
    finally:
        compiler._library_class = usual


class KernelCache(caching._Cache):
    """A kernel's place among the kernels of the package; if it is not there, its place in Numba's cache."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._holds = False

    @cached_property
    def _own(self) -> Any:
        """The kernel's cache on this machine; of this process and its children if there is no place for another."""
        make: Any = caching.FunctionCache
        settings: Any = config
        try:
            own = make(self._function)
        except RuntimeError:
            # Numba says so if it can write neither beside the source nor in the user's cache.
            if settings.CACHE_DIR:
                raise
            folder = tempfile.mkdtemp(prefix="tcpdelay-kernels-")
            _remove_at_end(folder)
            settings.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"] = folder
            own = make(self._function)
        # Numba compares a kernel with its own file only, but it is compiled with all kernels below it: after an upgrade
        # of the package, kernels of the earlier version would run on.
        index = own._cache_file
        index._source_stamp = index._source_stamp, fingerprint()
        return own

    @cached_property
    def _package(self) -> Mapping[Any, bytes]:
        return _stored_variants(self._function)

    @property
    def cache_path(self) -> str:
        """The folder of the cache on this machine."""
        return str(self._own.cache_path)

    def holds_any(self) -> bool:
        """Return whether a variant of the kernel is stored."""
        if not self._holds:
            self._holds = bool(self._package) or bool(self._own._cache_file._load_index())
        return self._holds

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kernel for arguments of these types; None if it is not stored."""
        stored = self._package.get((sig, _code_digest(self._function))) if self._package else None
        rebuild: Any = CompileResult._rebuild
        with _loading(target_context):
            if stored is not None:
                return rebuild(target_context, *_Unpickler(io.BytesIO(stored)).load())
            with self._own._guard_against_spurious_io_errors():
                return self._own._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a kernel that was compiled here."""
        self._own.save_overload(sig, data)

    def enable(self) -> None:
        """Use the cache on this machine."""
        self._own.enable()

    def disable(self) -> None:
        """Use no cache on this machine."""
        self._own.disable()

    def flush(self) -> None:
        """Empty the cache on this machine."""
        self._holds = False
        self._own.flush()


def is_compiled(function: Callable[..., Any]) -> bool:
    """Return whether a kernel has been compiled in this process, or is stored."""
    if not isinstance(function, Dispatcher) or function.overloads:
        return True
    return bool(function._cache.holds_any())  # type: ignore[attr-defined]


def store(kernels: Iterable[Dispatcher], folder: Path = FOLDER) -> int:
    """Write the kernels compiled by this process into a folder, in place of its content; return their number.

    The process must compile for `CPU_NAME` and `CPU_FEATURES`: see `compiler_environment`.
    """
    stamp = json.dumps(stamp_here()._asdict(), indent=1).encode()
    files: dict[str, dict[Any, bytes]] = {}
    for kernel in kernels:
        results: Iterable[Any] = kernel.overloads.values()
        for result in results:
            if result.codegen.magic_tuple()[1:] != tuple(compiler_environment().values()):
                raise RuntimeError(f"{kernel.py_func.__name__} was not compiled for {CPU_NAME}")
            if result.library.has_dynamic_globals:
                # Addresses of this process are in the code.
                continue
            parts = list(result._reduce())
            # The annotated source, which only `inspect_types` reads.
            parts[6] = ""
            variants = files.setdefault(_file_name(kernel.py_func), {})
            variants[tuple(result.signature.args), _code_digest(kernel.py_func)] = dumps(tuple(parts))  # type: ignore[no-untyped-call]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    for name, variants in files.items():
        content = dumps(variants)  # type: ignore[no-untyped-call]
        _write(folder / name, _seal(stamp, content) + content)
    # The stamp makes the folder valid, so it is written last.
    _write(folder / STAMP, stamp)
    return len(files)


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    file.chmod(0o644)


def compiler_environment() -> dict[str, str]:
    """Return the environment variables with which Numba compiles for `CPU_NAME`."""
    return {"NUMBA_CPU_NAME": CPU_NAME, "NUMBA_CPU_FEATURES": ",".join(f"+{feature}" for feature in CPU_FEATURES)}


def can_store() -> bool:
    """Return whether this processor runs what is compiled for `CPU_NAME`."""
    return set(CPU_FEATURES) <= processor_features()


def _wheel_tag() -> str:
    """Return the wheel tag of this process's kernels: Python, ABI and system, with the C library of Numba's wheels."""
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    system = sysconfig.get_platform().replace("-", "_").replace(".", "_").replace("linux_", "manylinux_2_27_")
    return f"{python}-{python}{getattr(sys, 'abiflags', '')}-{system}"


def _remove_at_end(folder: str) -> None:
    """Let another process remove a folder when this process ends, as a killed process cannot remove it."""
    if getattr(sys, "frozen", False):
        # The executable of a frozen application is not Python.
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return
    code = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"
    remover = subprocess.Popen(
        [sys.executable, "-IS", "-c", code, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C reaches all processes of a terminal's session.
        start_new_session=True,
    )
    atexit.register(remover.communicate)

"""One unpacked Linux source and the User-Mode Linux kernels compiled from it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

UNPACKING_STEPS = 110
"""Steps of work that unpacking counts for, by the time it takes."""
KERNEL_STEPS = 1129
"""Steps of work for each kernel: the lines that make prints for it."""

_MAKE_LINE = re.compile(r"  [A-Z]+ ")
_CAUSE = re.compile(r"error: |FAILED|\*\*\*|^(?:tar|xz|patch): ")
_SETTING = re.compile(r"^(?:(CONFIG_\w+)=(.*)|# (CONFIG_\w+) is not set)$", re.MULTILINE)
_VERSION = re.compile(r"^VERSION = (\d+)\nPATCHLEVEL = (\d+)$", re.MULTILINE)


class KernelBuildError(RuntimeError):
    """A kernel could not be built; the message is one line and names the log if there is one."""


@dataclass
class KernelBuild:
    """A build under way: `unpack` once, then `configure` and `compile` for each tick rate.

    Parameters
    ----------
    work : Path
        An empty directory whose path holds neither blanks nor colons; what is made lies in it.
    log : file
        Receives what the programs print.
    lock : int
        A file descriptor that the programs started inherit.
    jobs : int
        How many compilers run at a time.
    tell : callable
        Called with what is being done and the share of all work that is behind, from 0 to 1.
    kernels : int
        How many kernels will be compiled.
    """

    work: Path
    log: TextIO
    lock: int
    jobs: int
    tell: Callable[[str, float], None]
    kernels: int
    _steps_behind: int = field(default=0, init=False)

    def unpack(self, tarball: Path, version: str, patch: str) -> None:
        """Unpack the source of a version of Linux and patch it.

        Parameters
        ----------
        tarball : Path
            The source, compressed in any way that tar knows.
        version : str
            The first two numbers of the version that it must have.
        patch : str
            The patch, with paths one level deep.

        Raises
        ------
        KernelBuildError
            If it is no source of that version or the patch does not fit.
        """
        self._tree.mkdir()
        stage = "unpacking the kernel's source"
        self._run(stage, ["tar", "-xf", os.fspath(tarball), "--strip-components=1"], self._tree, UNPACKING_STEPS)
        makefile = self._tree / "Makefile"
        found = _VERSION.search(makefile.read_text(encoding="utf-8", errors="replace") if makefile.is_file() else "")
        if found is None:
            raise KernelBuildError(f"{tarball} holds no source of Linux")
        if (holds := ".".join(found.groups())) != version:
            raise KernelBuildError(f"{tarball} holds Linux {holds}, but Linux {version} is needed")
        file = self.work / "patch"
        file.write_text(patch, encoding="utf-8")
        self._run("patching the kernel's source", ["patch", "-p1", "--force", "-i", os.fspath(file)], self._tree)

    def configure(self, name: str, settings: str) -> None:
        """Write the configuration of a kernel.

        Parameters
        ----------
        name : str
            What the kernel is called in the stages told.
        settings : str
            What differs from the smallest configuration possible, in the format of Kconfig.

        Raises
        ------
        KernelBuildError
            If a setting does not come about.
        """
        stage = f"configuring the kernel {name}"
        output = self.work / name
        output.mkdir()
        fragment = output / "fragment"
        fragment.write_text(settings, encoding="utf-8")
        merge = os.fspath(self._tree / "scripts" / "kconfig" / "merge_config.sh")
        self._run(stage, self._make(output, "tinyconfig"), self._tree)
        self._run(stage, ["sh", merge, "-m", ".config", fragment.name], output)
        self._run(stage, self._make(output, "olddefconfig"), self._tree)
        # Kconfig drops, without an error, what other symbols do not allow.
        actual = _settings_in((output / ".config").read_text(encoding="utf-8"))
        wanted = _settings_in(settings)
        lost = [f"{symbol}={value}" for symbol, value in wanted.items() if actual.get(symbol, "n") != value]
        if lost:
            raise KernelBuildError(f"{stage} failed: Kconfig does not take over {', '.join(lost)}")

    def compile(self, name: str) -> tuple[Path, str, str]:
        """Compile a configured kernel.

        Parameters
        ----------
        name : str
            The name that the kernel was configured under.

        Returns
        -------
        tuple of Path, str and str
            The kernel, its release and the version of the compiler.

        Raises
        ------
        KernelBuildError
            If it cannot be compiled or does not run.
        """
        output = self.work / name
        self._run(f"compiling the kernel {name}", self._make(output, "linux"), self._tree, KERNEL_STEPS)
        kernel = output / "linux"
        try:
            answer = subprocess.run([kernel, "--version"], capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise KernelBuildError(f"the kernel {name} does not run: {error}") from error
        release = answer.stdout.strip()
        if not re.fullmatch(r"\d+\.\d+\S*", release):
            raise KernelBuildError(f"the kernel {name} answers --version with {answer.stdout[:80]!r}, not its release")
        config = _settings_in((output / ".config").read_text(encoding="utf-8"))
        return kernel, release, config["CONFIG_CC_VERSION_TEXT"].strip('"')

    @property
    def _tree(self) -> Path:
        return self.work / "source"

    def _make(self, output: Path, target: str) -> list[str]:
        return ["make", "ARCH=um", f"O={output}", f"-j{self.jobs}", target]

    def _run(self, stage: str, command: list[str], directory: Path, steps: int = 0) -> None:
        """Run a program, which counts for some steps of the work, and tell how far it is."""
        total = UNPACKING_STEPS + self.kernels * KERNEL_STEPS
        end = self._steps_behind + steps
        cause = ""
        self.tell(stage, self._steps_behind / total)
        # The environment is bare because make and Kconfig take orders from it. The program dies with this process, and
        # make then ends those that it started.
        with subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            cwd=directory,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TMPDIR": os.fspath(self.work)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=[self.lock],
        ) as process:
            try:
                for line in process.stdout or ():
                    self.log.write(line)
                    if not _CAUSE.search(cause):
                        cause = line.strip() or cause
                    if self._steps_behind < end and _MAKE_LINE.match(line):
                        self._steps_behind += 1
                        self.tell(stage, self._steps_behind / total)
                status = process.wait()
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        self._steps_behind = end
        if status != 0:
            raise KernelBuildError(f"{stage} failed: {cause or f'exit status {status}'}; the log is {self.log.name}")


def _settings_in(config: str) -> dict[str, str]:
    return {match[1] or match[3]: match[2] or "n" for match in _SETTING.finditer(config)}

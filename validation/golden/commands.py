"""The command line, in this process: every help, and every example of a help in every format; captures analysed."""

from __future__ import annotations

import gc
import gzip
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import xarray as xr
from pyarrow import csv, parquet
from recording import ROOT, Cases, digest, plain, recorded

from tcpdelay.__main__ import run as program

NOT_RUN = {
    "run": "boots a kernel",
    "proxy": "runs until it is ended",
    "check": "depends on the machine",
    "build-kernel": "takes an hour",
    "build-quic": "requires a compiler of Rust",
    "validate": "requires captures of a campaign",
    "captures/first-capture/*.parquet": "requires the captures",
    "--dst": "requires a connection that is under way",
    "4711": "requires a process with a connection",
    "--get-stats": "requires the statistics of a call",
    "--scheduler": "requires a cluster",
}
"""Words of examples that do not run here, and why."""
SUFFIXES = {"netcdf": ".nc"}
"""Formats that are written to a file."""
SHORTER = {"compare": ("--duration", "20s"), "region": ("--points", "6")}
"""What shortens the examples of a command in further formats, unless they have the option themselves."""
CAPTURES = 12


def ran(*arguments: str) -> dict[str, Any]:
    """Run the program in the working directory; return its status, what it prints, and its errors and warnings."""
    printed, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    given, sys.argv = sys.argv, ["tcpdelay", *arguments]
    status: object = 0
    try:
        with redirect_stdout(printed), redirect_stderr(errors):
            status = program()
    except SystemExit as ended:
        status = ended.code
    finally:
        sys.argv = given
        gc.unfreeze()
    said, complained = (stream.buffer.getvalue().decode() for stream in (printed, errors))  # type: ignore[attr-defined]
    # The other lines are of progress: they depend on the time.
    lines = [line for line in complained.splitlines() if re.match("warning: |tcpdelay|usage", line, re.IGNORECASE)]
    kept = [line for line in lines if "compiling parts" not in line]
    return {"status": status, "printed": plain(said), "errors": plain("\n".join(kept))}


@contextmanager
def working_directory() -> Iterator[Path]:
    """Work in a new directory with the inputs of the checkout, and with an empty cache."""
    mpl.rcParams["svg.hashsalt"] = "golden"  # otherwise the names in a chart are random
    before, environment = Path.cwd(), dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        folder = Path(name)
        for inputs in ("examples", "validation", "tests"):
            (folder / inputs).symlink_to(ROOT / inputs)
        os.environ |= {"XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "80", "TERM": "dumb", "TZ": "UTC"}
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(environment)


def prepare_tables(folder: Path) -> None:
    """Write the tables that examples read: what a user would have."""
    users = csv.read_csv(ROOT / "examples" / "users.csv")
    (folder / "big").mkdir()
    for file in ("users.parquet", "big/part.parquet"):
        parquet.write_table(users, folder / file)
    csv.write_csv(users.rename_columns({"rtt_ms": "ping", "loss_percent": "plr"}), folder / "users.csv")


def written(file: Path) -> Any:
    """Return the content of a file that a command has written."""
    if file.is_dir():
        return {each.name: written(each) for each in sorted(file.iterdir())}
    if file.suffix == ".nc":
        with xr.open_dataset(file) as found:
            return recorded(found.load())
    if file.suffix == ".parquet":
        return parquet.read_table(file).to_pydict()
    content = file.read_bytes()
    try:
        return plain(content.decode())
    except UnicodeDecodeError:
        return digest(content)


def in_directory(arguments: Sequence[str]) -> dict[str, Any]:
    """Run a command in a directory of its own; return what it prints and writes."""
    with working_directory() as folder:
        if any("users" in word or word == "big/" for word in arguments):
            prepare_tables(folder)
        found = ran(*arguments)
        files = [word for option, word in pairwise(arguments) if option in ("-o", "--output", "--chart")]
        found["files"] = {name: written(folder / name) for name in files if (folder / name).exists()}
    return found


def helps(command: tuple[str, ...]) -> dict[str, Any]:
    """Return the help of a command, the usual and the full one; the latter is refused where there is none."""
    with working_directory():
        return {option: ran(*command, option) for option in ("--help", "--help-all")}


@cache
def commands() -> dict[tuple[str, ...], str]:
    """Return all commands, each with its full help."""
    found: dict[tuple[str, ...], str] = {}
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        command = waiting.pop(0)
        of_command = helps(command)
        full = of_command["--help-all"]
        found[command] = (full if full["status"] == 0 else of_command["--help"])["printed"]
        listed = re.search(r"^Commands:\n((?:  .*\n|\n(?=  \S+  ))+)", found[command], flags=re.MULTILINE)
        if listed:
            waiting += [(*command, name) for name in re.findall(r"^  (\S+)", listed[1], flags=re.MULTILINE)]
    return found


def examples(text: str) -> list[list[str]]:
    """Return the arguments of each command in a help; a line that ends in a backslash goes on."""
    joined = re.sub(r" *\\\n +", " ", text)
    lines = [line for line in joined.splitlines() if line.strip().startswith("tcpdelay ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def formats(arguments: Sequence[str]) -> list[str]:
    """Return the formats of the command that arguments name."""
    command = tuple(arguments[:2]) if tuple(arguments[:2]) in commands() else tuple(arguments[:1])
    found = re.search(r"--format <([^>]+)>", commands().get(command, ""))
    return found[1].split("|") if found else []


def help_cases() -> Cases:
    """Return the helps of all commands."""
    return {f"help of {' '.join(command) or 'tcpdelay'}": partial(helps, command) for command in commands()}


def example_cases() -> Cases:
    """Return the examples of all helps, as written and in all formats."""
    found: Cases = {}
    for text in commands().values():
        for arguments in examples(text):
            if NOT_RUN.keys() & set(arguments) and "--dry-run" not in arguments:
                continue
            found[shlex.join(arguments)] = partial(in_directory, arguments)
            if {"--format", "-o", "--output", "--chart", "--help", "--help-all"} & set(arguments):
                continue
            for name in formats(arguments):
                chosen = ["--format", name] + (["-o", f"out{SUFFIXES[name]}"] if name in SUFFIXES else [])
                option, value = SHORTER.get(arguments[0], ("", ""))
                shorter = [option, value] if option and option not in arguments else []
                asked = [*arguments, *shorter, *chosen]
                found[shlex.join(asked)] = partial(in_directory, asked)
    return found


def capture_cases() -> Cases:
    """Return the analyses of captures: whole, in pairs, cut off, and those of the testbed."""
    found: Cases = {}
    files = sorted(file.relative_to(ROOT) for file in ROOT.glob("validation/**/*.pcap.gz"))[:CAPTURES]
    for number, file in enumerate(files):
        found[f"{file.name}"] = partial(in_directory, ["analyze", str(file), "--format", "json"])
        for chosen in ("text", "csv"):
            found[f"{file.name} as {chosen}"] = partial(in_directory, ["analyze", str(file), "--format", chosen])
        if number % 3 == 1:
            report = ["analyze", str(file), "--report", "--format", ("text", "markdown", "html", "json")[number // 3]]
            found[f"{file.name}, report as {report[-1]}"] = partial(in_directory, report)
        found[f"{file.name}, cut off"] = partial(_cut_off, ROOT / file, (3, 7, 2)[number % 3])
        other = file.with_name(file.name.replace(".sender.", ".receiver."))
        if other != file and (ROOT / other).exists():
            asked = ["analyze", str(file), str(other), "--format", "json"]
            found[f"{file.name} and receiver"] = partial(in_directory, asked)
    for folder in sorted(each for each in ROOT.glob("validation/*captures/") if each.is_dir()):
        for file in sorted(folder.rglob("*.parquet"), key=lambda each: (each.stat().st_size, each.name))[:2]:
            asked = ["testbed", "show", str(file.relative_to(ROOT)), "--format", "json"]
            found[f"{folder.name} {file.name}"] = partial(in_directory, asked)
    return found


def _cut_off(file: Path, part: int) -> dict[str, Any]:
    with working_directory() as folder:
        with gzip.open(file) as opened, (folder / "cut.pcap").open("wb") as copy:
            shutil.copyfileobj(opened, copy)
        os.truncate(folder / "cut.pcap", (folder / "cut.pcap").stat().st_size // part + 5)
        return ran("analyze", "cut.pcap", "--format", "json")

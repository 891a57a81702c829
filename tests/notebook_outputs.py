"""Execute notebooks, and compare their outputs with the stored ones: `python notebook_outputs.py [--store] FILE ...`.

pytest-notebook and nbval compare texts as they are or after substitutions, and figures as bytes or not at all. Here the
numbers in a text and the figures have tolerances; everything else is equal to the byte.
"""

import argparse
import base64
import copy
import difflib
import io
import itertools
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib.image
import nbformat
import numpy as np
from matplotlib.testing.compare import calculate_rms
from matplotlib.testing.exceptions import ImageComparisonFailure
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

NUMBER_TOLERANCE = 0.01
"""Relative tolerance of a number: one unit in the last of the three digits that notebooks print, which another
processor or library can change if a value is halfway between two roundings."""
FIGURE_TOLERANCE = 1.0
"""Tolerance of a figure, the root mean square over its pixels and colours from 0 to 255: edges that are drawn a little
lighter or darker. Another twelfth digit of a curve gives about 0.01, a curve 0.1 % higher 1.5, another letter 2."""
VARIES = "varies"
"""Tag of a cell that measures time: its figures, and the numbers in its texts, may be any."""
NO_NOTICE = "from tcpdelay.compiling import compilation; compilation.QUIET_TIME = 1e6"
"""What is executed before the first cell: whether kernels have to be compiled depends on the machine."""
LONGEST_CELL = 600
"""Time after which a cell is given up [s]."""
STORE_ANEW = "make notebooks-store"

NUMBER = re.compile(r"\d+(?:\.\d+)?")


def read(file: Path) -> NotebookNode:
    """Return a notebook."""
    return nbformat.read(file, as_version=4)


def executed(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Return a notebook with the outputs of an execution in `folder`, and nothing else of the machine."""
    ran = copy.deepcopy(notebook)
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        ran,
        timeout=LONGEST_CELL,
        kernel_name="python3",
        resources=resources,
        record_timing=False,
        coalesce_streams=True,
    )
    with client.setup_kernel():
        client.kc.execute(NO_NOTICE, silent=True)
        for number, cell in enumerate(ran.cells):
            client.execute_cell(cell, number, execution_count=client.code_cells_executed + 1)
    return ran


def differences(stored: NotebookNode, ran: NotebookNode) -> Iterator[str]:
    """Yield the differences between the outputs of two executions of a notebook, with their cells and lines."""
    for number, (before, now) in enumerate(zip(stored.cells, ran.cells, strict=True), start=1):
        if before.cell_type != "code":
            continue
        any_number = VARIES in before.metadata.get("tags", [])
        kinds_before, kinds_now = ([_kinds(output) for output in cell.outputs] for cell in (before, now))
        if kinds_before != kinds_now:
            yield f"cell {number}: stored are the outputs {kinds_before}, executed {kinds_now}"
            continue
        for old, new in zip(before.outputs, now.outputs, strict=True):
            contents_before, contents_now = _contents(old), _contents(new)
            for kind, content in contents_before.items():
                compare = figure_difference if kind.startswith("image/") else text_difference
                if found := compare(content, contents_now[kind], any_number):
                    yield f"cell {number}, {kind}: {found}"


def text_difference(stored: str, ran: str, any_number: bool = False) -> str:
    """Return the lines in which two texts differ, numbers by more than their tolerance; none if they are equal."""
    before, now = stored.splitlines(), ran.splitlines()
    if len(before) == len(now):
        pairs = zip(before, now, strict=True)
        now = [old if _nearly_equal(old, new, any_number) else new for old, new in pairs]
    lines = difflib.unified_diff(before, now, "stored", "executed", n=0, lineterm="")
    return "".join(f"\n  {line}" for line in itertools.islice(lines, 2, None))


def figure_difference(stored: str, ran: str, any_number: bool = False) -> str:
    """Return by how much two PNG images differ, if beyond the tolerance."""
    if any_number:
        return ""
    try:
        difference = calculate_rms(_pixels(stored), _pixels(ran))
    except ImageComparisonFailure as sizes:
        return f"{sizes}"
    return f"root mean square {difference:.1f}, above {FIGURE_TOLERANCE:g}" if difference > FIGURE_TOLERANCE else ""


def _kinds(output: NotebookNode) -> list[str]:
    """Return what an output is, and the media types that it has."""
    return [output.output_type, output.get("name", ""), *sorted(output.get("data", {}))]


def _contents(output: NotebookNode) -> dict[str, str]:
    """Return the contents of an output by their media type."""
    texts = {"text": output.text} if "text" in output else {}
    return texts | {kind: str(content) for kind, content in output.get("data", {}).items()}


def _nearly_equal(old: str, new: str, any_number: bool) -> bool:
    """Return whether two lines are equal but for numbers within the tolerance."""
    if old == new:
        return True
    if NUMBER.split(old) != NUMBER.split(new):
        return False
    numbers = zip(NUMBER.findall(old), NUMBER.findall(new), strict=True)
    return any_number or all(math.isclose(float(a), float(b), rel_tol=NUMBER_TOLERANCE) for a, b in numbers)


def _pixels(png: str) -> np.ndarray:
    """Return the colours of an image in base64, from 0 to 255."""
    return 255 * matplotlib.image.imread(io.BytesIO(base64.b64decode(png)), format="png")


def main(arguments: list[str]) -> int:
    """Compare or store the outputs of the notebooks; return how many notebooks failed or differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", action="store_true", help="store the outputs in the notebooks")
    parser.add_argument("files", nargs="+", type=Path)
    chosen = parser.parse_args(arguments)
    wrong = 0
    for file in chosen.files:
        stored = read(file)
        try:
            ran = executed(stored, file.parent)
        except CellExecutionError as error:
            print(f"{file}: {error}", flush=True)
            wrong += 1
            continue
        if chosen.store:
            nbformat.write(ran, file)
            print(f"{file}: stored", flush=True)
            continue
        found = list(differences(stored, ran))
        print("\n".join([f"{file}: {len(found) or 'no'} differences", *found]), flush=True)
        wrong += bool(found)
    if wrong and not chosen.store:
        print(f"If the executed outputs are right, store them with `{STORE_ANEW}`, and read the sentences beside them.")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))

"""The structure of the package: its imports, the order of its folders, its names, and who uses private ones."""

import ast
import importlib
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "tcpdelay"

ORDER = (
    "units",
    "declare",
    "statistics",
    "drawing",
    "store",
    "compiling",
    "http_service",
    "scenario",
    "delays",
    "accuracy",
    "budget",
    "ask",
    "sim",
    "chain",
    "models",
    "quality",
    "capture",
    "testbed",
    "proxy",
    "study",
    "advice",
    "report",
    "cli",
    "__main__",
)
"""Folders and modules of the package, from the bottom up: each imports only itself and what is in earlier lines."""
BUDGETS = {
    "units": 255,
    "declare": 685,
    "statistics": 225,
    "drawing": 25,
    "store": 110,
    "compiling": 1_030,
    "http_service": 190,
    "scenario": 3_600,
    "delays": 565,
    "accuracy": 1_030,
    "budget": 200,
    "ask": 405,
    "sim": 14_525,
    "chain": 9_935,
    "models": 635,
    "quality": 1_220,
    "capture": 5_890,
    "testbed": 6_505,
    "proxy": 795,
    "study": 9_930,
    "advice": 1_865,
    "report": 5_965,
    "cli": 5_715,
    "__main__": 35,
}
"""Most lines of each folder and module, with docstrings. Their sum only falls; code that needs more ends other code."""
LARGEST_SHARE_OF_DOCSTRINGS = 0.22
MOST_ARGUMENTS = 7
"""Most positional arguments of a function that is neither a kernel nor a command, whose arguments are its options."""
MORE_ARGUMENTS = {
    *("linux", "best_interval"),  # public names, whose arguments are fixed
    *("solve_within", "solve_by_sweeps", "_cells", "_delays"),
}
CHAIN_CLASSES = {
    "DelayModel",
    "LinuxChain",
    "PublishedChain",
    "Simulator",
    "TooLargeError",
    "UnsupportedError",
}
"""Names that only the models use: other code asks `predict` and reads the status of the answer."""
EMPTY_NAMES = {"utils", "helpers", "common", "misc", "util", "helper"}
SHARED_FILE_NAMES = {
    *("delays", "transitions"),  # of each chain, and the distribution itself
    *("engine", "simulation"),  # of one simulated connection, of a simulated network
    "sender",  # of TCP, of QUIC
    "path",  # of a scenario, of a simulated connection
    "analysis",  # of packet captures, and the report on it
    "transports",  # the question, and the report on it
    "guideline",  # the advice as data, and the report on it
}
"""Names of several modules, where the folder says which is meant."""


def modules():
    """Return the files of the package by the names of their modules."""
    found = {}
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = modules()


@cache
def tree_of(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def absolute(node, module):
    """Return the module that a `from` statement names, with relative names resolved."""
    if not node.level:
        return node.module or ""
    package = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])


@cache
def imports(module):
    """Return the modules of the package that a module imports anywhere: at its top, in functions, for types alone."""
    found = set()
    for node in ast.walk(tree_of(MODULES[module])):
        if isinstance(node, ast.ImportFrom):
            base = absolute(node, module)
            names = [f"{base}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else base for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset((found & MODULES.keys()) - {module})


def circle(module):
    """Return the shortest chain of imports from a module back to itself; nothing if there is none."""
    before, waiting = {}, [module]
    while waiting:
        here = waiting.pop(0)
        for there in sorted(imports(here)):
            if there == module:
                found = [here]
                while found[-1] != module:
                    found.append(before[found[-1]])
                return [*reversed(found), module]
            if there not in before:
                before[there] = here
                waiting.append(there)
    return []


def test_no_module_imports_itself_through_others():
    found = []
    for path in sorted(filter(None, map(circle, MODULES)), key=len):
        # One circle is told for all that share a module with it.
        if not any(set(path) & set(told) for told in found):
            found.append(path)
    assert not found, "import circles:\n" + "\n".join(" -> ".join(path) for path in found)


def rank(module):
    """Return the place of a module in `ORDER`."""
    return ORDER.index(module.split(".")[1])


def inner_modules():
    """Return the modules that `ORDER` places: all but the package itself, which imports lazily by its stub."""
    return [module for module in MODULES if module != PACKAGE]


def test_the_order_names_every_folder():
    assert {module.split(".")[1] for module in inner_modules()} == set(ORDER)


def test_folders_import_downwards_only():
    upwards = []
    for module in inner_modules():
        upwards += [f"{module} -> {there}" for there in imports(module) - {PACKAGE} if rank(there) > rank(module)]
    assert not upwards, "imports upwards:\n" + "\n".join(sorted(upwards))


def test_what_draws_a_result_exists():
    drawings = re.findall(r'drawn\("(\w+)\.(\w+)"', "".join(file.read_text() for file in MODULES.values()))
    assert len(drawings) >= 7
    for module, name in drawings:
        assert callable(getattr(importlib.import_module(f"tcpdelay.report.{module}"), name))


def lines_of(module):
    return len(MODULES[module].read_text(encoding="utf-8").splitlines())


def test_folders_keep_their_budgets():
    found = Counter()
    for module in inner_modules():
        found[module.split(".")[1]] += lines_of(module)
    above = {entry: f"{lines} of {BUDGETS[entry]}" for entry, lines in found.items() if lines > BUDGETS[entry]}
    assert not above, f"more lines than the budget: {above}"


def test_docstrings_are_a_small_part_of_the_lines():
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    lines = 0
    for file in MODULES.values():
        for node in ast.walk(tree_of(file)):
            if isinstance(node, documented) and ast.get_docstring(node) is not None:
                lines += node.body[0].end_lineno - node.body[0].lineno + 1
    assert lines <= LARGEST_SHARE_OF_DOCSTRINGS * sum(map(lines_of, MODULES))


COMPILED = re.compile(r"\b(kernel|allocation_free|interpreted_first)\b")
"""What decorates a kernel."""


def is_compiled(function):
    return any(COMPILED.search(ast.unparse(decorator)) for decorator in function.decorator_list)


def test_kernels_have_types():
    untyped = []
    for module, file in MODULES.items():
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.FunctionDef) and is_compiled(node):
                hints = [argument.annotation for argument in node.args.args] + [node.returns]
                if any(hint is None or "Any" in code_names(hint) for hint in hints):
                    untyped.append(f"{module}.{node.name}")
    assert not untyped, f"kernels with a parameter or a result of any type: {untyped}"


def test_functions_take_few_arguments():
    many = []
    for module, file in MODULES.items():
        for node in ast.walk(tree_of(file)) if not module.startswith(f"{PACKAGE}.cli") else ():
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            arguments = [
                each.arg for each in (*node.args.posonlyargs, *node.args.args) if each.arg not in ("self", "cls")
            ]
            known = {node.name, module} & MORE_ARGUMENTS or is_compiled(node)
            if len(arguments) > MOST_ARGUMENTS and not known:
                many.append(f"{module}.{node.name}: {len(arguments)}")
    assert not many, f"functions with more than {MOST_ARGUMENTS} arguments: {many}"


def code_names(tree):
    """Return every name that code uses, imports or reads as an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name


def test_only_models_name_the_classes_of_models():
    naming = {
        module: sorted(CHAIN_CLASSES & set(code_names(tree_of(file))))
        for module, file in MODULES.items()
        if module == PACKAGE or rank(module) > ORDER.index("models")
    }
    found = [f"{module}: {', '.join(names)}" for module, names in naming.items() if names]
    assert not found, "classes of models named above models/:\n" + "\n".join(found)


@cache
def private_names_of_the_package():
    """Return the private names that the package defines: functions, classes, constants, methods and attributes."""
    found = set()
    for file in MODULES.values():
        for node in ast.walk(tree_of(file)):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return {name for name in found if is_private(name)}


def is_private(name):
    return name.startswith("_") and not name.endswith("__") and name != "_"


def private_uses(tree):
    """Yield line and name of every private name of the package in a program that is no part of it.

    These are attributes of anything but `self` and `cls`, names that are imported, and names in the texts that
    `setattr` and `getattr` take.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr in private_names_of_the_package():
            if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}):
                yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            yield from ((node.lineno, alias.name) for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")).endswith("attr"):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    name = argument.value.rpartition(".")[2]
                    if is_private(name) and name in private_names_of_the_package():
                        yield node.lineno, name


def programs():
    """Return the Python in tests, scripts, notebooks and pages, by the name of its file."""
    found = {}
    for folder in ("tests", "validation", "benchmarks", "examples"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            found[str(file.relative_to(ROOT))] = [file.read_text(encoding="utf-8")]
    for file in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        found[str(file.relative_to(ROOT))] = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    fence = re.compile(r"^```(?:\{code-cell\} *)?(?:python3?|ipython3?)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for file in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]:
        blocks = fence.findall(file.read_text(encoding="utf-8"))
        found[str(file.relative_to(ROOT))] = [re.sub(r"^(:\w+:.*|[%!].*)$", "", block, flags=re.M) for block in blocks]
    return found


def parsed(text):
    """Return the tree of a program; of what is no program by itself, such as an excerpt, an empty one."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.parse("")


@pytest.mark.parametrize("folder", ["tests", "validation", "benchmarks", "examples", "notebooks", "docs", "README.md"])
def test_programs_use_public_names_only(folder):
    found = [
        f"{file}:{line}: {name}"
        for file, texts in programs().items()
        if Path(file).parts[0] == folder
        for text in texts
        for line, name in private_uses(parsed(text))
    ]
    assert not found, "private names of the package:\n" + "\n".join(found)


def test_names_of_modules_say_what_they_hold():
    empty = [module for module in MODULES if module.rpartition(".")[2] in EMPTY_NAMES]
    assert not empty


def test_a_file_name_occurs_once_or_is_told_apart_by_its_folder():
    # The modules of the command line bear the names of the commands.
    files = [module for module, file in MODULES.items() if file.name != "__init__.py" and ".cli." not in module]
    several = {name for name, count in Counter(module.rpartition(".")[2] for module in files).items() if count > 1}
    assert not several - SHARED_FILE_NAMES, "one name for several modules"

"""A digest of the syntax tree of each compiled function, with the values of the constants that it uses.

Neither its module, its docstring, its annotations nor the modules of what it uses are in the digest: a kernel that only
moves keeps it. A constant counts with its value, a called kernel with its name. The second digest numbers the local
names, so that a kernel whose local names alone have changed is shown as such.
"""

from __future__ import annotations

import ast
import builtins
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from recording import PACKAGE, Cases, digest, modules, of_array, plain

COMPILING = ("kernel", "allocation_free", "njit", "jit", "vectorize")
"""Names of the decorators that compile a function."""


def cases() -> Cases:
    """Return the digests of all kernels by name: kernels of the same name together."""
    modules()
    found: dict[str, list[list[str]]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and any(map(_compiles, function.decorator_list)):
                found.setdefault(function.name, []).append(_digests(function, _values(file)))
    return {name: partial(sorted, several) for name, several in found.items()}


def _compiles(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")) in COMPILING


def _values(file: Path) -> dict[str, Any]:
    """Return the names of a module and their values."""
    name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    return vars(sys.modules[name]) if name in sys.modules else {}


def _digests(function: ast.FunctionDef, values: dict[str, Any]) -> list[str]:
    """Return the digest of a function, that with its local names numbered, and that also without its own name."""
    tree = _Resolved(_local_names(function), values).visit(function)
    found = [digest(ast.dump(tree)), digest(ast.dump(_Numbered().visit(tree)))]
    tree.name = ""
    return [*found, digest(ast.dump(tree))]


def _local_names(function: ast.FunctionDef) -> set[str]:
    names = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    return names | {
        node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


class _Resolved(ast.NodeTransformer):
    """Puts values in place of constants, plain names in place of functions; drops what is not compiled."""

    def __init__(self, local: set[str], values: dict[str, Any]) -> None:
        self._local, self._values = local, values

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        return None if node.value is None else ast.Assign([node.target], node.value)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._local or not isinstance(node.ctx, ast.Load):
            return node
        return _written(self._values.get(node.id, getattr(builtins, node.id, node)), node, node.id)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        of_module = node.value.id if isinstance(node.value, ast.Name) else ""
        module = None if of_module in self._local else self._values.get(of_module)
        if type(module).__name__ == "module" and hasattr(module, node.attr):
            return _written(getattr(module, node.attr), node, node.attr)
        return self.generic_visit(node)


def _written(value: Any, node: ast.AST, name: str) -> ast.AST:
    """Return a global value as it is compiled: a constant with its value, any other with its own name."""
    if isinstance(value, np.ndarray):
        return ast.Constant(of_array(value))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.dtype):
        return ast.Constant(f"{name}: {value.descr}")
    if isinstance(value, (bool, int, float, str)):
        return ast.Constant(value)
    if isinstance(value, tuple):
        return ast.Constant(plain(repr(value)))
    own = getattr(value, "__name__", None)
    return ast.Name(own, ast.Load()) if isinstance(own, str) else ast.Name(name, ast.Load())


class _Numbered(ast.NodeTransformer):
    """Numbers the local names in the order in which they occur."""

    def __init__(self) -> None:
        self._numbers: dict[str, str] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        for name in sorted(_local_names(node), key=_order(node).__getitem__):
            self._numbers.setdefault(name, f"local {len(self._numbers)}")
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._numbers.get(node.arg, node.arg)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._numbers.get(node.id, node.id)
        return node


def _order(function: ast.FunctionDef) -> dict[str, int]:
    order: dict[str, int] = {}
    for node in ast.walk(function):
        name = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else None
        if name is not None:
            order.setdefault(name, len(order))
    return order

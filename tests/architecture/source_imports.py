"""Read the imports of the project's Python files."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Return the dotted names that the file imports, at any depth of its code."""
    names: list[str] = []
    for node in _statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(names)


def _statements(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all statements, nested ones too; skip expressions, which import nothing."""
    for node in nodes:
        yield node
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            inner = getattr(node, part, ())
            if isinstance(inner, list):
                yield from _statements(inner)

"""Find the statements in Python source, in a fraction of the time that `ast.walk` takes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of a statement that hold further ones."""


def statements(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield these statements and all within them, but no expressions: those are nine tenths of a
    tree."""
    for node in nodes:
        yield node
        for block in BLOCKS:
            yield from statements(getattr(node, block, ()))

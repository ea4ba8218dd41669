"""Which tests a change touches: `python -m tests.support.changed [BASE]`, one file a line.

A change is what differs from where this branch left BASE (origin/main, else main), committed or
not. A test is touched by a module that it imports, or that is imported on the way, or whose dotted
name is written anywhere on the way (as that of a program to run); and by any other file whose name
it writes. A conftest.py touches all beside and below it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import grimp

from tests.support.sources import statements

ROOT = Path(__file__).parents[2]
SOURCES = ("src", "tests", "benchmarks")
PACKAGES = ("switchyard", "tests", "benchmarks")
DOTTED = re.compile(r"\b(?:switchyard|tests|benchmarks)(?:\.\w+)+")


def changed_files(base: str | None = None) -> set[str]:
    """Return paths below the root, also of files that are gone or that git does not know yet.

    Raises LookupError when there is no such base.
    """
    for name in (base,) if base else ("origin/main", "main"):
        if start := _git("merge-base", "HEAD", name):
            changed = _git("diff", "--name-only", "--no-renames", start[0])
            return {*changed, *_git("ls-files", "--others", "--exclude-standard")}
    raise LookupError(f"there is no {base or 'main'} to compare with: name a commit")


def _git(*arguments: str) -> list[str]:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def modules() -> dict[str, Path]:
    """Return every module of ours, by its dotted name."""
    found = {}
    for folder in SOURCES:
        top = ROOT / folder if folder == "src" else ROOT
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(top).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _named(text: str) -> set[str]:
    """Return the dotted names in a file; `from a import b` may stand for the module a.b."""
    named = set(DOTTED.findall(text))
    for node in statements(ast.parse(text).body):
        if isinstance(node, ast.ImportFrom) and node.module in named | set(PACKAGES):
            named |= {f"{node.module}.{each.name}" for each in node.names}
    return named


@cache
def _imports() -> grimp.ImportGraph:
    """Return who imports or names whom, as of the first call: it takes seconds."""
    known = modules()
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    for importer, path in known.items():
        graph.add_module(importer)  # grimp leaves out folders without an __init__.py
        for named in _named(path.read_text()):
            while named not in known and "." in named:
                named = named.rpartition(".")[0]
            if named in known and "." in named and named != importer:
                graph.add_import(importer=importer, imported=named)
    return graph


def touched(changed: Iterable[str]) -> list[Path]:
    """Return the test files that these paths touch, in order."""
    known, graph = modules(), _imports()
    names = {path: name for name, path in known.items()}
    tests = {path for path in names if path.name.startswith("test_")}
    found: set[Path] = set()
    for each in changed:
        path = ROOT / each
        if path in names:
            reached = {names[path], *graph.find_downstream_modules(names[path])}
            found |= {test for test in tests if names[test] in reached}
        if path.name == "conftest.py":
            found |= {test for test in tests if path.parent in test.parents}
        elif path not in names:
            found |= {test for test in tests if path.name in test.read_text()}
    return sorted(found)


def main() -> None:
    for test in touched(changed_files(*sys.argv[1:2])):
        print(test.relative_to(ROOT))


if __name__ == "__main__":
    main()

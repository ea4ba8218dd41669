"""Which tests a change may affect: `python -m tests.support.changed [BASE]`, one file a line.

The change is the difference to the merge base with BASE (origin/main, else main), committed or not.
A changed module affects the tests that import it, directly or through other modules; a dotted name
in the text of a module (such as that of a program to run) counts as an import. Another changed file
affects the tests that contain its name. A conftest.py affects all tests in and below its folder.
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
    path_by_module = {}
    for folder in SOURCES:
        top = ROOT / folder if folder == "src" else ROOT
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(top).with_suffix("").parts
            path_by_module[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return path_by_module


def _dotted_names(text: str) -> set[str]:
    """Return the dotted names in a file; `from a import b` may stand for the module a.b."""
    names = set(DOTTED.findall(text))
    for node in statements(ast.parse(text).body):
        if isinstance(node, ast.ImportFrom) and node.module in names | set(PACKAGES):
            names |= {f"{node.module}.{each.name}" for each in node.names}
    return names


@cache
def _imports() -> grimp.ImportGraph:
    """Return the graph of imports and named modules, cached because it takes seconds."""
    path_by_module = modules()
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    for importer, path in path_by_module.items():
        graph.add_module(importer)  # grimp leaves out folders without an __init__.py
        for dotted_name in _dotted_names(path.read_text()):
            while dotted_name not in path_by_module and "." in dotted_name:
                dotted_name = dotted_name.rpartition(".")[0]
            if dotted_name in path_by_module and "." in dotted_name and dotted_name != importer:
                graph.add_import(importer=importer, imported=dotted_name)
    return graph


def affected_tests(changed: Iterable[str]) -> list[Path]:
    """Return the test files that these paths touch, in order."""
    path_by_module, graph = modules(), _imports()
    module_by_path = {path: name for name, path in path_by_module.items()}
    tests = {path for path in module_by_path if path.name.startswith("test_")}
    affected: set[Path] = set()
    for each in changed:
        path = ROOT / each
        if path in module_by_path:
            dependents = {
                module_by_path[path],
                *graph.find_downstream_modules(module_by_path[path]),
            }
            affected |= {test for test in tests if module_by_path[test] in dependents}
        if path.name == "conftest.py":
            affected |= {test for test in tests if path.parent in test.parents}
        elif path not in module_by_path:
            affected |= {test for test in tests if path.name in test.read_text()}
    return sorted(affected)


def main() -> None:
    for test in affected_tests(changed_files(*sys.argv[1:2])):
        print(test.relative_to(ROOT))


if __name__ == "__main__":
    main()

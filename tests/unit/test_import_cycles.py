"""No module imports itself through others.

import-linter checks the layers between packages. This also checks within packages, and imports in
functions and below TYPE_CHECKING.
"""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

import grimp


def test_no_module_imports_itself_through_others() -> None:
    graph = grimp.build_graph("switchyard", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert (
        "switchyard.services.engine.runtime.runner"
        in imports["switchyard.services.engine.runtime.worker"]
    )
    assert find_cycle(imports) == []


def test_a_cycle_is_found() -> None:
    assert set(find_cycle({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()})) == {"a", "b", "c"}


def find_cycle(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the modules of an import cycle, each importing the one before it, or nothing."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []

"""No module imports another that imports it, on whatever way round.

import-linter holds the floors between rooms; within a room, and wherever an import hides in a
function or below TYPE_CHECKING, this does.
"""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

import grimp


def test_no_import_leads_back_to_where_it_began() -> None:
    graph = grimp.build_graph("switchyard", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert (
        "switchyard.services.engine.runtime.runner"
        in imports["switchyard.services.engine.runtime.worker"]
    )
    assert circle_in(imports) == []


def test_a_circle_is_found() -> None:
    assert set(circle_in({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()})) == {"a", "b", "c"}


def circle_in(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Modules each of which imports the one before, or nothing."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []

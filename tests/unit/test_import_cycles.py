"""No module imports another that imports it, on whatever way round.

import-linter holds the floors between rooms; within a room, and wherever an import hides in a
function or below TYPE_CHECKING, this does.
"""

from graphlib import CycleError, TopologicalSorter

import grimp


def test_no_import_leads_back_to_where_it_began() -> None:
    graph = grimp.build_graph("switchyard", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(" ← ".join(error.args[1])) from None

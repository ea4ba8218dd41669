"""No module imports another that imports it, on whatever way round.

import-linter holds the floors between rooms; within a room, and wherever an import hides in a
function or below TYPE_CHECKING, this does.
"""

from graphlib import CycleError, TopologicalSorter

import grimp

STILL_THERE = {("switchyard.api.client.operations", "switchyard.api.client.clients")}
"""Imports that lead back, and wait for their module to be taken apart. Nothing is to be added."""


def test_no_import_leads_back_to_where_it_began() -> None:
    graph = grimp.build_graph("switchyard", cache_dir=None)
    imports = {
        name: {
            each
            for each in graph.find_modules_directly_imported_by(name)
            if (name, each) not in STILL_THERE
        }
        for name in graph.modules
    }
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(" ← ".join(error.args[1])) from None

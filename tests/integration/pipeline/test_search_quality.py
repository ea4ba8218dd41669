"""What search finds by default, on the collection of `make bench ARGS=search`."""

from __future__ import annotations

from benchmarks.search.collection import documents, queries
from benchmarks.search.evaluation import evaluate
from switchyard.cli.demo.play import SAMPLE_QUERY
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index.embedder import embedder_for
from switchyard.services.pipeline.index.modes import Mode


async def test_the_default_finds_at_least_as_much_as_the_best_single_way():
    found = await evaluate(embedder_for(Settings()))
    both = found.pop(Mode.HYBRID)
    assert both.first >= max(one.first for one in found.values())
    assert both.mrr >= max(one.mrr for one in found.values())
    assert both.first >= 112
    assert both.hits_for_nothing <= 3


def test_the_collection_is_large_enough_and_whole():
    names = [document.name for document in documents()]
    wanted = {query.document for query in queries() if query.document is not None}
    assert len(names) == len(set(names)) >= 60
    assert wanted <= set(names)
    assert sum(query.document is not None for query in queries()) >= 60
    assert SAMPLE_QUERY in {query.text for query in queries()}

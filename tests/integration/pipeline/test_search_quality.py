"""Quality of the default search, on the collection of `make bench ARGS=search`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.search.collection import collections_in, documents, queries
from benchmarks.search.evaluation import compare, evaluate
from switchyard.cli.demo.demo_runner import SAMPLE_QUERY
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index.embedder import embedder_for
from switchyard.services.pipeline.index.search_modes import SearchMode


@pytest.mark.long
async def test_the_default_search_finds_as_much_as_the_best_single_mode():
    quality = await evaluate(embedder_for(Settings()))
    hybrid = quality.pop(SearchMode.HYBRID)
    assert hybrid.first >= max(single.first for single in quality.values())
    assert hybrid.mrr >= max(single.mrr for single in quality.values())
    # Of 130 queries that a document answers, and 6 that none answers.
    assert hybrid.first >= 105
    assert hybrid.hits_for_nothing <= 3


def test_the_collection_is_large_and_has_the_document_of_every_query():
    names = [document.name for document in documents()]
    expected = {query.document for query in queries() if query.document is not None}
    assert len(names) == len(set(names)) >= 60
    assert expected <= set(names)
    assert sum(query.document is not None for query in queries()) >= 60
    assert SAMPLE_QUERY in {query.text for query in queries()}


async def test_public_collections_are_read_in_the_formats_in_which_they_are_published(
    tmp_path: Path,
):
    (tmp_path / "cran.all").write_text(
        ".I 1\n.T\nwings .\n.A\nsome,one\n.W\nwings .\n  of aircraft\n"
        ".I 2\n.T\nplates\n.W\nof steel\n"
    )
    (tmp_path / "cran.qry").write_text(".I 001\n.W\nwhat wing\n.I 004\n.W\nwhich plate\n")
    (tmp_path / "cranqrel").write_text("1 1 2 \n1 2 -1\n2 2 4\n")
    (tmp_path / "npl_doc-text.trec").write_text(
        "<DOC>\n<DOCNO>7</DOCNO>\nmemories\n</DOC>\n<DOC>\n<DOCNO>8</DOCNO>\ntubes\n</DOC>\n"
    )
    (tmp_path / "npl_query-text.trec").write_text(
        "<top>\n<num>1</num><title>\nTHE MEMORY\n</title>\n</top>\n"
    )
    (tmp_path / "npl_qrels").write_text("1 0 7 1\n1 0 8 0\n")
    cran, npl = collections_in(tmp_path)
    assert cran.documents == {"1": "wings .\n  of aircraft", "2": "plates\n\nof steel"}
    assert cran.questions == {"1": "what wing", "2": "which plate"}
    assert cran.relevant == {"1": {"1"}, "2": {"2"}}
    assert (npl.documents, npl.questions) == ({"7": "memories", "8": "tubes"}, {"1": "THE MEMORY"})
    assert npl.relevant == {"1": {"7"}}
    quality = await compare(cran, embedder_for(Settings()))
    assert quality == {"BM25 with stems": 1.0, "vector": 1.0, "keyword": 1.0, "hybrid": 1.0}

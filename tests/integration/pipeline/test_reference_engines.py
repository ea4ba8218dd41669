"""GROBID, a language model and our own parser parse references by one protocol, each where the one
before it fails."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from switchyard.services.common.errors import RetryableError
from switchyard.services.common.files.storage_keys import references_key
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.citations.engines import engine_chain
from switchyard.services.pipeline.citations.engines import grobid as grobid_engine
from switchyard.services.pipeline.sources.source_errors import (
    InvalidSourceResponse,
    SourceBusy,
    SourceRefused,
    SourceUnavailable,
)
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.documents import run_failing_beside_another
from tests.support import llm_server
from tests.support.grobid_server import KUHN, GrobidServer, tei
from tests.support.llm_server import FakeLlmServer
from tests.support.pdfs import pdf
from tests.support.site import (
    Behaviour,
    cut,
    cut_in_the_middle,
    fails,
    packed,
    says,
    throttled,
)

STRUCTURE = "Kuhn, T S. The structure of scientific revolutions. University of Chicago Press, 1962."
SEA = "Smith, A. The sea. Oxford University Press, Oxford, 2004."
ENTITY_BOMB = b"""<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><TEI>&b;</TEI>"""


@pytest.fixture
def grobid() -> Iterator[GrobidServer]:
    with GrobidServer() as server:
        server.structures[STRUCTURE] = KUHN
        yield server


def with_engines(pipeline: Pipeline, *engines: str, **settings: Any) -> Pipeline:
    """Return a pipeline that parses references with these engines, in this order."""
    update = {"reference_engines": engines, **settings}
    return replace(pipeline, settings=pipeline.settings.model_copy(update=update))


async def parse_references(pipeline: Pipeline, *texts: str) -> list[dict[str, Any]]:
    await pipeline.run("parse_references", {"references": list(texts)})
    return list(pipeline.result("parse_references")["references"])


async def test_grobid_parses_references_and_the_result_names_it(
    pipeline: Pipeline, grobid: GrobidServer
):
    engine_pipeline = with_engines(pipeline, "grobid", grobid_url=grobid.origin)
    first, second = await parse_references(engine_pipeline, STRUCTURE, f"{SEA}\ndoi:10.1000/Sea")
    assert first == {
        "text": STRUCTURE,
        "authors": [{"family": "Kuhn", "given": "T S"}],
        "title": "The structure of scientific revolutions",
        "year": 1962,
        "publisher": "University of Chicago Press",
        "language": "en",
        "confidence": 1.0,
        "engine": "grobid",
    }
    # The DOI is found by its form, whichever engine parses the rest.
    assert (second["doi"], second["engine"]) == ("10.1000/sea", "grobid")
    assert grobid.citations == [[STRUCTURE, f"{SEA} doi:10.1000/Sea"]]


async def test_fields_that_are_not_in_the_reference_are_dropped(
    pipeline: Pipeline, grobid: GrobidServer
):
    grobid.structures[SEA] = (
        "<analytic><title level='a'>The sea</title><author><persName><surname>Nobody</surname>"
        "</persName></author></analytic><monogr><title level='j'>Another journal</title>"
        "<imprint><date when='1999'/></imprint></monogr>"
    )
    (reference,) = await parse_references(
        with_engines(pipeline, "grobid", grobid_url=grobid.origin), SEA
    )
    assert reference["title"] == "The sea"
    assert not {"authors", "container", "year"} & reference.keys()
    assert reference["confidence"] < 0.5


async def test_a_busy_grobid_is_waited_for_and_costs_no_attempt(
    pipeline: Pipeline, grobid: GrobidServer, monkeypatch: pytest.MonkeyPatch
):
    engine_pipeline = with_engines(pipeline, "grobid", "offline", grobid_url=grobid.origin)
    grobid.next(throttled(0, 503), throttled(0, 503), throttled(0))
    assert (await parse_references(engine_pipeline, STRUCTURE))[0]["engine"] == "grobid"
    assert len(grobid.requests) == 4
    grobid.next(throttled(3600, 503))
    with pytest.raises(SourceBusy) as busy:
        await parse_references(engine_pipeline, STRUCTURE)
    assert (busy.value.counts, busy.value.after) == (False, 3600)


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (fails(500), SourceUnavailable),
        (cut(), SourceUnavailable),
        (cut_in_the_middle(), SourceUnavailable),
        (says(b"<html>", "text/html"), InvalidSourceResponse),
        (says(ENTITY_BOMB, "application/xml"), InvalidSourceResponse),
        (says(b"<a>" * 60 + b"</a>" * 60, "application/xml"), InvalidSourceResponse),
        (says(tei([]), "application/xml"), InvalidSourceResponse),
        (says(b"", status=204), InvalidSourceResponse),
        (says(b"no citations", status=400), SourceRefused),
    ],
    ids=["500", "cut", "half", "html", "billion", "deep", "too-few", "nothing", "refused"],
)
async def test_where_grobid_fails_the_next_engine_parses_the_reference(
    pipeline: Pipeline, grobid: GrobidServer, behaviour: Any, error: type[Exception]
):
    grobid.next(behaviour)
    with pytest.raises(error):
        await parse_references(
            with_engines(pipeline, "grobid", grobid_url=grobid.origin), STRUCTURE
        )
    grobid.next(behaviour)
    engine_pipeline = with_engines(pipeline, "grobid", "offline", grobid_url=grobid.origin)
    (reference,) = await parse_references(engine_pipeline, STRUCTURE)
    assert (reference["engine"], reference["title"]) == (
        "offline",
        "The structure of scientific revolutions",
    )


async def test_too_large_an_answer_is_not_read_to_its_end(
    pipeline: Pipeline, grobid: GrobidServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(grobid_engine, "MAX_BYTES", 1000)
    grobid.next(says(b" " * 2000, "application/xml"))
    with pytest.raises(InvalidSourceResponse, match="exceeds"):
        await parse_references(
            with_engines(pipeline, "grobid", grobid_url=grobid.origin), STRUCTURE
        )


async def test_a_compressed_answer_is_not_decompressed(pipeline: Pipeline, grobid: GrobidServer):
    grobid.next(packed())
    with pytest.raises(SourceUnavailable, match="compresses its answer"):
        await parse_references(
            with_engines(pipeline, "grobid", grobid_url=grobid.origin), STRUCTURE
        )


async def test_a_pdf_whose_list_we_don_t_find_goes_to_grobid_as_a_whole(
    pipeline: Pipeline, grobid: GrobidServer, tmp_path: Path
):
    path = tmp_path / "paper.pdf"
    path.write_bytes(pdf(["The tide rises [2].", "No list that we would find."]))
    grobid.in_pdf = [(STRUCTURE, "2,56.7,100.5,200.0,11.0;2,56.7,112,80,11"), (SEA, "")]
    engine_pipeline = with_engines(pipeline, "grobid", grobid_url=grobid.origin)
    await engine_pipeline.run("ingest_document", {"path": str(path)})
    document_id = engine_pipeline.result("ingest_document")["document_id"]
    await engine_pipeline.run("process_references", {"document_id": document_id})
    stored = json.loads(pipeline.storage.get(references_key(document_id)))
    first, second = stored["references"]
    assert (first["label"], first["page"], first["engine"]) == ("1", 2, "grobid")
    assert first["boxes"][0] == {"page": 2, "x": 56.7, "y": 100.5, "width": 200.0, "height": 11.0}
    assert len(first["boxes"]) == 2
    assert second["text"] == SEA
    assert [each["references"] for each in stored["citations"]] == [[1]]
    pipeline.storage.put("uploads/incoming/paper", path.read_bytes())
    await engine_pipeline.run("process_references", {"key": "uploads/incoming/paper"})
    assert engine_pipeline.result("process_references")["references"] == 2
    grobid.next(fails(400))
    await engine_pipeline.run("process_references", {"key": "uploads/incoming/paper"})
    assert engine_pipeline.result("process_references")["references"] == 0


def answers_references(left_out_number: int | None = None) -> Behaviour:
    """Answer as a model that recognises authors, year and title of references in our form, except
    for the reference of one number."""

    def answer(exchange: Any, request: Any) -> None:
        prompt = request.json["messages"][-1]["content"]
        entries = re.findall(r"\[(\d+)\] (\w+), ([\w ]+)\. ([^.]+)\..*?(\d{4})", prompt)
        references = [
            {
                "number": int(number),
                "authors": [{"family": family, "given": given_name}],
                "others": False,
                "year": int(year),
                "title": title,
                "container": "",
                "volume": "",
                "issue": "",
                "pages": "",
                "publisher": "A publisher of its own",
                "place": "",
                "edition": "",
            }
            for number, family, given_name, title, year in entries
            if int(number) != left_out_number
        ]
        llm_server.answers(json.dumps({"references": references}))(exchange, request)

    return answer


async def test_a_model_parses_several_references_at_once_and_is_paid_once(
    llm_pipeline: Pipeline, llm: FakeLlmServer
):
    llm.always(answers_references())
    engine_pipeline = with_engines(llm_pipeline, "llm")
    first, second = await parse_references(engine_pipeline, STRUCTURE, SEA)
    assert first["title"] == "The structure of scientific revolutions"
    assert (second["authors"], second["year"]) == ([{"family": "Smith", "given": "A"}], 2004)
    assert second["engine"] == "llm"
    assert "publisher" not in first  # it is not in the reference
    assert len(llm.requests) == 1
    assert await parse_references(engine_pipeline, STRUCTURE, SEA) == [first, second]
    assert len(llm.requests) == 1


async def test_the_next_engine_parses_what_a_model_leaves_out(
    llm_pipeline: Pipeline, llm: FakeLlmServer
):
    engine_pipeline = with_engines(llm_pipeline, "llm", "offline")
    llm.always(answers_references(left_out_number=2))
    assert [each["engine"] for each in await parse_references(engine_pipeline, STRUCTURE, SEA)] == [
        "llm",
        "offline",
    ]
    llm.always(llm_server.answers("I can't do that."))
    assert [each["engine"] for each in await parse_references(engine_pipeline, SEA)] == ["offline"]
    llm.always(llm_server.fails(500))
    assert [each["engine"] for each in await parse_references(engine_pipeline, SEA)] == ["offline"]


async def test_references_that_the_last_engine_parsed_are_kept_although_it_leaves_others_out(
    llm_pipeline: Pipeline, llm: FakeLlmServer, grobid: GrobidServer
):
    grobid.next(*[fails(500)] * 20)
    llm.always(answers_references(left_out_number=2))
    engine_pipeline = with_engines(llm_pipeline, "grobid", "llm", grobid_url=grobid.origin)
    structure, sea = await parse_references(engine_pipeline, STRUCTURE, SEA)
    assert structure["engine"] == "llm"
    assert sea == {"text": SEA}


async def test_an_answer_under_way_is_kept_although_another_question_fails(
    llm_pipeline: Pipeline, llm: FakeLlmServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine_chain, "BATCH_SIZE", 1)
    engine_pipeline = with_engines(llm_pipeline, "llm")
    with pytest.raises(RetryableError):
        await run_failing_beside_another(
            llm, answers_references(), parse_references(engine_pipeline, STRUCTURE, SEA)
        )
    request_count = len(llm.requests)
    assert [each["engine"] for each in await parse_references(engine_pipeline, STRUCTURE, SEA)] == [
        "llm",
        "llm",
    ]
    assert len(llm.requests) == request_count + 1


def test_an_engine_without_its_server_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch):
    for engines, setting in (("grobid", "JOBS_GROBID_URL"), ("offline,llm", "JOBS_LLM_BASE_URL")):
        monkeypatch.setenv("JOBS_REFERENCE_ENGINES", engines)
        with pytest.raises(ValidationError, match=setting):
            Settings()

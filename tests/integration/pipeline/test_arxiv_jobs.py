"""`ingest_arxiv`: papers become documents, once for each version; queries become papers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any
from uuid import uuid4

import pytest

from switchyard.services.files.fetching import FetchFailed, FetchRefused
from switchyard.services.files.keys import result_key, stage_key
from switchyard.services.index.opening import open_index
from switchyard.services.jobs.outcomes import Done, Next, Outcome, Snooze
from switchyard.services.jobs.registry import InvalidPayload
from switchyard.services.llm.errors import LlmRefused
from switchyard.services.records import Document
from switchyard.services.sources.errors import (
    SourceNonsense,
    SourceNotFound,
    SourceRefused,
)
from switchyard.services.workers.ingest.arxiv_documents import Taken, takes_over
from switchyard.services.workers.ingest.sourced import snooze_for
from switchyard.services.workers.stages import INGEST
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.pdfs import TEXT, pdf
from tests.support import arxiv_server as server
from tests.support.arxiv_server import ArxivServer, Paper, many
from tests.support.eventually import eventually
from tests.support.llm_server import DIMENSIONS, LlmServer, answers, embeds, fails, held

JOB = "ingest_arxiv"
STAGES = [
    JOB,
    "extract_text",
    "summarize_content",
    "embed_content",
    "classify_document",
    "link_content",
]
ID = "1605.08386"
MARCH = datetime(2024, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def site() -> Iterator[ArxivServer]:
    with ArxivServer([Paper(ID, comment="20 pages", doi="10.1000/182")]) as opened:
        yield opened


@pytest.fixture
def arxiv(pipeline: Pipeline, site: ArxivServer) -> Pipeline:
    """A pipeline that asks that server, without its rules."""
    update = {"arxiv_base_url": site.url, "arxiv_interval": 0.0}
    return replace(pipeline, settings=pipeline.settings.model_copy(update=update))


async def the_document(arxiv: Pipeline) -> Document:
    """The only one."""
    assert arxiv.ledger is not None
    [found] = (await arxiv.ledger.list_documents()).items
    return found


async def whole_result(arxiv: Pipeline) -> dict[str, Any]:
    document = await the_document(arxiv)
    return dict(json.loads(arxiv.storage.get(result_key(document.id))))


async def indexed(arxiv: Pipeline) -> list[list[float]]:
    """The vectors of the only document."""
    async with open_index(arxiv.settings) as home, home.searched() as (index, _):
        document_id = (await the_document(arxiv)).id
        return await index.vectors_at(document_id, range(100))


# --- one paper ----------------------------------------------------------------------------------


async def test_a_paper_is_summarised_embedded_and_linked(
    arxiv: Pipeline, site: ArxivServer
) -> None:
    assert await arxiv.run(JOB, {"id": ID}) == STAGES
    document = await the_document(arxiv)
    assert (document.state, document.source) == ("completed", f"arxiv:{ID}")
    assert (document.filename, document.title) == (f"{ID}v1.md", site.papers[0].title)
    result = await whole_result(arxiv)
    assert result["summary"]["summary"]
    assert result["chunks"] == 1
    assert (
        result["entry"]
        | {
            "authors": ["Ada Tide", "Müller, J."],
            "categories": ["physics.ao-ph"],
            "published": "2024-03-01T12:00:00Z",
            "comment": "20 pages",
            "doi": "10.1000/182",
            "journal_ref": None,
            "pdf_url": f"{site.origin}/pdf/{ID}v1",
            "full_text": False,
            "withdrawn": False,
        }
        == result["entry"]
    )
    assert arxiv.result(JOB) == {
        "document_id": document.id,
        "duplicate": False,
        "source": f"arxiv:{ID}",
        "version": 1,
        "full_text": False,
        "updated": False,
    }


@pytest.mark.parametrize("again", [{"id": ID}, {"id": f"{ID}v1"}, {"id": f"arXiv:{ID}"}])
async def test_the_same_version_again_runs_nothing(arxiv: Pipeline, again: dict[str, str]) -> None:
    await arxiv.run(JOB, {"id": ID})
    assert await arxiv.run(JOB, again) == [JOB]
    document = await the_document(arxiv)
    assert arxiv.result(JOB) == {
        "document_id": document.id,
        "duplicate": True,
        "state": "completed",
    }


async def test_force_runs_every_stage_again(arxiv: Pipeline) -> None:
    await arxiv.run(JOB, {"id": ID})
    assert await arxiv.run(JOB, {"id": ID, "force": True}) == STAGES
    assert arxiv.result("summarize_content")["reused"] is False


async def test_a_newer_version_replaces_what_the_document_has(
    arxiv: Pipeline, site: ArxivServer
) -> None:
    await arxiv.run(JOB, {"id": ID})
    first = await the_document(arxiv)
    # As long as before: what is kept must not be told by its size.
    abstract = site.papers[0].abstract.replace("Tides", "Waves")
    site.replace(ID, version=2, abstract=abstract)
    assert await arxiv.run(JOB, {"id": ID}) == STAGES
    assert arxiv.result(JOB)["updated"] is True
    second = await the_document(arxiv)
    assert (second.id, second.filename, second.state) == (first.id, f"{ID}v2.md", "completed")
    assert second.content_hash != first.content_hash
    result = await whole_result(arxiv)
    assert result["entry"]["version"] == 2
    assert "Waves" in result["summary"]["summary"]
    assert await arxiv.run(JOB, {"id": f"{ID}v1"}) == [JOB]  # the older one adds nothing
    assert (await the_document(arxiv)).filename == f"{ID}v2.md"


async def test_a_new_version_with_the_same_abstract_pays_for_no_summary(
    arxiv: Pipeline, site: ArxivServer
) -> None:
    await arxiv.run(JOB, {"id": ID})
    site.replace(ID, version=2, comment="21 pages")
    assert await arxiv.run(JOB, {"id": ID}) == STAGES
    assert arxiv.result("summarize_content")["reused"] is True
    assert (await whole_result(arxiv))["entry"]["comment"] == "21 pages"


@pytest.mark.parametrize("stage", ["summarize_content", "embed_content"])
async def test_what_comes_of_an_older_version_too_late_is_not_kept(
    arxiv: Pipeline, site: ArxivServer, llm: LlmServer, stage: str
) -> None:
    update = {"llm_base_url": llm.url, "embed_base_url": llm.url, "embed_dimensions": DIMENSIONS}
    arxiv = replace(arxiv, settings=arxiv.settings.model_copy(update=update))
    first = await arxiv.one(JOB, {"id": ID})
    assert isinstance(first, Next)
    payload = dict(first.jobs[0].payload)
    for before in STAGES[1 : STAGES.index(stage)]:
        await arxiv.one(before, payload)
    asked, go_on = len(llm.requests), threading.Event()
    llm.next(held(go_on, answers("The old one.") if stage == "summarize_content" else embeds()))
    late = asyncio.create_task(arxiv.one(stage, payload))
    try:
        await eventually(lambda: len(llm.requests) > asked)
        site.replace(ID, version=2, abstract="Waves, and nothing but waves.")
        llm.next(answers("The new one."))
        assert await arxiv.run(JOB, {"id": ID}) == STAGES
        kept = await whole_result(arxiv), await indexed(arxiv)
    finally:
        go_on.set()
    assert await late == Done({"document_id": payload["document_id"], "superseded": True})
    assert (await whole_result(arxiv), await indexed(arxiv)) == kept
    assert kept[0]["summary"]["summary"] == "The new one."
    await arxiv.run("link_content", {**payload, "force": True})
    assert (await whole_result(arxiv))["summary"] == kept[0]["summary"]
    assert (await the_document(arxiv)).state == "completed"


@pytest.mark.parametrize("stage", STAGES[2:])
async def test_a_stage_of_an_older_version_leaves_the_rest_to_the_newer_one(
    arxiv: Pipeline, site: ArxivServer, stage: str
) -> None:
    await arxiv.run(JOB, {"id": ID})
    before = await whole_result(arxiv)
    site.replace(ID, version=2, abstract="Waves, and nothing but waves.")
    newer = await arxiv.one(JOB, {"id": ID})
    assert isinstance(newer, Next)
    payload = dict(newer.jobs[0].payload)
    late = await arxiv.one(stage, payload, attempt=3)
    assert late == Done({"document_id": payload["document_id"], "superseded": True})
    assert await whole_result(arxiv) == before
    assert await arxiv.run("extract_text", payload) == STAGES[1:]
    assert (await whole_result(arxiv))["entry"]["version"] == 2
    assert (await the_document(arxiv)).state == "completed"


async def test_a_stage_of_an_older_version_that_fails_too_late_changes_nothing(
    arxiv: Pipeline, site: ArxivServer, llm: LlmServer
) -> None:
    arxiv = replace(arxiv, settings=arxiv.settings.model_copy(update={"llm_base_url": llm.url}))
    first = await arxiv.one(JOB, {"id": ID})
    assert isinstance(first, Next)
    payload = dict(first.jobs[0].payload)
    await arxiv.one("extract_text", payload)
    go_on = threading.Event()
    llm.next(held(go_on, fails(400, "too long")))
    late = asyncio.create_task(arxiv.one("summarize_content", payload))
    try:
        await eventually(lambda: len(llm.requests) == 1)
        site.replace(ID, version=2, abstract="Waves, and nothing but waves.")
        assert await arxiv.run(JOB, {"id": ID}) == STAGES
    finally:
        go_on.set()
    with pytest.raises(LlmRefused):
        await late
    assert (await the_document(arxiv)).state == "completed"


@pytest.mark.parametrize("number", range(8))
async def test_of_several_versions_at_once_the_newest_stays(
    arxiv: Pipeline, site: ArxivServer, number: int
) -> None:
    jobs = []
    for version in (1, 2, 3):
        site.replace(ID, version=version, abstract=f"Waves of version {version}.")
        outcome = await arxiv.one(JOB, {"query": "cat:physics.ao-ph"})
        assert isinstance(outcome, Next)
        jobs.append(dict(outcome.jobs[0].payload))

    async def taken_in(payload: dict[str, Any]) -> Outcome:
        alone, run_id = replace(arxiv), str(uuid4())
        outcome: Outcome = Snooze(0)
        while isinstance(outcome, Snooze):
            outcome = await alone.one(JOB, payload, run_id=run_id)
        return outcome

    await asyncio.gather(*(taken_in(payload) for payload in list(permutations(jobs))[number % 6]))
    document = await the_document(arxiv)
    assert document.filename == f"{ID}v3.md"
    kept = json.loads(arxiv.storage.get(stage_key(document.id, INGEST.name)))["result"]
    assert kept["entry"]["version"] == 3
    assert b"version 3" in arxiv.storage.get(kept["key"])


async def test_a_job_delivered_again_goes_on_where_it_was(arxiv: Pipeline) -> None:
    """Its worker was killed behind the document's record."""
    first = await arxiv.one(JOB, {"id": ID})
    assert isinstance(first, Next)
    again = await arxiv.one(JOB, {"id": ID}, attempt=2)
    assert isinstance(again, Next)
    assert again.jobs == first.jobs


async def test_two_papers_with_the_same_words_are_one_document(
    arxiv: Pipeline, site: ArxivServer
) -> None:
    site.papers.append(Paper("1605.00001"))
    await arxiv.run(JOB, {"id": ID})
    assert await arxiv.run(JOB, {"id": "1605.00001"}) == [JOB]
    assert arxiv.result(JOB)["duplicate"] is True


async def test_an_entry_that_the_job_carries_is_not_asked_for(
    arxiv: Pipeline, site: ArxivServer
) -> None:
    outcome = await arxiv.one(JOB, {"query": "cat:physics.ao-ph"})
    assert isinstance(outcome, Next)
    [child] = outcome.jobs
    assert await arxiv.run(JOB, dict(child.payload)) == STAGES
    assert len(site.requests) == 1


@pytest.mark.parametrize(
    ("known", "offered", "replaces"),
    [
        (None, Taken(9, True), False),
        (Taken(1, False), Taken(1, False), False),
        (Taken(1, False), Taken(2, False), True),
        (Taken(10, False), Taken(9, True), False),
        (Taken(9, False), Taken(10, False), True),
        (Taken(1, False), Taken(1, True), True),
        (Taken(1, True), Taken(1, False), False),
        (Taken(1, True), Taken(2, False), True),
    ],
)
def test_what_replaces_what(known: Taken | None, offered: Taken, replaces: bool) -> None:
    assert takes_over(known, offered) is replaces


# --- the whole text -----------------------------------------------------------------------------


async def test_the_pdf_is_read_when_it_is_wanted(arxiv: Pipeline, site: ArxivServer) -> None:
    await arxiv.run(JOB, {"id": ID})
    site.pdfs[f"{ID}v1"] = pdf([TEXT, TEXT])
    assert await arxiv.run(JOB, {"id": ID, "full_text": True}) == STAGES
    assert (await the_document(arxiv)).filename == f"{ID}v1.pdf"
    result = await whole_result(arxiv)
    assert (result["page_count"], result["media_type"]) == (2, "application/pdf")
    assert result["entry"]["full_text"] is True
    assert await arxiv.run(JOB, {"id": ID}) == [JOB]  # the abstract is less than that

    site.replace(ID, version=2)
    site.pdfs[f"{ID}v2"] = pdf([TEXT])
    assert await arxiv.run(JOB, {"id": ID}) == STAGES
    assert (await whole_result(arxiv))["page_count"] == 1


async def test_a_withdrawn_paper_is_taken_in_by_its_abstract(
    arxiv: Pipeline, site: ArxivServer
) -> None:
    site.replace(ID, comment="This paper has been withdrawn by the authors")
    assert await arxiv.run(JOB, {"id": ID, "full_text": True}) == STAGES
    entry = (await whole_result(arxiv))["entry"]
    assert (entry["withdrawn"], entry["full_text"]) == (True, False)


async def test_a_pdf_elsewhere_is_not_fetched_from_our_own_network(
    arxiv: Pipeline, site: ArxivServer
) -> None:
    """The link comes from outside; only the host of the settings may be one of ours."""
    with ArxivServer() as inside:
        inside.pdfs[f"{ID}v1"] = pdf()
        site.replace(ID, pdf_url=f"{inside.origin}/pdf/{ID}v1")
        with pytest.raises(FetchRefused, match="open internet"):
            await arxiv.one(JOB, {"id": ID, "full_text": True})
        assert inside.requests == []


async def test_a_page_in_the_place_of_a_pdf_is_tried_again(
    arxiv: Pipeline, site: ArxivServer
) -> None:
    entry = server.answer_well
    for page in (b"<!doctype html><p>being made", b"being made"):
        site.next(entry, server.says(page, "text/html"))
        with pytest.raises(SourceNonsense, match="PDF of 1605"):
            await arxiv.one(JOB, {"id": ID, "full_text": True})
    site.next(entry, server.fails(500))
    with pytest.raises(FetchFailed, match="500"):
        await arxiv.one(JOB, {"id": ID, "full_text": True})
    site.next(entry, server.throttled(40))
    outcome = await arxiv.one(JOB, {"id": ID, "full_text": True})
    assert isinstance(outcome, Snooze)
    assert outcome.after == 40


# --- many papers --------------------------------------------------------------------------------


async def test_a_query_is_followed_page_by_page(
    arxiv: Pipeline, site: ArxivServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.services.workers.ingest.arxiv.PAGE_SIZE", 4)
    site.papers = many(15)
    payload = {"query": "cat:physics.ao-ph", "start": 1, "max_results": 10, "force": True}
    ids, sizes, starts = [], [], []
    while payload:
        outcome = await arxiv.one(JOB, payload)
        assert isinstance(outcome, Next)
        starts.append(outcome.result["start"])
        papers = [job.payload for job in outcome.jobs if "id" in job.payload]
        following = [dict(job.payload) for job in outcome.jobs if "query" in job.payload]
        assert all(each["force"] for each in papers)
        ids += [each["id"] for each in papers]
        sizes.append(len(papers))
        [payload] = following or [{}]
    assert ids == [f"2403.{number:05}v1" for number in range(13, 3, -1)]  # the newest first
    assert (sizes, starts) == ([4, 4, 2], [1, 5, 9])


async def test_since_finds_what_is_newer_oldest_first(arxiv: Pipeline, site: ArxivServer) -> None:
    site.papers = many(5)
    site.replace("2403.00000", updated=MARCH + timedelta(days=9), version=2)
    since = (MARCH + timedelta(hours=3)).isoformat()
    outcome = await arxiv.one(JOB, {"query": "ti:number", "since": since})
    assert isinstance(outcome, Next)
    assert [job.payload["id"] for job in outcome.jobs] == ["2403.00003v1", "2403.00004v1"]
    updated = {"query": "ti:number", "since": since, "date": "lastUpdatedDate"}
    outcome = await arxiv.one(JOB, updated)
    assert isinstance(outcome, Next)
    assert [job.payload["id"] for job in outcome.jobs][-1] == "2403.00000v2"
    naive = since.removesuffix("+00:00")
    assert isinstance(await arxiv.one(JOB, {"query": "ti:number", "since": naive}), Next)


async def test_a_query_that_finds_nothing_is_done(arxiv: Pipeline) -> None:
    outcome = await arxiv.one(JOB, {"query": "cat:math.CO"})
    assert outcome == Next([], {"papers": 0, "start": 0, "total": 0, "next_start": None})


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({}, "either id or query"),
        ({"id": ID, "query": "all:x"}, "either id or query"),
        ({"id": "abc"}, "'abc' is no arXiv id"),
        ({"id": ID, "since": "2024-03-01"}, "for a query"),
        ({"query": ""}, "query"),
        ({"query": "x", "max_results": 0}, "max_results"),
        ({"query": "x", "start": 9_950}, None),
        ({"query": "x", "start": 9_950, "max_results": 100}, "beyond 10,000"),
        ({"query": "x", "since": "yesterday"}, "since"),
        ({"query": "x", "page": 1}, "page"),
        ({"id": ID, "entry": {"id": ID}}, "entry"),
    ],
)
def test_a_payload_is_checked_when_it_is_published(
    arxiv: Pipeline, payload: dict[str, Any], said: str | None
) -> None:
    declared = arxiv.registry.get(JOB)
    if said is None:
        declared.validate(payload)
        return
    with pytest.raises(InvalidPayload, match=said):
        declared.validate(payload)


async def test_an_entry_of_another_paper_is_refused(arxiv: Pipeline) -> None:
    outcome = await arxiv.one(JOB, {"query": "cat:physics.ao-ph"})
    assert isinstance(outcome, Next)
    payload = {**outcome.jobs[0].payload, "id": "1605.00001"}
    with pytest.raises(InvalidPayload, match="of another paper"):
        arxiv.registry.get(JOB).validate(payload)


async def test_a_paper_that_does_not_exist_is_a_permanent_error(arxiv: Pipeline) -> None:
    with pytest.raises(SourceNotFound, match=r"no paper 0000\.0000"):
        await arxiv.one(JOB, {"id": "0000.0000"})


async def test_what_arxiv_refuses_is_a_permanent_error(arxiv: Pipeline, site: ArxivServer) -> None:
    refused = server.refusal("incorrect id format for 9999.99999")
    site.next(server.answers(400, refused))
    with pytest.raises(SourceRefused, match="incorrect id format for 9999"):
        await arxiv.one(JOB, {"id": "9999.99999"})


async def test_throttling_snoozes(arxiv: Pipeline, site: ArxivServer) -> None:
    site.next(server.throttled(77))
    outcome = await arxiv.one(JOB, {"id": ID})
    assert isinstance(outcome, Snooze)
    assert outcome.after == 77
    outcome = await arxiv.one(JOB, {"query": "all:x"})
    assert isinstance(outcome, Snooze)
    assert 60 < outcome.after <= 77
    assert len(site.requests) == 1


@pytest.mark.parametrize(
    ("wait", "age", "chance", "seconds"),
    [
        (3, 0, 1, 3),
        (3, 10, 1, 3),
        (3, 60, 1, 12),
        (3, 60, 0.5, 6),
        (3, 60, 0, 3),
        (100, 60, 1, 100),
        (3, 100_000, 1, 80),
        (3, -5, 1, 3),
    ],
)
def test_a_job_that_waits_long_asks_for_its_turn_less_often(
    wait: float, age: float, chance: float, seconds: float
) -> None:
    assert snooze_for(wait, age, chance) == seconds


async def test_no_request_is_made_for_a_paper_whose_entry_is_carried_though_arxiv_is_paused(
    arxiv: Pipeline, site: ArxivServer
) -> None:
    outcome = await arxiv.one(JOB, {"query": "cat:physics.ao-ph"})
    assert isinstance(outcome, Next)
    site.next(server.throttled(77))
    assert isinstance(await arxiv.one(JOB, {"id": ID}), Snooze)
    assert not isinstance(await arxiv.one(JOB, dict(outcome.jobs[0].payload)), Snooze | Done)

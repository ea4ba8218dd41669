"""References are linked to works at catalogues that misbehave, and nothing is asked twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from switchyard.services.common.files.storage_keys import links_key, references_key
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.outcomes import Done, Snooze
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.pipeline.citations.cited_works import CitedWork, LinkStatus, WorkLink
from switchyard.services.pipeline.citations.linking import linker as linking
from switchyard.services.pipeline.citations.linking.linker import Linker, OutOfTime
from switchyard.services.pipeline.citations.linking.openalex import OpenAlex
from switchyard.services.pipeline.citations.linking.work_questions import questions_of
from switchyard.services.pipeline.citations.reference import Person, Reference
from switchyard.services.pipeline.citations.reference_sections import MAX_REFERENCES
from switchyard.services.pipeline.citations.stored_references import stored_references
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.operations import check_source_pauses
from switchyard.services.pipeline.records.graph import EdgeKind
from switchyard.services.pipeline.sources.source_client import SourceClient
from switchyard.services.pipeline.sources.source_errors import (
    SourceBusy,
    SourceNotFound,
    SourceUnavailable,
)
from switchyard.services.pipeline.workers.references.link_citations import NothingToLink
from tests.integration.pipeline.conftest import Pipeline
from tests.support.catalogue_servers import (
    CrossrefServer,
    KnownWork,
    OpenAlexServer,
    WikidataServer,
)
from tests.support.pdfs import pdf
from tests.support.site import Behaviour, cut, fails, moved, says, throttled
from tests.support.small_steps import remove_in_steps

TIDES = KnownWork(1, "On tides and their causes", 1999, "10.1000/tides", authors=("Richard Roe",))
SEA = KnownWork(2, "The sea and its harbours", 2004, arxiv_id="1706.03762", authors=("A. Smith",))
WIND = KnownWork(3, "Wind over the northern harbours", 2010, authors=("Jane Doe",))
LIGHTHOUSES = KnownWork(4, "A chronicle of lighthouses in Brittany", 1887, "10.2000/light")
PILOTS = KnownWork(5, "Tables for the use of pilots", 1850, authors=("Jean Pilote",))


@pytest.fixture
def openalex() -> Iterator[OpenAlexServer]:
    with OpenAlexServer([TIDES, SEA, WIND]) as server:
        yield server


@pytest.fixture
def crossref() -> Iterator[CrossrefServer]:
    with CrossrefServer([TIDES, LIGHTHOUSES]) as server:
        yield server


@pytest.fixture
def wikidata() -> Iterator[WikidataServer]:
    with WikidataServer([PILOTS, SEA]) as server:
        yield server


@pytest.fixture
def linking_settings(
    settings: Settings,
    openalex: OpenAlexServer,
    crossref: CrossrefServer,
    wikidata: WikidataServer,
) -> Settings:
    update = {
        "openalex_base_url": openalex.origin,
        "crossref_base_url": crossref.origin,
        "wikidata_base_url": f"{wikidata.origin}/w/api.php",
        "link_interval": 0.0,
        "link_citations": True,
        "contact": "me@example.org",
    }
    return settings.model_copy(update=update)


def make_reference(work: KnownWork, **fields: Any) -> Reference:
    """Return a reference as a parser returns it."""
    persons = tuple(Person(name.split()[-1], name[0]) for name in work.authors)
    return Reference(text=work.title, title=work.title, authors=persons, year=work.year, **fields)


async def link_references(
    settings: Settings, ledger: Ledger, *references: Reference, timeout: float = 60
) -> list[WorkLink]:
    async with Linker.open(settings, ledger, timeout=timeout) as linker:
        return await linker.link(references)


async def skip_pause(self: Linker, seconds: float, error: Exception) -> None:
    """Stand in for `Linker._sleep_or_raise`, without a pause."""


async def test_works_are_found_by_doi_arxiv_id_or_search_in_the_order_of_the_settings(
    linking_settings: Settings,
    ledger: Ledger,
    openalex: OpenAlexServer,
    crossref: CrossrefServer,
    wikidata: WikidataServer,
):
    links = await link_references(
        linking_settings,
        ledger,
        make_reference(TIDES, doi="10.1000/Tides"),
        make_reference(SEA, arxiv_id="1706.03762v2"),
        make_reference(WIND),
        make_reference(LIGHTHOUSES, doi="10.2000/light"),
        make_reference(PILOTS),
        Reference(text="", title="Nothing that anybody would know of"),
        Reference(text="too little"),
    )
    outcomes = [
        (each.status.value, each.by, each.provider, each.work and each.work.id) for each in links
    ]
    assert outcomes == [
        ("linked", "doi", "openalex", "doi:10.1000/tides"),
        ("linked", "arxiv", "openalex", "arxiv:1706.03762"),
        ("linked", "search", "openalex", "openalex:W3"),
        ("linked", "doi", "crossref", "doi:10.2000/light"),
        ("linked", "search", "wikidata", "wikidata:Q5"),
        ("not_found", "", "", None),
        ("not_found", "", "", None),
    ]
    # Both DOIs in one request, with the address that OpenAlex and Crossref ask for.
    assert sorted(openalex.answered_questions[:2]) == ["10.1000/tides", "10.2000/light"]
    assert openalex.requests[0].parameters["filter"].count("|") == 1
    for site in (openalex, crossref):
        assert all(each.parameters["mailto"] == "me@example.org" for each in site.requests)
    assert "mailto" not in wikidata.requests[0].parameters
    request_counts = [len(site.requests) for site in (openalex, crossref, wikidata)]
    await link_references(
        linking_settings, ledger, make_reference(WIND), make_reference(TIDES, doi="10.1000/tides")
    )
    assert [len(site.requests) for site in (openalex, crossref, wikidata)] == request_counts


async def test_authors_that_are_items_of_wikidata_are_named_in_their_order(
    linking_settings: Settings, ledger: Ledger, wikidata: WikidataServer
):
    wikidata.people = {"Q901": "Jean Pilote", "Q902": "Anne Marin"}
    charts = KnownWork(7, "Charts for pilots", 1851, authors=("Q901", "Paul Phare", "Q902", "Q903"))
    wikidata.works.append(charts)
    wikidata.people["Q903"] = ""
    reference = Reference(text="", title=charts.title, authors=(Person("Pilote", "J"),), year=1851)
    (link,) = await link_references(linking_settings, ledger, reference)
    assert link.work is not None
    assert [each.family for each in link.work.authors] == ["Pilote", "Phare", "Marin"]
    # First the item of the work is requested, then all people together.
    requested_ids = [
        each.parameters["ids"] for each in wikidata.requests if "ids" in each.parameters
    ]
    assert requested_ids[-1] == "Q901|Q902|Q903"


async def test_a_reference_that_fits_several_works_is_ambiguous(
    linking_settings: Settings, ledger: Ledger, openalex: OpenAlexServer
):
    openalex.works.append(replace(WIND, number=33, authors=("John Doe",)))
    (link,) = await link_references(linking_settings, ledger, make_reference(WIND))
    assert link.status is LinkStatus.AMBIGUOUS
    assert [each.work.id for each in link.candidates] == ["openalex:W3", "openalex:W33"]


async def test_a_catalogue_that_fails_is_tried_again_and_then_the_next_is_asked(
    linking_settings: Settings,
    ledger: Ledger,
    openalex: OpenAlexServer,
    crossref: CrossrefServer,
    wikidata: WikidataServer,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(Linker, "_sleep_or_raise", skip_pause)
    openalex.next(cut(), says(b"<html>", "text/html"))
    (link,) = await link_references(
        linking_settings, ledger, make_reference(TIDES, doi="10.1000/tides")
    )
    assert (link.provider, len(openalex.requests)) == ("openalex", 3)
    openalex.always(fails(500))
    links = await link_references(
        linking_settings,
        ledger,
        make_reference(LIGHTHOUSES, doi="10.2000/light"),
        make_reference(WIND),
    )
    assert [each.status.value for each in links] == ["linked", "not_found"]
    # Nobody said that there is no such work: it is asked for again.
    openalex.always(None)
    (link,) = await link_references(linking_settings, ledger, make_reference(WIND))
    assert link.provider == "openalex"
    for site in (openalex, crossref, wikidata):
        site.always(fails(503))
    with pytest.raises(SourceUnavailable):
        await link_references(linking_settings, ledger, make_reference(PILOTS))


@pytest.mark.parametrize(
    "invalid_answer",
    [
        says([]),
        says({"results": {}, "message": {"items": 1}, "query": []}),
        says({"results": [1, {}, {"doi": 7, "title": ["x"]}], "message": {"items": [[]]}}),
    ],
    ids=["list", "no list", "broken"],
)
async def test_an_invalid_record_of_a_catalogue_is_no_work(
    linking_settings: Settings,
    ledger: Ledger,
    openalex: OpenAlexServer,
    monkeypatch: pytest.MonkeyPatch,
    invalid_answer: Behaviour,
):
    monkeypatch.setattr(Linker, "_sleep_or_raise", skip_pause)
    openalex.always(invalid_answer)
    (link,) = await link_references(
        linking_settings, ledger, make_reference(LIGHTHOUSES, doi="10.2000/light")
    )
    assert (link.status.value, link.provider) == ("linked", "crossref")


async def test_a_long_pause_sends_the_job_back_with_no_attempt_used_up(
    linking_settings: Settings, ledger: Ledger, openalex: OpenAlexServer
):
    openalex.next(throttled(600))
    with pytest.raises(SourceBusy) as busy:
        await link_references(linking_settings, ledger, make_reference(WIND))
    assert (busy.value.counts, busy.value.wait) == (False, 600)


async def test_two_processes_at_the_same_moment_ask_each_question_once(
    linking_settings: Settings, ledger: Ledger, openalex: OpenAlexServer
):
    works = [
        KnownWork(100 + n, f"Harbour number {n} of the {n} th coast", 1900, f"10.3000/{n}")
        for n in range(120)
    ]
    openalex.by_doi |= {work.doi: work for work in works}
    references = [make_reference(work, doi=work.doi) for work in works] + [make_reference(WIND)] * 3
    async with await Ledger.open(linking_settings.ledger_url) as other_ledger:
        links_of_both = await asyncio.gather(
            link_references(linking_settings, ledger, *references),
            link_references(linking_settings, other_ledger, *reversed(references)),
        )
    assert all(link.status is LinkStatus.LINKED for links in links_of_both for link in links)
    assert len(openalex.answered_questions) == len(set(openalex.answered_questions)) == 121


async def test_a_killed_process_leaves_its_questions_to_others(
    linking_settings: Settings, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(linking, "CLAIM_POLL_INTERVAL", 0.01)
    key = questions_of(make_reference(WIND))[0].key
    claims = await PipelineLedger(ledger).catalogue_answers.claim_catalogue_questions(
        [key], "dead", ttl=0.3, max_age=60
    )
    assert claims.claimed == (key,)
    (link,) = await link_references(linking_settings, ledger, make_reference(WIND))
    assert link.status is LinkStatus.LINKED


async def test_claims_are_exclusive_until_given_up_and_old_answers_are_dropped(
    ledger: Ledger,
):
    async def claim_questions(holder: str, *keys: str) -> tuple[str, ...]:
        claims = await PipelineLedger(ledger).catalogue_answers.claim_catalogue_questions(
            keys, holder, ttl=60, max_age=60
        )
        return claims.claimed

    assert await claim_questions("one", "a", "b") == ("a", "b")
    assert await claim_questions("two", "a", "c") == ("c",)
    await PipelineLedger(ledger).catalogue_answers.give_up_catalogue_claims(["a", "c"], "one")
    assert await claim_questions("two", "a", "b") == ("a",)
    await PipelineLedger(ledger).catalogue_answers.keep_catalogue_answers({"b": [1]})
    claim = await PipelineLedger(ledger).catalogue_answers.claim_catalogue_questions(
        ["b"], "two", ttl=60, max_age=60
    )
    assert (claim.stored, claim.claimed) == ({"b": [1]}, ())
    expired_claim = await PipelineLedger(ledger).catalogue_answers.claim_catalogue_questions(
        ["b"], "two", ttl=60, max_age=0
    )
    assert (expired_claim.stored, expired_claim.claimed) == ({}, ("b",))
    await PipelineLedger(ledger).catalogue_answers.give_up_catalogue_claims(["b"], "two")

    async def drop_answers(max_age: float) -> int:
        answers = PipelineLedger(ledger).catalogue_answers
        rows = await remove_in_steps(
            lambda limit: answers.drop_catalogue_answers(max_age=max_age, limit=limit), limit=1
        )
        return rows.total()

    assert await drop_answers(60) == 0
    assert await drop_answers(0) == 1
    await PipelineLedger(ledger).catalogue_answers.give_up_catalogue_claims(["a", "c"], "two")
    assert await drop_answers(60) == 2


BODY = "The tide rises twice a day [1]. Others disagree with this [2]."
REFERENCE_LIST = """References
[1] R. Roe. On tides and their causes. Journal of Physics, 12(3):33-40, 1999. doi:10.1000/tides
[2] J. Doe. Wind over the northern harbours. Journal of Winds, 3(1):1-9, 2010."""


async def test_a_document_s_references_are_linked_and_every_repeat_changes_nothing(
    pipeline: Pipeline, linking_settings: Settings, openalex: OpenAlexServer, tmp_path: Path
):
    linking_pipeline = replace(pipeline, settings=linking_settings)
    path = tmp_path / "paper.pdf"
    path.write_bytes(pdf([BODY, REFERENCE_LIST]))
    await linking_pipeline.run("ingest_document", {"path": str(path)})
    document_id = linking_pipeline.result("ingest_document")["document_id"]
    with pytest.raises(NothingToLink):
        await linking_pipeline.run("link_citations", {"document_id": document_id})
    assert await linking_pipeline.run("process_references", {"document_id": document_id}) == [
        "process_references",
        "link_citations",
    ]
    result = linking_pipeline.result("link_citations")
    assert (result["linked"], result["ambiguous"], result["not_found"]) == (2, 0, 0)
    stored_links = linking_pipeline.storage.get(links_key(document_id))
    request_count = len(openalex.requests)
    await linking_pipeline.run("link_citations", {"document_id": document_id})
    await linking_pipeline.run("process_references", {"document_id": document_id})
    assert linking_pipeline.storage.get(links_key(document_id)) == stored_links
    assert len(openalex.requests) == request_count
    references = await stored_references(linking_pipeline.storage, document_id)
    assert references is not None
    assert [each["link"]["work"]["id"] for each in references["references"]] == [
        "doi:10.1000/tides",
        "openalex:W3",
    ]
    assert linking_pipeline.ledger is not None
    page = await PipelineLedger(linking_pipeline.ledger).graph_reads.graph_neighbours(
        document_id, kinds=[EdgeKind.CITES]
    )
    assert page is not None
    assert {(each.node.key, each.edge.provenance, each.node.provenance) for each in page.items} == {
        ("doi:10.1000/tides", "openalex", "link"),
        ("openalex:W3", "openalex", "link"),
    }
    # The links of another list of references are not shown with this one.
    other_list = json.loads(linking_pipeline.storage.get(references_key(document_id))) | {
        "hash": "other"
    }
    linking_pipeline.storage.put(references_key(document_id), json.dumps(other_list).encode())
    references = await stored_references(linking_pipeline.storage, document_id)
    assert references is not None
    assert "link" not in references["references"][0]


async def test_a_job_whose_time_is_over_continues_later(
    linking_settings: Settings,
    pipeline: Pipeline,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
):
    with pytest.raises(OutOfTime):
        await link_references(linking_settings, ledger, make_reference(WIND), timeout=-1)
    stored = {"hash": "x", "references": [make_reference(WIND).as_json()], "citations": []}
    pipeline.storage.put(references_key("d"), json.dumps(stored).encode())
    monkeypatch.setattr(
        "switchyard.services.pipeline.workers.references.link_citations.TIME_BUDGET", -1
    )
    linking_pipeline = replace(pipeline, settings=linking_settings)
    assert isinstance(
        await linking_pipeline.run_job("link_citations", {"document_id": "d"}), Snooze
    )


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_the_references_of_a_book_are_linked_beside_other_jobs(
    linking_settings: Settings, pipeline: Pipeline, ledger: Ledger
):
    """A document has as many references as it may have, and linking them never blocks the event
    loop (`loop_guard`)."""
    authors = tuple(f"A. Author{n}" for n in range(20))
    works = [
        KnownWork(
            n, f"Harbour number {n} of the {n} th coast", 1900, f"10.3000/{n}", authors=authors
        )
        for n in range(MAX_REFERENCES)
    ]
    references = [make_reference(work, doi=work.doi) for work in works]
    people = [Person(name.split()[-1], name[0]) for name in authors]
    known_works = {
        questions_of(reference)[0].key: [
            {
                "provider": "openalex",
                "work": CitedWork.from_fields(
                    title=work.title, doi=work.doi, authors=people
                ).as_json(),
            }
        ]
        for work, reference in zip(works, references, strict=True)
    }
    await PipelineLedger(ledger).catalogue_answers.keep_catalogue_answers(known_works)
    stored = {"hash": "x", "references": [each.as_json() for each in references], "citations": []}
    pipeline.storage.put(references_key("d"), json.dumps(stored).encode())
    linking_pipeline = replace(pipeline, settings=linking_settings)
    outcome = await linking_pipeline.run_job("link_citations", {"document_id": "d"})
    assert isinstance(outcome, Done)
    assert outcome.result["linked"] == MAX_REFERENCES


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_thousands_of_references_of_a_catalogue_that_is_throttled_half_the_time(
    linking_settings: Settings, ledger: Ledger, openalex: OpenAlexServer
):
    works = [
        KnownWork(10 + n, f"Harbour number {n} of the {n} th coast", 1900, f"10.3000/{n}")
        for n in range(2_950)
    ]
    works_without_doi = [
        KnownWork(50_000 + n, f"Lighthouse {n} seen from the {n} th pier", 1900) for n in range(50)
    ]
    openalex.works = works_without_doi
    openalex.by_doi = {work.doi: work for work in works}
    references = [make_reference(work, doi=work.doi) for work in works] + [
        make_reference(work) for work in works_without_doi
    ]
    refused = 0

    def refuse_every_other(exchange: Any, request: Any) -> None:
        nonlocal refused
        if len(openalex.requests) % 2:
            refused += 1
            throttled(0)(exchange, request)
        else:
            openalex.answer(exchange, request)

    openalex.always(refuse_every_other)
    links: list[WorkLink] = []
    for _ in range(100):
        try:
            links = await link_references(linking_settings, ledger, *references, timeout=60)
            break
        except (SourceBusy, OutOfTime):
            continue  # as the job would, later
    assert len(links) == 3_000
    assert all(link.status is LinkStatus.LINKED for link in links)
    assert refused >= 100
    assert len(openalex.answered_questions) == len(set(openalex.answered_questions)) == 3_000


async def test_references_without_a_document_are_parsed_and_linked(
    pipeline: Pipeline, linking_settings: Settings, openalex: OpenAlexServer
):
    linking_pipeline = replace(pipeline, settings=linking_settings)
    texts = [
        "R. Roe. On tides and their causes. Physics 12(3):33-40, 1999. doi:10.1000/tides",
        "X. Nobody. What no catalogue has ever heard of. Nowhere Press, 1931.",
    ]
    await linking_pipeline.run("link_citations", {"references": texts})
    result = linking_pipeline.result("link_citations")
    assert (result["references"], result["linked"], result["not_found"]) == (2, 1, 1)
    references = json.loads(linking_pipeline.storage.get(result["result"]))["references"]
    assert references[0]["title"] == "On tides and their causes"
    assert references[0]["link"]["work"]["id"] == "doi:10.1000/tides"
    assert references[1]["link"]["status"] == "not_found"
    with pytest.raises(ValueError, match="one of document_id and references"):
        await linking_pipeline.run("link_citations", {})


async def test_a_catalogue_that_pauses_for_hours_is_left_out_and_asked_later(
    linking_settings: Settings,
    ledger: Ledger,
    openalex: OpenAlexServer,
    crossref: CrossrefServer,
    wikidata: WikidataServer,
):
    openalex.next(throttled(7200))
    references = (
        make_reference(TIDES, doi="10.1000/tides"),
        make_reference(LIGHTHOUSES),
        make_reference(PILOTS),
        make_reference(WIND),
    )
    async with Linker.open(linking_settings, ledger, timeout=60) as linker:
        links = await linker.link(references)
    assert [each.provider for each in links] == ["crossref", "crossref", "wikidata", ""]
    assert list(linker.paused) == ["openalex"]
    assert len(openalex.requests) == 1

    system = DoctorContext(linking_settings, Registry([]))
    system.ledger = ledger
    (check,) = await check_source_pauses(system)
    assert (check.status, check.finding) == ("warning", Finding.SOURCE_PAUSED)
    pause_end = datetime.fromtimestamp(linker.paused["openalex"], UTC)
    assert (
        f"openalex asked for a pause: nothing is sent to it until {pause_end:%Y-%m-%d}"
        in check.detail
    )

    # A pause is a lease: drop those that end within two hours.
    await ledger.leases.drop_old_leases(-7200, limit=9)
    assert await check_source_pauses(system) == []
    (link,) = await link_references(linking_settings, ledger, make_reference(WIND))
    assert (link.status, link.provider) == (LinkStatus.LINKED, "openalex")


async def test_references_are_linked_as_far_as_they_can_be_when_every_catalogue_pauses(
    pipeline: Pipeline,
    linking_settings: Settings,
    openalex: OpenAlexServer,
    crossref: CrossrefServer,
    wikidata: WikidataServer,
):
    for site in (openalex, crossref, wikidata):
        site.next(throttled(7200))
    linking_pipeline = replace(pipeline, settings=linking_settings)
    outcome = await linking_pipeline.run_job(
        "link_citations", {"references": ["J. Doe. Wind over harbours. 2010."]}
    )
    assert isinstance(outcome, Done)
    assert outcome.result["not_found"] == 1
    assert sorted(outcome.result["paused"]) == ["crossref", "openalex", "wikidata"]


@pytest.mark.parametrize("answer", [None, fails(404), fails(500), throttled(3)])
async def test_the_key_of_openalex_is_sent_and_shown_nowhere(
    linking_settings: Settings,
    ledger: Ledger,
    openalex: OpenAlexServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    answer: Behaviour | None,
):
    monkeypatch.setattr(Linker, "_sleep_or_raise", skip_pause)
    caplog.set_level("DEBUG")
    if answer is not None:
        openalex.next(answer)
    settings_with_key = linking_settings.model_copy(
        update={"openalex_api_key": SecretStr("k-secret")}
    )
    await link_references(settings_with_key, ledger, make_reference(WIND))
    assert {each.parameters["api_key"] for each in openalex.requests} == {"k-secret"}
    printed = capsys.readouterr()
    assert "k-secret" not in caplog.text + printed.out + printed.err
    assert "k-secret" not in repr(OpenAlex.server(settings_with_key)) + repr(settings_with_key)


async def test_the_error_for_a_redirect_that_repeats_the_key_does_not_show_it(
    linking_settings: Settings, ledger: Ledger, openalex: OpenAlexServer
):
    openalex.next(moved("/gone?api_key=k-secret&x=1"), fails(404))
    settings_with_key = linking_settings.model_copy(
        update={"openalex_api_key": SecretStr("k-secret")}
    )
    async with SourceClient.connect(
        OpenAlex.server(settings_with_key), settings_with_key, ledger, max_wait=10
    ) as client:
        with pytest.raises(SourceNotFound) as missing:
            await client.get("/works")
    assert "k-secret" not in str(missing.value)
    assert openalex.requests[-1].parameters["api_key"] == "k-secret"

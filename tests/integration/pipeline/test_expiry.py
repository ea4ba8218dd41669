"""Old files are cleaned away, and never one that somebody still needs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from switchyard.broker.message import JobMessage
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_cleanup import Expiry, clean
from switchyard.services.engine.jobs.outcomes import Done, Next
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.records.requests import NewJob
from tests.integration.pipeline.conftest import Pipeline

DAY = 24 * 3600.0
KEPT = Expiry(by_products=24, documents=None)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage((tmp_path / "files").as_uri())


def put(storage: Storage, key: str, *, age: float = 2 * DAY) -> str:
    """Write a file whose age is so many seconds."""
    storage.put(key, b"content")
    path = Path(storage.url.removeprefix("file://")) / key
    os.utime(path, (time.time() - age,) * 2)
    return key


async def left(storage: Storage) -> list[str]:
    return sorted([stored.key async for stored in storage.list_async()])


def new_job(job_id: str, payload: dict[str, Any]) -> NewJob:
    message = JobMessage(job_type="ingest_document", payload=payload, job_id=job_id)
    return NewJob(message, "hot", "ingest", "hot.ingest_document")


async def test_by_products_go_after_a_day_and_documents_stay(storage: Storage, ledger: Ledger):
    put(storage, "uploads/incoming/old")
    put(storage, "results/jobs/some-job/result.json")
    put(storage, "intermediate/doc/ocr_pdf/pages/1.json")
    put(storage, "intermediate/jobs/some-job/extract_text/pages/1.json")
    put(storage, "sources/github/0123")
    put(storage, "health/probe-of-a-process-that-is-gone")
    remaining = [
        put(storage, "health/probe-of-one-that-runs", age=60),
        put(storage, "uploads/incoming/new", age=DAY / 2),
        put(storage, "results/jobs/new-job/result.json", age=DAY / 2),
        put(storage, "uploads/doc/input.pdf"),
        put(storage, "intermediate/doc/extract_text/output.json"),
        put(storage, "results/doc/result.json"),
        put(storage, "llm/answer.json"),
        put(storage, "switchyard-system.json"),
    ]
    done = await clean(storage, ledger.references, KEPT)
    assert (done.files, done.bytes, done.kept) == (6, 42, 0)
    assert await left(storage) == sorted(remaining)
    assert (await clean(storage, ledger.references, KEPT)).files == 0


async def test_an_input_stays_as_long_as_a_backfill_needs_it(storage: Storage, ledger: Ledger):
    remaining = [
        put(storage, "backfills/of-one-that-runs.jsonl"),
        put(storage, "backfills/uploaded-today.jsonl", age=DAY / 2),
    ]
    of_ended_backfill = put(storage, "backfills/of-one-that-has-ended.jsonl")
    put(storage, "backfills/never-used.jsonl")
    for key in (remaining[0], of_ended_backfill):
        spec = {"source": "file", "options": {"key": key}}
        await ledger.bulk.create_bulk(key, kind="backfill", title="", spec=spec, created_by="test")
    await ledger.bulk.move_bulk(of_ended_backfill, BulkState.CANCELLED, among=list(BulkState))
    done = await clean(storage, ledger.references, KEPT)
    assert (done.files, done.kept) == (2, 1)
    assert await left(storage) == sorted(remaining)


async def test_pictures_go_that_no_list_of_figures_names(storage: Storage, ledger: Ledger):
    named, listed = "results/doc/figures/01.png", "results/doc/figures.json"
    storage.put(listed, json.dumps({"figures": [{"key": named}]}).encode())
    remaining = [
        listed,
        put(storage, named),
        put(storage, "results/doc/figures/of-one-being-described.png", age=DAY / 2),
    ]
    put(storage, "results/doc/figures/of-a-list-before.png")
    put(storage, "results/other/figures/of-a-job-that-died.png")
    done = await clean(storage, ledger.references, KEPT)
    assert (done.files, done.kept) == (2, 0)
    assert await left(storage) == sorted(remaining)


async def test_files_of_old_documents_are_deleted_by_a_setting_and_results_stay(
    storage: Storage, ledger: Ledger
):
    put(storage, "uploads/old/input.pdf", age=11 * DAY)
    put(storage, "intermediate/old/extract_text/output.json", age=11 * DAY)
    remaining = [
        put(storage, "results/old/result.json", age=11 * DAY),
        put(storage, "uploads/new/input.pdf", age=9 * DAY),
    ]
    assert (await clean(storage, ledger.references, Expiry(24, documents=240))).files == 2
    assert await left(storage) == sorted(remaining)


async def test_files_named_by_a_job_or_a_dead_letter_stay(pipeline: Pipeline, storage: Storage):
    """A job names a file by its key, by its document's id, or by the job's own id."""
    ledger = pipeline.ledger
    assert ledger is not None
    remaining = [
        put(storage, "uploads/incoming/by-key"),
        put(storage, "uploads/by-document/input.pdf"),
        put(storage, "intermediate/by-document/ocr_pdf/pages/1.json"),
        put(storage, "results/jobs/waiting-job/result.json"),
        put(storage, "intermediate/nested/ocr_pdf/pages/1.json"),
    ]
    await ledger.jobs.record(new_job("one", {"key": "uploads/incoming/by-key"}))
    await ledger.jobs.record(new_job("two", {"document_id": "by-document"}))
    await ledger.jobs.record(new_job("waiting-job", {}))
    await ledger.jobs.record(new_job("three", {"deep": [{"er": ["nested"]}]}))
    put(storage, "uploads/incoming/unneeded")
    done = await clean(storage, ledger.references, Expiry(24, documents=24))
    assert (done.files, done.kept) == (1, 5)
    assert await left(storage) == sorted(remaining)


async def test_a_file_rewritten_during_a_cleanup_stays(
    storage: Storage, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document that is sent again has its file before its job is recorded."""
    key = put(storage, "uploads/doc/input.pdf", age=11 * DAY)
    names_needed = ledger.references.names_needed

    async def slowly(**since: float) -> set[str]:
        needed = await names_needed(**since)
        storage.put(key, b"sent again")
        return needed

    monkeypatch.setattr(ledger.references, "names_needed", slowly)
    assert (await clean(storage, ledger.references, Expiry(24, documents=240))).files == 0
    assert await left(storage) == [key]


async def test_files_of_an_old_document_that_is_sent_again_stay(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """Between its first job and the second one no job names the document."""
    path = tmp_path / "tides.md"
    path.write_text("# Tides\n\nThe tide rises.")
    await pipeline.run("ingest_document", {"path": str(path)})
    for file in Path(pipeline.storage.url.removeprefix("file://")).rglob("*.*"):
        os.utime(file, (time.time() - 11 * DAY,) * 2)
    outcome = await pipeline.one("ingest_document", {"path": str(path), "force": True})
    assert isinstance(outcome, Next)
    assert pipeline.ledger is not None
    assert (
        await clean(pipeline.storage, pipeline.ledger.references, Expiry(24, documents=240))
    ).files
    (extract,) = outcome.jobs
    assert isinstance(await pipeline.one(extract.job_type, dict(extract.payload)), Next)


@pytest.mark.parametrize("whose", ["host", "ledger"])
async def test_a_clock_that_is_days_ahead_makes_no_file_old(
    storage: Storage, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    key = put(storage, "uploads/incoming/new", age=DAY / 2)
    clock = time if whose == "host" else ledger.clock
    ahead = clock.time() + 3 * DAY
    monkeypatch.setattr(clock, "time", lambda: ahead)
    await ledger.job_reads.get(
        "any"
    )  # the host's clock is compared with the ledger's whenever that is asked
    assert (await clean(storage, ledger.references, KEPT)).files == 0
    assert await left(storage) == [key]


async def test_files_of_an_interrupted_write_are_removed(storage: Storage, ledger: Ledger):
    put(storage, "uploads/incoming/whole", age=DAY / 2)
    root = Path(storage.url.removeprefix("file://"))
    for name, age in (("old#1", 2 * DAY), ("new#1", DAY / 2)):
        path = root / "uploads" / "incoming" / name
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    assert (await clean(storage, ledger.references, KEPT)).unfinished == 1
    assert sorted(each.name for each in (root / "uploads" / "incoming").iterdir()) == [
        "new#1",
        "whole",
    ]


async def test_the_job_goes_by_the_settings(pipeline: Pipeline):
    settings = pipeline.settings.model_copy(update={"files_kept_hours": 72.0})
    pipeline.settings = settings
    storage = Storage(settings.files_url)
    put(storage, "uploads/incoming/old", age=4 * DAY)
    put(storage, "uploads/incoming/new", age=2 * DAY)
    outcome = await pipeline.one("cleanup_expired", {}, lane="maintenance")
    assert isinstance(outcome, Done)
    removed = {"files": 1, "bytes": 7, "unfinished": 0, "leases": 0, "crawls": 0}
    assert outcome.result == removed | {"kept": 0}
    assert await left(storage) == ["uploads/incoming/new"]


async def test_leases_that_ran_out_long_ago_are_forgotten(pipeline: Pipeline):
    """Each web site that was ever visited has one."""
    assert pipeline.ledger is not None
    for name, ttl in (("web.a.pause", -2 * DAY), ("web.b.pause", -60.0), ("web.c.pause", 60.0)):
        assert await pipeline.ledger.leases.acquire_lease(name, "somebody", ttl)
    outcome = await pipeline.one("cleanup_expired", {}, lane="maintenance")
    assert isinstance(outcome, Done)
    assert outcome.result["leases"] == 1
    assert await pipeline.ledger.leases.lease_remaining("web.c.pause") > 0
    assert (await pipeline.ledger.leases.drop_old_leases(0, limit=9)).rows.total() == 1

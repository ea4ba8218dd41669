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
EXPIRY = Expiry(by_products=24, documents=None)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage((tmp_path / "files").as_uri())


def put_file(storage: Storage, key: str, *, age: float = 2 * DAY) -> str:
    """Write a file of this age in seconds."""
    storage.put(key, b"content")
    path = Path(storage.url.removeprefix("file://")) / key
    os.utime(path, (time.time() - age,) * 2)
    return key


async def list_keys(storage: Storage) -> list[str]:
    return sorted([stored.key async for stored in storage.list_async()])


def new_job(job_id: str, payload: dict[str, Any]) -> NewJob:
    message = JobMessage(job_type="ingest_document", payload=payload, job_id=job_id)
    return NewJob(message, "hot", "ingest", "hot.ingest_document")


async def test_by_products_are_deleted_after_a_day_and_documents_stay(
    storage: Storage, ledger: Ledger
):
    put_file(storage, "uploads/incoming/old")
    put_file(storage, "results/jobs/some-job/result.json")
    put_file(storage, "intermediate/doc/ocr_pdf/pages/1.json")
    put_file(storage, "intermediate/jobs/some-job/extract_text/pages/1.json")
    put_file(storage, "sources/github/0123")
    put_file(storage, "health/probe-of-a-process-that-is-gone")
    remaining = [
        put_file(storage, "health/probe-of-one-that-runs", age=60),
        put_file(storage, "uploads/incoming/new", age=DAY / 2),
        put_file(storage, "results/jobs/new-job/result.json", age=DAY / 2),
        put_file(storage, "uploads/doc/input.pdf"),
        put_file(storage, "intermediate/doc/extract_text/output.json"),
        put_file(storage, "results/doc/result.json"),
        put_file(storage, "llm/answer.json"),
        put_file(storage, "switchyard-system.json"),
    ]
    cleaned = await clean(storage, ledger.references, EXPIRY)
    assert (cleaned.files, cleaned.bytes, cleaned.kept) == (6, 42, 0)
    assert await list_keys(storage) == sorted(remaining)
    assert (await clean(storage, ledger.references, EXPIRY)).files == 0


async def test_an_input_stays_as_long_as_a_backfill_needs_it(storage: Storage, ledger: Ledger):
    remaining = [
        put_file(storage, "backfills/of-one-that-runs.jsonl"),
        put_file(storage, "backfills/uploaded-today.jsonl", age=DAY / 2),
    ]
    ended_backfill_key = put_file(storage, "backfills/of-one-that-has-ended.jsonl")
    put_file(storage, "backfills/never-used.jsonl")
    for key in (remaining[0], ended_backfill_key):
        spec = {"source": "file", "options": {"key": key}}
        await ledger.bulk.create_bulk(key, kind="backfill", title="", spec=spec, created_by="test")
    await ledger.bulk.move_bulk(ended_backfill_key, BulkState.CANCELLED, among=list(BulkState))
    cleaned = await clean(storage, ledger.references, EXPIRY)
    assert (cleaned.files, cleaned.kept) == (2, 1)
    assert await list_keys(storage) == sorted(remaining)


async def test_pictures_that_no_list_of_figures_names_are_deleted(storage: Storage, ledger: Ledger):
    picture_key, list_key = "results/doc/figures/01.png", "results/doc/figures.json"
    storage.put(list_key, json.dumps({"figures": [{"key": picture_key}]}).encode())
    remaining = [
        list_key,
        put_file(storage, picture_key),
        put_file(storage, "results/doc/figures/of-one-being-described.png", age=DAY / 2),
    ]
    put_file(storage, "results/doc/figures/of-a-list-before.png")
    put_file(storage, "results/other/figures/of-a-job-that-died.png")
    cleaned = await clean(storage, ledger.references, EXPIRY)
    assert (cleaned.files, cleaned.kept) == (2, 0)
    assert await list_keys(storage) == sorted(remaining)


async def test_files_of_old_documents_are_deleted_by_a_setting_and_results_stay(
    storage: Storage, ledger: Ledger
):
    put_file(storage, "uploads/old/input.pdf", age=11 * DAY)
    put_file(storage, "intermediate/old/extract_text/output.json", age=11 * DAY)
    remaining = [
        put_file(storage, "results/old/result.json", age=11 * DAY),
        put_file(storage, "uploads/new/input.pdf", age=9 * DAY),
    ]
    assert (await clean(storage, ledger.references, Expiry(24, documents=240))).files == 2
    assert await list_keys(storage) == sorted(remaining)


async def test_files_named_by_a_job_or_a_dead_letter_stay(pipeline: Pipeline, storage: Storage):
    """A job names a file by its key, by its document's id, or by the job's own id."""
    ledger = pipeline.ledger
    assert ledger is not None
    remaining = [
        put_file(storage, "uploads/incoming/by-key"),
        put_file(storage, "uploads/by-document/input.pdf"),
        put_file(storage, "intermediate/by-document/ocr_pdf/pages/1.json"),
        put_file(storage, "results/jobs/waiting-job/result.json"),
        put_file(storage, "intermediate/nested/ocr_pdf/pages/1.json"),
    ]
    await ledger.jobs.record(new_job("one", {"key": "uploads/incoming/by-key"}))
    await ledger.jobs.record(new_job("two", {"document_id": "by-document"}))
    await ledger.jobs.record(new_job("waiting-job", {}))
    await ledger.jobs.record(new_job("three", {"deep": [{"er": ["nested"]}]}))
    put_file(storage, "uploads/incoming/unneeded")
    cleaned = await clean(storage, ledger.references, Expiry(24, documents=24))
    assert (cleaned.files, cleaned.kept) == (1, 5)
    assert await list_keys(storage) == sorted(remaining)


async def test_a_file_rewritten_during_a_cleanup_stays(
    storage: Storage, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document that is sent again has its file before its job is recorded."""
    key = put_file(storage, "uploads/doc/input.pdf", age=11 * DAY)
    names_needed = ledger.references.names_needed

    async def write_meanwhile(**since: float) -> set[str]:
        needed = await names_needed(**since)
        storage.put(key, b"sent again")
        return needed

    monkeypatch.setattr(ledger.references, "names_needed", write_meanwhile)
    assert (await clean(storage, ledger.references, Expiry(24, documents=240))).files == 0
    assert await list_keys(storage) == [key]


async def test_files_of_an_old_document_that_is_sent_again_stay(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """Between its first job and the second one no job names the document."""
    path = tmp_path / "tides.md"
    path.write_text("# Tides\n\nThe tide rises.")
    await pipeline.run("ingest_document", {"path": str(path)})
    for file in Path(pipeline.storage.url.removeprefix("file://")).rglob("*.*"):
        os.utime(file, (time.time() - 11 * DAY,) * 2)
    outcome = await pipeline.run_job("ingest_document", {"path": str(path), "force": True})
    assert isinstance(outcome, Next)
    assert pipeline.ledger is not None
    assert (
        await clean(pipeline.storage, pipeline.ledger.references, Expiry(24, documents=240))
    ).files
    (extract,) = outcome.jobs
    assert isinstance(await pipeline.run_job(extract.job_type, dict(extract.payload)), Next)


@pytest.mark.parametrize("clock_owner", ["host", "ledger"])
async def test_a_clock_that_is_days_ahead_makes_no_file_old(
    storage: Storage, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, clock_owner: str
) -> None:
    key = put_file(storage, "uploads/incoming/new", age=DAY / 2)
    clock = time if clock_owner == "host" else ledger.clock
    ahead = clock.time() + 3 * DAY
    monkeypatch.setattr(clock, "time", lambda: ahead)
    # With each query, the host's clock is compared with the ledger's.
    await ledger.job_reads.get("any")
    assert (await clean(storage, ledger.references, EXPIRY)).files == 0
    assert await list_keys(storage) == [key]


async def test_files_of_an_interrupted_write_are_removed(storage: Storage, ledger: Ledger):
    put_file(storage, "uploads/incoming/whole", age=DAY / 2)
    root = Path(storage.url.removeprefix("file://"))
    for name, age in (("old#1", 2 * DAY), ("new#1", DAY / 2)):
        path = root / "uploads" / "incoming" / name
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    assert (await clean(storage, ledger.references, EXPIRY)).unfinished == 1
    assert sorted(each.name for each in (root / "uploads" / "incoming").iterdir()) == [
        "new#1",
        "whole",
    ]


async def test_the_cleanup_job_follows_the_settings(pipeline: Pipeline):
    settings = pipeline.settings.model_copy(update={"files_kept_hours": 72.0})
    pipeline.settings = settings
    storage = Storage(settings.files_url)
    put_file(storage, "uploads/incoming/old", age=4 * DAY)
    put_file(storage, "uploads/incoming/new", age=2 * DAY)
    outcome = await pipeline.run_job("cleanup_expired", {}, lane="maintenance")
    assert isinstance(outcome, Done)
    removed = {"files": 1, "bytes": 7, "unfinished": 0, "leases": 0, "crawls": 0}
    assert outcome.result == removed | {"kept": 0}
    assert await list_keys(storage) == ["uploads/incoming/new"]


async def test_leases_that_ran_out_long_ago_are_forgotten(pipeline: Pipeline):
    """Each web site that was ever visited has a lease."""
    assert pipeline.ledger is not None
    for name, ttl in (("web.a.pause", -2 * DAY), ("web.b.pause", -60.0), ("web.c.pause", 60.0)):
        assert await pipeline.ledger.leases.acquire_lease(name, "somebody", ttl)
    outcome = await pipeline.run_job("cleanup_expired", {}, lane="maintenance")
    assert isinstance(outcome, Done)
    assert outcome.result["leases"] == 1
    assert await pipeline.ledger.leases.lease_remaining("web.c.pause") > 0
    assert (await pipeline.ledger.leases.drop_old_leases(0, limit=9)).rows.total() == 1

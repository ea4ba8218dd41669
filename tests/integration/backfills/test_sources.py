"""Sources of backfills: each item becomes one job."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from switchyard.services.engine.backfill import backfill_run
from switchyard.services.engine.backfill.backfill_run import BATCH
from switchyard.services.engine.backfill.formats import FileFormat
from switchyard.services.engine.backfill.sources import InvalidBackfill, Item, Unusable
from switchyard.services.engine.backfill.spec import Plan, job_or_reason, parse_spec
from switchyard.services.engine.bulk import runner as bulk_runner
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.records.requests import JobFilter, NewJob
from switchyard.services.engine.records.states import State
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.sources import backfill_arxiv
from tests.support.arxiv_server import ArxivServer, Paper, answer_well, fails
from tests.support.backfills import BackfillUser, open_backfills, read_numbers
from tests.support.brokers import TestBroker
from tests.support.jobs import journal
from tests.support.system import JOB_MODULES

MANY = BATCH + 10
"""Number of items: more than one batch has."""


async def test_each_item_becomes_one_job_and_is_done(
    broker: TestBroker, database_url: str, tmp_path: Path
) -> None:
    async with open_backfills(broker, database_url, tmp_path) as (system, user):
        options = await user.store({"n": n} for n in range(MANY))
        operation = await user.start("file", options, job_type="noop")
        await system.start_worker(slots=8)
        operation_at_end = await user.run(operation)
        assert operation_at_end.state is BulkState.COMPLETED
        progress = await user.progress(operation)
        assert (progress.total, progress.read, progress.published) == (MANY, MANY, MANY)
        assert progress.jobs == {State.SUCCEEDED: MANY}
        assert progress.succeeded
        assert await read_numbers(system.ledger) == list(range(MANY))
        assert len(journal.starts) == MANY


async def test_other_tasks_of_the_loop_run_while_a_batch_is_made(
    user: BackfillUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_in_turn, max_made_in_turn, loop = 0, 0, asyncio.get_running_loop()

    def begin_turn() -> None:
        nonlocal made_in_turn
        made_in_turn = 0

    def count_jobs(plan: Plan, item: Item | Unusable) -> NewJob | str:
        nonlocal made_in_turn, max_made_in_turn
        if made_in_turn == 0:
            loop.call_soon(begin_turn)
        made_in_turn += 1
        max_made_in_turn = max(max_made_in_turn, made_in_turn)
        return job_or_reason(plan, item)

    monkeypatch.setattr(backfill_run, "job_or_reason", count_jobs)
    options = await user.store({"n": n} for n in range(MANY))
    operation = await user.start("file", options, job_type="noop")
    await user.system.start_worker(slots=8)
    await user.run(operation)
    assert 0 < max_made_in_turn <= backfill_run.JOBS_PER_TURN


async def test_a_template_makes_payloads_of_csv(user: BackfillUser) -> None:
    data = '\ufeffid,title\r\n7,"two\nlines, and ""quotes"""\r\n8,plain\r\n'.encode()
    options = await user.store(data, FileFormat.CSV)
    template = {"text": "{title} ({id})", "n": 3}
    spec_json = {"source": "file", "options": options, "job_type": "noop", "payload": template}
    preview = await user.backfills.preview(parse_spec(spec_json))
    assert preview.total == 2
    assert [job.message.payload for job in preview.jobs] == [
        {"text": 'two\nlines, and "quotes" (7)', "n": 3},
        {"text": "plain (8)", "n": 3},
    ]


async def test_unusable_lines_are_skipped_and_reported(user: BackfillUser) -> None:
    lines = [b'{"n": 0}', b"", b"{nonsense", b'{"n": "many"}', b"\xff\xfe", b'{"n": 5}']
    options = await user.store(b"\n".join(lines))
    operation = await user.start("file", options, job_type="noop")
    await user.system.start_worker()
    await user.run(operation)
    progress = await user.progress(operation)
    assert (progress.total, progress.read, progress.published) == (5, 5, 2)
    assert progress.skipped == 3
    assert [note.partition(":")[0] for note in progress.notes] == ["line 3", "4", "line 5"]
    assert await read_numbers(user.system.ledger) == [0, 5]
    assert not progress.succeeded


async def test_a_csv_with_empty_long_and_unclosed_rows_is_read(user: BackfillUser) -> None:
    long_text = "x" * 200_000
    options = await user.store(f"\n\nn,text\n1,{long_text}\n2,b\n".encode(), FileFormat.CSV)
    spec_json = {"source": "file", "options": options, "job_type": "noop"}
    spec_json["payload"] = {"n": 0, "text": "{n}{text}"}
    preview = await user.backfills.preview(parse_spec(spec_json))
    assert [job.message.payload["text"] for job in preview.jobs] == [f"1{long_text}", "2b"]
    rows = "".join(f"{n},some text\n" for n in range(100_000))
    options = await user.store(f'n,text\n1,"open\n{rows}'.encode(), FileFormat.CSV)
    preview = await user.backfills.preview(parse_spec({**spec_json, "options": options}))
    assert preview.unusable == ("line 2: longer than 1,048,576 bytes: is a quote not closed?",)
    assert preview.jobs


async def test_reading_a_source_goes_on_after_it_was_unavailable(
    user: BackfillUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_runner, "MIN_RETRY_PAUSE", 0.05)
    await user.system.start_worker()
    operation = await user.start("numbers", {"to": 560, "away_at": 520})
    operation_at_end = await user.run(operation)
    assert operation_at_end.state is BulkState.COMPLETED
    assert await read_numbers(user.system.ledger) == list(range(560))


async def test_items_with_the_same_key_are_one_job(user: BackfillUser) -> None:
    await user.system.start_worker()
    operation = await user.start("numbers", {"to": 560, "keys": 520})
    await user.run(operation)
    progress = await user.progress(operation)
    assert (progress.read, progress.published, progress.repeated) == (560, 520, 40)
    assert progress.jobs == {State.SUCCEEDED: 520}
    assert progress.succeeded
    assert len(journal.starts) == 520


async def test_each_document_stored_before_the_start_becomes_one_job(user: BackfillUser) -> None:
    ledger = user.system.ledger
    for number in range(7):
        source = f"arxiv:{number}" if number % 2 else f"upload:{number}"
        await PipelineLedger(ledger).documents.upsert_document(
            f"hash-{number}", source=source, title=f"T{number}"
        )
    template = {"text": "{source} {title}"}
    operation = await user.start(
        "documents", {"source": "arxiv:"}, job_type="noop", payload=template
    )
    await PipelineLedger(ledger).documents.upsert_document(
        "late", source="arxiv:late", title="came later"
    )
    await user.system.start_worker()
    await user.run(operation)
    texts = {start.message.payload["text"] for start in journal.starts}
    assert texts == {"arxiv:1 T1", "arxiv:3 T3", "arxiv:5 T5"}


async def test_papers_of_arxiv_are_published_page_by_page(
    broker310: TestBroker,
    sqlite_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_runner, "MIN_RETRY_PAUSE", 0.05)
    monkeypatch.setattr(backfill_arxiv, "PAGE_SIZE", 10)
    first_published = datetime(2024, 3, 1, 12, tzinfo=UTC)
    papers = [
        Paper(
            f"2403.{number:05}",
            published=first_published + timedelta(hours=number),
            categories=("cs.DB",),
        )
        for number in range(60)
    ]
    modules = (*JOB_MODULES, "switchyard.services.pipeline.workers.ingest.arxiv")
    with ArxivServer([*papers, Paper("2403.99999", categories=("math.CO",))]) as server:
        arxiv_settings = {"arxiv_base_url": server.url, "arxiv_interval": 0.001}
        async with open_backfills(
            broker310, sqlite_url, tmp_path, modules=modules, **arxiv_settings
        ) as (
            system,
            user,
        ):
            options = {"query": "cat:cs.DB", "from": "2024-03-02", "to": "2024-03-02"}
            operation = await user.start("arxiv", options)
            server.next(answer_well, fails(500))  # its second page fails at first
            async with user.running():
                await system.wait_until_ready("backfill.ingest", 24)
            page = await system.ledger.job_reads.list_jobs(JobFilter(job_type="ingest_arxiv"))
            records = [await system.ledger.job_reads.get(job.id) for job in page.items]
            ids = sorted(record.payload["id"] for record in records if record is not None)
            assert ids == [f"2403.{number:05}v1" for number in range(12, 36)]
            progress = await user.progress(operation)
            assert (progress.total, progress.published) == (24, 24)


INVALID_BACKFILLS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    (
        "nowhere",
        {},
        {},
        "no source 'nowhere'; known are: arxiv, documents, file, github, huggingface, numbers",
    ),
    ("numbers", {"to": "x"}, {}, "source numbers: to: Input should be a valid integer"),
    ("numbers", {"to": 0}, {}, "numbers to=0: no items"),
    ("documents", {}, {}, "source documents needs a job type: name one with --type"),
    ("numbers", {"to": 9}, {"job_type": "nothing"}, "no job type 'nothing'"),
    ("numbers", {"to": 9}, {"lane": "maintenance"}, "not worked in lane maintenance"),
    ("numbers", {"to": 9}, {"payload": {"n": "{m}"}}, "the item has no field 'm'; it has: n"),
    ("numbers", {"to": 9}, {"payload": {"n": "x{n}"}}, "payload of noop: n: Input should be"),
    ("numbers", {"to": 9}, {"payload": {"text": "{}"}}, "'{}' has a brace that names no field"),
    ("numbers", {"to": 9, "broken_at": 1}, {}, "numbers raised KeyError: 'a mistake' ("),
    ("numbers", {"to": 9}, {"low": 5, "high": 5}, "low watermark must be below the high"),
    ("numbers", {"to": 9}, {"until": "2020-01-01T00:00:00Z"}, "its end lies in the past"),
    ("file", {"key": "backfills/none.csv", "format": "csv"}, {"job_type": "noop"}, "no file"),
    (
        "file",
        {"key": "uploads/x", "format": "csv"},
        {"job_type": "noop"},
        "POST /backfills/inputs",
    ),
]


async def test_an_invalid_backfill_is_refused_at_the_start(user: BackfillUser) -> None:
    for source, options, spec, message in INVALID_BACKFILLS:
        with pytest.raises(InvalidBackfill) as refused:
            await user.start(source, options, **spec)
        assert message in str(refused.value)
        assert (await user.system.ledger.bulk.list_bulk()).items == (), message

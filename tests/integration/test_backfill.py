"""Backfills on real brokers: what is published, how fast, and what it makes way for."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from switchyard.services.backfill import arxiv, course, gate
from switchyard.services.backfill import progress as progress_module
from switchyard.services.backfill.formats import FileFormat
from switchyard.services.backfill.sources import InvalidBackfill
from switchyard.services.backfill.spec import parse_spec, then_id_of
from switchyard.services.bulk import control as bulk_control
from switchyard.services.bulk import runner as bulk_runner
from switchyard.services.bulk.handler import BulkFailed
from switchyard.services.bulk.hot_traffic import HotTraffic
from switchyard.services.bulk.session import BulkSession
from switchyard.services.ledger import Ledger
from switchyard.services.records import BulkState, JobFilter, State
from tests.support.arxiv_server import ArxivServer, Paper, answer_well, fails
from tests.support.backfills import BackfillUser
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import JOB_MODULES, System, lanes_with, open_system

QUEUE = "backfill.llm"


@asynccontextmanager
async def opened(
    broker: TestBroker, url: str, directory: Path, **options: Any
) -> AsyncIterator[tuple[System, BackfillUser]]:
    files = (directory / "files").as_uri()
    async with open_system(broker, url, storage_url=files, **options) as system:
        yield system, BackfillUser(system)


@pytest.fixture
async def user(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> AsyncIterator[BackfillUser]:
    async with opened(broker310, sqlite_url, tmp_path) as (_, user):
        yield user


async def numbers(ledger: Ledger) -> list[int]:
    """The numbers of all jobs of `noop`, sorted."""
    found: list[int] = []
    cursor: str | None = None
    while True:
        page = await ledger.list_jobs(JobFilter(job_type="noop"), limit=1000, cursor=cursor)
        for job in page.items:
            record = await ledger.get(job.id)
            assert record is not None
            found.append(record.payload["n"])
        cursor = page.next_cursor
        if cursor is None:
            return sorted(found)


async def test_each_item_becomes_one_job_and_is_done(
    broker: TestBroker, database_url: str, tmp_path: Path
) -> None:
    async with opened(broker, database_url, tmp_path) as (system, user):
        options = await user.store({"n": n} for n in range(1200))
        operation = await user.start("file", options, job_type="noop")
        await system.start_worker(slots=8)
        ended = await user.run(operation)
        assert ended.state is BulkState.COMPLETED
        progress = await user.progress(operation)
        assert (progress.total, progress.read, progress.published) == (1200, 1200, 1200)
        assert progress.jobs == {State.SUCCEEDED: 1200}
        assert progress.succeeded
        assert await numbers(system.ledger) == list(range(1200))
        assert len(journal.starts) == 1200


# --- sources ------------------------------------------------------------------------------------


async def test_a_template_makes_payloads_of_csv(user: BackfillUser) -> None:
    data = '\ufeffid,title\r\n7,"two\nlines, and ""quotes"""\r\n8,plain\r\n'.encode()
    options = await user.store(data, FileFormat.CSV)
    template = {"text": "{title} ({id})", "n": 3}
    wanted = {"source": "file", "options": options, "job_type": "noop", "payload": template}
    preview = await user.backfills.preview(parse_spec(wanted))
    assert preview.total == 2
    assert [job.message.payload for job in preview.jobs] == [
        {"text": 'two\nlines, and "quotes" (7)', "n": 3},
        {"text": "plain (8)", "n": 3},
    ]


async def test_what_can_not_be_used_is_skipped_and_told(user: BackfillUser) -> None:
    lines = [b'{"n": 0}', b"", b"{nonsense", b'{"n": "many"}', b"\xff\xfe", b'{"n": 5}']
    options = await user.store(b"\n".join(lines))
    operation = await user.start("file", options, job_type="noop")
    await user.system.start_worker()
    await user.run(operation)
    progress = await user.progress(operation)
    assert (progress.total, progress.read, progress.published) == (5, 5, 2)
    assert progress.skipped == 3
    assert [note.partition(":")[0] for note in progress.notes] == ["line 3", "4", "line 5"]
    assert await numbers(user.system.ledger) == [0, 5]
    assert not progress.succeeded


async def test_a_csv_with_odd_rows_is_read_all_the_same(user: BackfillUser) -> None:
    long = "x" * 200_000
    options = await user.store(f"\n\nn,text\n1,{long}\n2,b\n".encode(), FileFormat.CSV)
    wanted = {"source": "file", "options": options, "job_type": "noop"}
    wanted["payload"] = {"n": 0, "text": "{n}{text}"}
    preview = await user.backfills.preview(parse_spec(wanted))
    assert [job.message.payload["text"] for job in preview.jobs] == [f"1{long}", "2b"]
    rows = "".join(f"{n},some text\n" for n in range(100_000))
    options = await user.store(f'n,text\n1,"open\n{rows}'.encode(), FileFormat.CSV)
    preview = await user.backfills.preview(parse_spec({**wanted, "options": options}))
    assert preview.unusable == ("line 2: longer than 1,048,576 bytes: is a quote not closed?",)
    assert preview.jobs


async def test_an_own_source_is_read_on_after_it_was_away(
    user: BackfillUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_runner, "FIRST_PAUSE", 0.05)
    await user.system.start_worker()
    operation = await user.start("numbers", {"to": 900, "away_at": 700})
    ended = await user.run(operation)
    assert ended.state is BulkState.COMPLETED
    assert await numbers(user.system.ledger) == list(range(900))


async def test_items_with_the_same_key_are_one_job(user: BackfillUser) -> None:
    await user.system.start_worker()
    operation = await user.start("numbers", {"to": 900, "keys": 700})
    await user.run(operation)
    progress = await user.progress(operation)
    assert (progress.read, progress.published, progress.repeated) == (900, 700, 200)
    assert progress.jobs == {State.SUCCEEDED: 700}
    assert progress.succeeded
    assert len(journal.starts) == 700


async def test_documents_that_are_stored_are_gone_through_once(user: BackfillUser) -> None:
    ledger = user.system.ledger
    for number in range(7):
        source = f"arxiv:{number}" if number % 2 else f"upload:{number}"
        await ledger.upsert_document(f"hash-{number}", source=source, title=f"T{number}")
    template = {"text": "{source} {title}"}
    operation = await user.start(
        "documents", {"source": "arxiv:"}, job_type="noop", payload=template
    )
    await ledger.upsert_document("late", source="arxiv:late", title="came later")
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
    monkeypatch.setattr(bulk_runner, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(arxiv, "PAGE_SIZE", 10)
    first = datetime(2024, 3, 1, 12, tzinfo=UTC)
    papers = [
        Paper(f"2403.{number:05}", published=first + timedelta(hours=number), categories=("cs.DB",))
        for number in range(60)
    ]
    modules = (*JOB_MODULES, "switchyard.services.workers.ingest.arxiv")
    with ArxivServer([*papers, Paper("2403.99999", categories=("math.CO",))]) as server:
        source = {"arxiv_base_url": server.url, "arxiv_interval": 0.001}
        async with opened(broker310, sqlite_url, tmp_path, modules=modules, **source) as (
            system,
            user,
        ):
            options = {"query": "cat:cs.DB", "from": "2024-03-02", "to": "2024-03-02"}
            operation = await user.start("arxiv", options)
            server.next(answer_well, fails(500))  # its second page fails at first
            async with user.running():
                await system.wait_until_ready("backfill.ingest", 24)
            page = await system.ledger.list_jobs(JobFilter(job_type="ingest_arxiv"))
            records = [await system.ledger.get(job.id) for job in page.items]
            ids = sorted(record.payload["id"] for record in records if record is not None)
            assert ids == [f"2403.{number:05}v1" for number in range(12, 36)]
            progress = await user.progress(operation)
            assert (progress.total, progress.published) == (24, 24)


@pytest.mark.parametrize(
    ("source", "options", "spec", "message"),
    [
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
    ],
)
async def test_what_can_not_work_is_refused_at_the_start(
    user: BackfillUser,
    source: str,
    options: dict[str, Any],
    spec: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(InvalidBackfill) as refused:
        await user.start(source, options, **spec)
    assert message in str(refused.value)
    assert (await user.system.ledger.list_bulk()).items == ()


# --- control ------------------------------------------------------------------------------------


async def test_pause_means_no_further_publish_within_a_second(user: BackfillUser) -> None:
    operation = await user.start("numbers", {"to": 100_000}, rate=400, high=9_000)
    async with user.running():

        async def published() -> int:
            own, _ = await user.system.ledger.count_bulk_jobs(operation.id)
            return sum(own.values())

        await eventually(published)
        await bulk_control.pause(user.system.ledger, operation.id)

        async def let_go() -> bool:
            return (
                await bulk_control.require_bulk(user.system.ledger, operation.id)
            ).holder is None

        await eventually(let_go, timeout=1)
        before = await published()
        progress = await user.progress(operation)
        assert progress.published == before  # also the cursor knows of all
        await user.system.wait_until_ready(QUEUE, before)
        await asyncio.sleep(0.5)  # there is no signal for what does not happen
        assert await published() == before
        await bulk_control.resume(user.system.ledger, operation.id)

        async def goes_on() -> bool:
            return await published() > before

        await eventually(goes_on)


async def test_cancelled_its_queued_jobs_never_run(user: BackfillUser) -> None:
    operation = await user.start("numbers", {"to": 3_000})
    async with user.running():
        await user.system.wait_until_ready(QUEUE, 3_000)
        assert await user.backfills.cancel(operation.id, jobs=True) == 3_000
    progress = await user.progress(operation)
    assert progress.operation.state is BulkState.CANCELLED
    assert progress.jobs == {State.CANCELLED: 3_000}
    assert (progress.done, progress.finished) == (0, 0)
    await user.system.start_worker()
    await user.system.wait_until_ready(QUEUE, 0, timeout=30)
    last = await user.system.publish("backfill.noop", {"n": -1})
    await user.system.wait_for_state(last, State.SUCCEEDED)
    assert [start.job_id for start in journal.starts] == [last]


async def test_a_source_that_hangs_does_not_keep_it_from_being_cancelled(
    user: BackfillUser,
) -> None:
    operation = await user.start("numbers", {"to": 900, "hangs_at": 30})
    async with user.running():
        await user.system.wait_until_ready(QUEUE, 30)
        async with asyncio.timeout(3):
            assert await user.backfills.cancel(operation.id, jobs=True) == 30


async def test_also_a_slow_one_ends_at_its_date(user: BackfillUser) -> None:
    until = datetime.now(UTC) + timedelta(seconds=1)
    operation = await user.start("numbers", {"to": 100}, rate=0.01, until=until.isoformat())
    await user.system.start_worker()
    async with asyncio.timeout(10):
        assert (await user.run(operation)).state is BulkState.COMPLETED
    assert (await user.progress(operation)).published <= 1


async def test_nothing_is_published_after_its_date_when_its_turn_comes_later(
    user: BackfillUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = datetime.now(UTC) + timedelta(seconds=1)

    @asynccontextmanager
    async def late(traffic: HotTraffic, session: BulkSession) -> AsyncIterator[None]:
        while datetime.now(UTC) < until:
            await session.sleep(0.05)
        yield

    monkeypatch.setattr(HotTraffic, "turn", late)
    operation = await user.start("numbers", {"to": 100}, until=until.isoformat())
    async with asyncio.timeout(20):
        assert (await user.run(operation)).state is BulkState.COMPLETED
    assert (await user.progress(operation)).published == 0


async def test_it_ends_at_its_date(user: BackfillUser) -> None:
    # Time enough for the first of them also on a busy machine, and too little for a tenth of all.
    until = datetime.now(UTC) + timedelta(seconds=5)
    operation = await user.start("numbers", {"to": 100_000}, rate=20, until=until.isoformat())
    await user.system.start_worker()
    ended = await user.run(operation)
    progress = await user.progress(operation)
    assert (ended.state, ended.note) == (
        BulkState.COMPLETED,
        "its end date came before the end of the source",
    )
    assert 0 < progress.published < 1_000
    assert progress.jobs == {State.SUCCEEDED: progress.published}


async def test_no_more_of_its_jobs_are_open_than_it_may_have(user: BackfillUser) -> None:
    operation = await user.start("numbers", {"to": 100}, max_open=7, job_type="gated")
    await user.system.start_worker(slots=20)
    async with user.running():
        await eventually(lambda: len(journal.starts) == 7)

        async def waits() -> bool:
            note = (await bulk_control.require_bulk(user.system.ledger, operation.id)).note
            return note == "7 of its jobs are not finished"

        await eventually(waits)
        for start in list(journal.starts):
            journal.release(start.job_id)
        await eventually(lambda: len(journal.starts) == 14)
        own, _ = await user.system.ledger.count_bulk_jobs(operation.id)
        assert sum(own.values()) == 14


# --- making way ---------------------------------------------------------------------------------


async def test_it_keeps_its_queue_between_the_watermarks(user: BackfillUser) -> None:
    system = user.system
    operation = await user.start("numbers", {"to": 5_000}, low=200, high=600, job_type="gated")
    async with user.running():
        await system.wait_until_ready(QUEUE, 600)

        async def waits() -> bool:
            note = (await bulk_control.require_bulk(system.ledger, operation.id)).note
            return note == f"{QUEUE} holds 600 jobs; goes on at 200"

        await eventually(waits)
        await take(system, 350)
        await asyncio.sleep(2 * gate.FRESH_FOR)  # between the watermarks nothing happens
        assert await system.ready(QUEUE) == 250
        await take(system, 51)
        await system.wait_until_ready(QUEUE, 600)


async def test_its_course_is_told_also_while_it_waits(
    user: BackfillUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "SAMPLE_EVERY", 0.1)
    operation = await user.start("numbers", {"to": 9}, high=1)
    async with user.running():

        async def has_samples() -> bool:
            found = await bulk_control.require_bulk(user.system.ledger, operation.id)
            return len(found.counts.get("samples", ())) > 3

        await eventually(has_samples)


async def test_that_nobody_runs_it_is_told(
    user: BackfillUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = await user.start("numbers", {"to": 9})
    assert (await user.progress(operation)).note is None
    monkeypatch.setattr(progress_module, "UNATTENDED", -1)
    note = (await user.progress(operation)).note
    assert note is not None
    assert "is `jobctl scheduler` running?" in note


async def test_its_course_goes_by_the_ledgers_clock_wherever_it_runs_or_is_looked_at(
    user: BackfillUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host two hours ahead would say that nobody runs it, and mix up its rate."""
    operation = await user.start("numbers", {"to": 9})
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 7200)
    await user.system.ledger.get("any")  # the clocks are compared
    progress = await user.progress(operation)
    assert progress.note is None
    await user.system.start_worker()
    ended = await user.run(operation)
    samples = ended.counts["samples"]
    assert all(abs(each["at"] - right()) < 600 for each in samples)


async def take(system: System, count: int) -> None:
    async with system.channel() as channel:
        queue = await channel.get_queue(QUEUE, ensure=False)
        for _ in range(count):
            message = await queue.get()
            await message.ack()


async def test_a_lane_that_is_full_all_the_same_loses_nothing(
    broker: TestBroker, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "REFUSED_PAUSE", 0.05)
    lanes = lanes_with(max_length={"backfill": 50})
    async with opened(broker, sqlite_url, tmp_path, lanes=lanes) as (system, user):
        operation = await user.start("numbers", {"to": 700}, high=100_000)
        async with user.running():
            await eventually(lambda: system.ready(QUEUE))
            await system.start_worker(slots=8)

            async def is_over() -> bool:
                return (await user.progress(operation)).is_over

            await eventually(is_over, timeout=60)
        assert await numbers(system.ledger) == list(range(700))
        assert (await user.progress(operation)).jobs == {State.SUCCEEDED: 700}


async def test_it_slows_down_while_hot_jobs_wait(user: BackfillUser) -> None:
    system = user.system
    for number in range(gate.HOT_BACKLOG + 1):
        await system.publish("hot.gated", {"n": number})
    operation = await user.start("numbers", {"to": 100_000})
    async with user.running():

        async def says_so() -> bool:
            note = (await bulk_control.require_bulk(system.ledger, operation.id)).note
            return note == f"slow: {gate.HOT_BACKLOG + 1} hot jobs wait"

        await eventually(says_so)
        own, _ = await system.ledger.count_bulk_jobs(operation.id)
        await asyncio.sleep(1)
        later, _ = await system.ledger.count_bulk_jobs(operation.id)
        assert 0 < sum(later.values()) - sum(own.values()) <= 100
        await system.start_worker(slots=30)  # which run all the hot ones
        await system.wait_until_ready("hot.llm", 0)

        async def is_fast() -> bool:
            return (await user.progress(operation)).published > 3_000

        await eventually(is_fast, timeout=20)


async def test_hot_jobs_overtake_a_backfill_that_fills_every_slot(
    broker: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with opened(broker, sqlite_url, tmp_path) as (system, user):
        await system.start_worker(slots=4)
        operation = await user.start("numbers", {"to": 100_000})
        async with user.running():
            await eventually(lambda: len(journal.starts) > 200, 30)
            for number in range(30):
                began = len(journal.starts)
                hot = await system.publish("hot.noop", {"n": -number})
                await journal.started(hot)
                place = next(
                    place
                    for place, start in enumerate(journal.starts[began:])
                    if start.job_id == hot
                )
                # A thousand jobs of the backfill are in its queue all the time. Only those that
                # begin while the hot one is recorded and confirmed may come before it.
                assert place < 300
            assert await system.ready(QUEUE) > 500
            assert not (await user.progress(operation)).is_over


# --- what comes of it ---------------------------------------------------------------------------


async def test_its_end_waits_for_what_followed_and_tells_the_dead(user: BackfillUser) -> None:
    system = user.system
    await system.start_worker("llm", "embed")
    steps = [{"steps": ["done"]}, {"steps": ["permanent"]}, {"steps": ["permanent"]}]
    scripted = await user.start("file", await user.store(steps), job_type="scripted")
    spread = await user.start(
        "file", await user.store([{"count": 2}, {"count": 3}]), job_type="spread"
    )
    await user.run(scripted)
    await user.run(spread)
    progress = await user.progress(scripted)
    assert progress.jobs == {State.SUCCEEDED: 1, State.DEAD: 2}
    assert (progress.dead, progress.succeeded) == (2, False)
    (cause,) = progress.deaths
    assert (cause.job_type, cause.reason, cause.error_type, cause.count) == (
        "scripted",
        "permanent",
        "PermanentError",
        2,
    )
    progress = await user.progress(spread)
    assert progress.jobs == {State.SUCCEEDED: 2}
    assert progress.followers == {State.SUCCEEDED: 5}
    assert progress.succeeded


# --- what follows its end ---------------------------------------------------------------------

NEXT: dict[str, Any] = {"then": "noop", "then_payload": {"n": -1}}


async def test_a_job_follows_when_the_last_of_its_jobs_has_ended(
    broker310: TestBroker, database_url: str, tmp_path: Path
) -> None:
    async with opened(broker310, database_url, tmp_path) as (system, user):
        operation = await user.start("numbers", {"to": 700, "keys": 650}, **NEXT)
        then_id = then_id_of(operation.id)
        async with user.running():
            await system.wait_until_ready(QUEUE, 650)
            assert await system.state(then_id) is State.JOINING
            await system.start_worker(slots=8)
            then = await system.wait_for_state(then_id, State.SUCCEEDED, timeout=40)
        assert (then.payload, then.routing_key) == ({"n": -1}, "backfill.noop")
        join = await system.ledger.join(then_id)
        assert join is not None
        assert (join.total, join.succeeded) == (650, 650)
        assert [start.job_id for start in journal.starts].count(then_id) == 1
        assert journal.starts[-1].job_id == then_id


async def test_one_without_items_is_followed_at_once(user: BackfillUser) -> None:
    await user.system.start_worker()
    operation = await user.start("file", await user.store([{"n": 1}]), job_type="noop", **NEXT)
    await user.storage.put_async(operation.spec["options"]["key"], b"")
    await user.run(operation)
    await user.system.wait_for_state(then_id_of(operation.id), State.SUCCEEDED)


async def test_whoever_goes_on_with_it_lets_the_job_go(
    user: BackfillUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before died after the last publish."""
    with monkeypatch.context() as patched:

        async def dies(*_: object) -> None:
            raise BulkFailed("killed")

        patched.setattr(course.Course, "_let_go", dies)
        operation = await user.start("numbers", {"to": 3}, **NEXT)
        assert (await user.run(operation)).state is BulkState.FAILED
    await user.system.start_worker()
    assert await user.system.state(then_id_of(operation.id)) is State.JOINING
    await bulk_control.resume(user.system.ledger, operation.id)
    await user.run(operation)
    await user.system.wait_for_state(then_id_of(operation.id), State.SUCCEEDED)


async def test_cancelled_it_is_not_followed(user: BackfillUser) -> None:
    operation = await user.start("numbers", {"to": 40}, rate=5, **NEXT)
    async with user.running():
        await user.system.wait_until_ready(QUEUE, 1)
        await user.backfills.cancel(operation.id, jobs=False)
        assert await user.system.state(then_id_of(operation.id)) is State.CANCELLED


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"then": "nothing"}, "then: .*nothing"),
        ({"then": "hot.nothing"}, "then: .*nothing"),
        ({"then": "nowhere.noop"}, "then: .*nowhere"),
        ({"then": "noop", "then_payload": {"n": "many"}}, "then: payload of noop: n"),
        ({"then_payload": {"n": 1}}, "name the job type"),
    ],
)
async def test_a_job_that_can_not_follow_is_refused_at_the_start(
    user: BackfillUser, spec: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidBackfill, match=why):
        await user.start("numbers", {"to": 3}, **spec)

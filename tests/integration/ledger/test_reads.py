from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, insert, text

from switchyard.services.common.durations import DAY
from switchyard.services.engine.ledger import Ledger, job_reads
from switchyard.services.engine.ledger.sql.tables import job_actions, jobs
from switchyard.services.engine.records.progress import ProgressRequest, ReportedProgress
from switchyard.services.engine.records.requests import JobFilter, PayloadField
from switchyard.services.engine.records.results import TIMED_OUT, Created
from switchyard.services.engine.records.states import OPEN, AttemptOutcome, State
from tests.support.made import NOW, claim, finish, letter, message, new_job


async def list_job_ids(ledger: Ledger, **filters) -> list[str]:
    page = await ledger.job_reads.list_jobs(JobFilter(**filters))
    return [job.id for job in page.items]


async def test_an_unknown_job_is_none(ledger: Ledger) -> None:
    assert await ledger.job_reads.get("nobody") is None


async def test_a_read_of_postgresql_needs_no_transaction(postgres_url: str) -> None:
    """In a transaction, now() would stay the same."""

    def read(connection: Connection) -> set[object]:
        return {connection.scalar(text("SELECT now()")) for _ in range(3)}

    async with await Ledger.open(postgres_url) as ledger:
        assert len(await ledger.core.database.read(read)) == 3
        assert len(await ledger.core.database.write(read)) == 1
        # This check of PostgreSQL needs a transaction, for its SET LOCAL.
        await ledger.disk_space.require_room()


async def test_states_of_any_number_of_jobs_are_read(ledger: Ledger) -> None:
    await ledger.jobs.record_many([new_job("a"), new_job("b")])
    await ledger.jobs.claim(claim("b", "claim-b"))
    job_ids = ["a", "b", *(f"unknown-{n}" for n in range(40_000))]
    assert await ledger.job_reads.states(job_ids) == {"a": State.PENDING, "b": State.RUNNING}
    assert await ledger.job_reads.states([]) == {}


async def test_a_listing_is_newest_first_page_by_page(ledger: Ledger) -> None:
    await ledger.jobs.record_many(
        [
            new_job(message(f"job-{n}", created_at=f"2026-01-01T00:00:{n // 3:02}Z"))
            for n in range(10)
        ]
    )
    listed_ids: list[str] = []
    cursor = None
    while True:
        page = await ledger.job_reads.list_jobs(limit=3, cursor=cursor)
        listed_ids += [job.id for job in page.items]
        if page.next_cursor is None:
            break
        cursor = page.next_cursor
        await ledger.jobs.record(
            new_job(message(f"later-{len(listed_ids)}"))
        )  # must not shift the pages
    assert listed_ids == sorted((f"job-{n}" for n in range(10)), reverse=True)


@pytest.mark.parametrize("cursor", ["", "nonsense", "W10=", "WzEsIDIsIDNd", "é"])
async def test_a_cursor_of_another_kind_is_refused(ledger: Ledger, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        await ledger.job_reads.list_jobs(cursor=cursor)


@pytest.mark.parametrize("limit", [0, -1, 1_001])
async def test_a_limit_out_of_range_is_refused(ledger: Ledger, limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        await ledger.job_reads.list_jobs(limit=limit)


async def test_listings_are_filtered(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job(message("a", source="arxiv", parent_id="p")))
    await ledger.jobs.record(new_job(message("b"), lane="backfill", worker="embed"))
    await ledger.jobs.claim(claim("b", "claim-b"))
    assert await list_job_ids(ledger, state=State.RUNNING) == ["b"]
    assert await list_job_ids(ledger, lane="hot") == ["a"]
    assert await list_job_ids(ledger, worker="embed") == ["b"]
    assert await list_job_ids(ledger, source="arxiv") == ["a"]
    assert await list_job_ids(ledger, parent_id="p") == ["a"]
    assert await list_job_ids(ledger, job_type="other") == []
    assert await list_job_ids(ledger, since=NOW * 2) == []
    assert await list_job_ids(ledger, state=State.PENDING, lane="backfill") == []


@pytest.mark.parametrize("filters", [{"state": State.PENDING}, {"lane": "hot"}])
async def test_a_listing_of_several_lanes_or_states_is_newest_first_page_by_page(
    ledger: Ledger, filters: dict[str, Any]
) -> None:
    for n in range(12):
        created_at = f"2026-01-01T00:00:{n // 4:02}Z"
        lane = ("hot", "backfill", "maintenance")[n % 3]
        await ledger.jobs.record(new_job(message(f"job-{n:02}", created_at=created_at), lane=lane))
        if n % 2:
            await ledger.jobs.claim(claim(f"job-{n:02}", f"claim-{n}"))
    expected_numbers = [n for n in range(12) if (n % 2 == 0 if "state" in filters else n % 3 == 0)]
    listed_ids: list[str] = []
    cursor, has_more = None, True
    while has_more:
        page = await ledger.job_reads.list_jobs(JobFilter(**filters), limit=2, cursor=cursor)
        listed_ids += [job.id for job in page.items]
        cursor, has_more = page.next_cursor, page.next_cursor is not None
    assert listed_ids == [f"job-{n:02}" for n in reversed(expected_numbers)]


async def test_jobs_are_found_by_how_long_they_ran_and_when_they_ended(ledger: Ledger) -> None:
    now = ledger.clock.time()
    times: dict[str, dict[str, object]] = {
        "slow": {"state": "succeeded", "started_at": now - 100, "finished_at": now - 90},
        "quick": {"state": "succeeded", "started_at": now - 50, "finished_at": now - 49},
        "runs": {"state": "running", "started_at": now - 30, "finished_at": None},
        "waits": {},
    }
    for name, values in times.items():
        await ledger.jobs.record(new_job(name))
        if values:
            await set_columns(ledger, name, **values)
    assert await list_job_ids(ledger, slower_than=5.0) == ["runs", "slow"]
    assert await list_job_ids(ledger, slower_than=10.5) == ["runs"]
    assert await list_job_ids(ledger, finished_since=now - 60) == ["quick"]
    assert await list_job_ids(ledger, finished_until=now - 60) == ["slow"]


async def test_jobs_are_found_by_their_backfill_their_run_and_when_they_were_made(
    ledger: Ledger,
) -> None:
    for day, name in enumerate(("root", "next", "other"), start=1):
        pipeline = {"next": "root"}.get(name)
        created_at = f"2026-01-0{day}T00:00:00Z"
        await ledger.jobs.record(new_job(message(name, created_at=created_at, pipeline=pipeline)))
    await set_columns(ledger, "other", operation_id="backfill-1")
    assert await list_job_ids(ledger, pipeline="root") == ["next", "root"]
    assert await list_job_ids(ledger, operation_id="backfill-1") == ["other"]
    second_day = 1_767_312_000.0  # 2026-01-02
    assert await list_job_ids(ledger, since=second_day, until=second_day + 1) == ["next"]


@pytest.mark.parametrize("searched_text", ["time", "TIMEOUT", "100%_", "exhaus"])
async def test_jobs_are_found_by_what_their_error_says(ledger: Ledger, searched_text: str) -> None:
    for name, error_message in (("a", "100%_ sure"), ("b", "100 of them")):
        await ledger.jobs.record(new_job(name))
        await set_columns(
            ledger,
            name,
            error_type="Timeout" if name == "a" else "ValueError",
            error_message=error_message,
            reason="exhausted" if name == "a" else "permanent",
        )
    assert await list_job_ids(ledger, error=searched_text) == ["a"]


@pytest.mark.parametrize(
    ("condition", "expected_ids"),
    [
        ("document.id=42", ["a"]),
        ("document.id=4", []),
        ("document.name=Ä", ["a"]),
        ("ids.1=y", ["a"]),
        ("by.0=zero", ["b"]),
        ("force=true", ["a"]),
        ("document=x", []),
        ("nothing=null", []),
    ],
)
async def test_jobs_are_found_by_a_field_of_their_payload(
    ledger: Ledger, condition: str, expected_ids: list[str]
) -> None:
    payload = {
        "document": {"id": 42, "name": "Ä"},
        "ids": ["x", "y"],
        "force": True,
        "nothing": None,
    }
    await ledger.jobs.record(new_job(message("a", payload=payload)))
    await ledger.jobs.record(new_job(message("b", payload={"by": {"0": "zero"}, "force": False})))
    await ledger.jobs.record(new_job(message("c", payload={"nul": "\x00", "half": "\\ud800"})))
    assert await list_job_ids(ledger, payload=PayloadField.parse(condition)) == expected_ids


@pytest.mark.parametrize(
    "condition", ["id", "=x", "a..b=x", 'a"b=x', "a'b=x", "$.a=x", "a" * 400 + "=x"]
)
def test_a_condition_without_a_valid_payload_field_is_refused(condition: str) -> None:
    with pytest.raises(ValueError, match=r"such as document\.id"):
        PayloadField.parse(condition)


async def set_columns(ledger: Ledger, job_id: str, **values: object) -> None:
    statement = jobs.update().where(jobs.c.id == job_id).values(values)
    await ledger.core.database.write(lambda connection: connection.execute(statement))


async def test_jobs_are_counted_by_lane_and_state(ledger: Ledger) -> None:
    await ledger.jobs.record_many([new_job("a"), new_job("b"), new_job("c", lane="backfill")])
    await ledger.jobs.claim(claim("b", "claim-b"))
    assert await ledger.job_reads.counts() == {
        "hot": {State.PENDING: 1, State.RUNNING: 1},
        "backfill": {State.PENDING: 1},
    }


async def test_ended_jobs_are_counted_anew_unless_they_are_many_and_counting_is_slow(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await ledger.jobs.record(new_job(name))
    await set_columns(ledger, "a", state="succeeded")
    assert await ledger.job_reads.counts() == {"hot": {State.SUCCEEDED: 1, State.PENDING: 2}}
    monkeypatch.setattr(job_reads, "COUNT_SECONDS", 0.0)  # from now on no count is quick
    monkeypatch.setattr(job_reads, "COUNT_REUSE_RATIO", 1e9)
    await set_columns(ledger, "b", state="succeeded")
    assert await ledger.job_reads.counts() == {"hot": {State.SUCCEEDED: 2, State.PENDING: 1}}
    monkeypatch.setattr(job_reads, "MANY_ENDED", 2)
    assert await ledger.job_reads.counts() == {"hot": {State.SUCCEEDED: 2, State.PENDING: 1}}
    await set_columns(ledger, "c", state="succeeded")
    assert await ledger.job_reads.counts() == {"hot": {State.SUCCEEDED: 2}}


async def test_jobs_that_exceeded_their_time_limit_lately_are_counted_by_type(
    ledger: Ledger,
) -> None:
    now = ledger.clock.time()
    old = now - 30 * DAY
    timed_out_lately = {"error_type": TIMED_OUT, "updated_at": now}
    for name, values in {
        "dead-without-a-letter": {"state": "dead", "created_at": now, **timed_out_lately},
        "retrying": {"state": "retrying", "created_at": old, **timed_out_lately},
        "redriven": {"state": "dead", "created_at": old, **timed_out_lately},
        "long-ago": {"state": "dead", "created_at": old, **timed_out_lately, "updated_at": old},
        "other-cause": {"state": "dead", **timed_out_lately, "error_type": "OSError"},
        "succeeded": {"state": "succeeded", "created_at": old, **timed_out_lately},
    }.items():
        await ledger.jobs.record(new_job(name))
        if name not in ("dead-without-a-letter", "retrying"):
            died = values.get("updated_at")
            await ledger.dead_letters.index_dead([letter(name, dead_at=died)])
        await set_columns(ledger, name, **values)
    assert await ledger.job_reads.timed_out(now - 3600) == {"summarize_content": 3}


async def test_jobs_are_counted_by_state_whichever_state_the_filter_names(
    ledger: Ledger,
) -> None:
    reads = ledger.job_reads
    await ledger.jobs.record_many([new_job("a"), new_job("b"), new_job("c", lane="backfill")])
    await ledger.jobs.claim(claim("b", "claim-b"))
    await set_columns(ledger, "b", created_at=1.0)
    await ledger.jobs.cancel("c", NOW)
    all_states = {State.PENDING: 1, State.RUNNING: 1, State.CANCELLED: 1}
    assert await reads.count_newest_by_state(JobFilter(state=State.DEAD), newest=9) == all_states
    newest = await reads.count_newest_by_state(JobFilter(), newest=2)
    assert newest == {State.PENDING: 1, State.CANCELLED: 1}
    in_hot = await reads.count_newest_by_state(JobFilter(state=State.PENDING, lane="hot"), newest=9)
    assert in_hot == {State.PENDING: 1, State.RUNNING: 1}
    assert await reads.count_newest_by_state(JobFilter(job_type="nobodys"), newest=9) == {}
    assert await reads.count_open_by_state(None) == {State.PENDING: 1, State.RUNNING: 1}
    assert await reads.count_open_by_state("backfill") == {}


async def test_a_pipeline_is_its_first_job_and_those_that_follow(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job(message("root")))
    await ledger.jobs.record(new_job(message("next", pipeline="root", parent_id="root")))
    await ledger.jobs.record(new_job(message("other", pipeline="elsewhere")))
    assert [job.id for job in await ledger.job_reads.pipeline("root")] == ["root", "next"]


async def test_the_version_of_a_run_changes_with_each_of_its_jobs(ledger: Ledger) -> None:
    versions, lonely_versions = [], set()

    async def read_versions() -> None:
        version_of = await ledger.job_reads.run_versions(["next", "lonely", "nobody"])
        assert set(version_of) == {"next", "lonely"}
        lonely_versions.add(version_of["lonely"])
        versions.append(version_of["next"])

    for name in ("root", "lonely"):
        await ledger.jobs.record(new_job(message(name)))
    await ledger.jobs.record(new_job(message("next", pipeline="root", parent_id="root")))
    await read_versions()
    await ledger.jobs.record(new_job(message("other", pipeline="elsewhere")))
    await read_versions()
    assert versions[0] == versions[1]
    await ledger.jobs.record(new_job(message("third", pipeline="root")))
    await read_versions()
    for name in ("root", "third"):
        await set_columns(ledger, name, updated_at=NOW + 5 + len(versions))
        await read_versions()
    first_claim = claim("next", "claim-1")
    await ledger.jobs.claim(first_claim)
    await read_versions()
    note = ProgressRequest(
        first_claim.message, "claim-1", first_claim.now, ReportedProgress(0.5, "half"), None
    )
    assert await ledger.progress.save(note)
    await read_versions()
    await ledger.jobs.cancel("next", NOW + 9)
    await read_versions()
    await ledger.dead_letters.index_dead([letter("next")])
    await read_versions()
    action = {"operation_id": "rerun-1", "job_id": "next", "acted_at": NOW + 10}
    await ledger.core.database.write(lambda c: c.execute(insert(job_actions), action))
    await read_versions()
    assert len(set(versions)) == len(versions) - 1
    assert len(lonely_versions) == 1


async def test_a_pending_job_is_due_when_it_is_old_enough(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job("old", now=NOW))
    await ledger.jobs.record(new_job("young", now=NOW + 60))
    await ledger.jobs.record(new_job("confirmed", now=NOW))
    await ledger.jobs.mark_queued(["confirmed"], NOW)
    assert [job.id for job in await ledger.job_reads.due_pending(NOW + 30, 10)] == ["old"]
    assert len(await ledger.job_reads.due_pending(NOW + 90, 1)) == 1


async def test_scheduled_jobs_are_due_in_the_order_of_their_times(ledger: Ledger) -> None:
    for delay in (30, 10, 20):
        await ledger.jobs.record(new_job(f"in-{delay}", run_at=NOW + delay))
    assert await ledger.job_reads.due_scheduled(NOW, 10) == []
    assert [job.id for job in await ledger.job_reads.due_scheduled(NOW + 25, 10)] == [
        "in-10",
        "in-20",
    ]
    await ledger.jobs.mark_queued(["in-10"], NOW + 25)
    assert [job.id for job in await ledger.job_reads.due_scheduled(NOW + 60, 10)] == [
        "in-20",
        "in-30",
    ]


async def test_the_timeline_is_in_order(ledger: Ledger) -> None:
    for attempts in range(3):
        claim_id = f"c{attempts}"
        await ledger.jobs.claim(claim(claim_id=claim_id, attempts=attempts))
        failed = finish(
            State.RETRYING, claim_id, attempts=attempts + 1, outcome=AttemptOutcome.RETRY
        )
        await ledger.jobs.finish(failed)
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert [attempt.attempt for attempt in record.timeline] == [1, 2, 3]


async def test_jobs_are_found_by_a_tag_through_its_index(ledger: Ledger) -> None:
    tagged_jobs = [new_job(message(f"job-{n}", tags={"n": str(n % 3)})) for n in range(30)]
    await ledger.jobs.record_many(tagged_jobs)
    listed_ids, cursor = [], None
    while True:
        page = await ledger.job_reads.list_jobs(JobFilter(tags={"n": "1"}), limit=4, cursor=cursor)
        listed_ids += [job.id for job in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sorted(listed_ids) == sorted(f"job-{n}" for n in range(1, 30, 3))
    if ledger.core.database.dialect == "sqlite":
        plan = await ledger.core.database.read(
            lambda connection: connection.execute(
                text(
                    "EXPLAIN QUERY PLAN SELECT jobs.id FROM jobs JOIN job_tags ON job_id = jobs.id "
                    "AND name = 'n' AND value = '1' ORDER BY job_tags.created_at DESC, job_id DESC"
                )
            ).all()
        )
        assert "ix_job_tags_value" in str(plan)
        assert "TEMP B-TREE" not in str(plan)


async def test_a_job_that_is_taken_back_leaves_no_tags(ledger: Ledger) -> None:
    created = await ledger.jobs.record(new_job(message("a", tags={"n": "1"})))
    assert isinstance(created, Created)
    await ledger.jobs.rollback_inserts([created])
    tag_count = await ledger.core.database.read(
        lambda connection: connection.scalar(text("SELECT count(*) FROM job_tags"))
    )
    assert tag_count == 0


async def test_without_an_index_a_page_examines_some_jobs_and_the_next_page_goes_on(
    ledger: Ledger,
) -> None:
    for number in range(10):
        source = "rare" if number in (1, 8) else "common"
        await ledger.jobs.record(new_job(message(f"job-{number}", source=source), now=NOW + number))
    created_at = {job.id: job.created_at for job in (await ledger.job_reads.list_jobs()).items}

    async def read_pages(**filters) -> list[tuple[list[str], float | None]]:
        found_pages, cursor = [], None
        while True:
            page = await ledger.job_reads.list_jobs(
                JobFilter(**filters), limit=3, cursor=cursor, examined=4
            )
            found_pages.append(([job.id for job in page.items], page.examined_since))
            if (cursor := page.next_cursor) is None:
                return found_pages

    assert await read_pages(source="rare") == [
        (["job-8"], created_at["job-6"]),
        ([], created_at["job-2"]),
        (["job-1"], None),
    ]
    assert await read_pages(source="rare", until=created_at["job-5"]) == [
        (["job-1"], created_at["job-1"]),
        ([], None),
    ]
    assert await read_pages(source="rare", since=created_at["job-7"]) == [(["job-8"], None)]
    await ledger.jobs.cancel("job-7", now=NOW + 20)
    assert await read_pages(source="rare", lane="hot", state=State.PENDING) == [
        (["job-8"], created_at["job-5"]),
        (["job-1"], created_at["job-1"]),
        ([], None),
    ]
    assert await read_pages(source="rare", state=State.CANCELLED) == [([], None)]
    common_ids = [
        job_id for page_ids, _ in await read_pages(source="common") for job_id in page_ids
    ]
    assert common_ids == [f"job-{number}" for number in (9, 7, 6, 5, 4, 3, 2, 0)]


@pytest.mark.parametrize("states", [OPEN, frozenset(State)])
async def test_jobs_that_no_index_finds_are_matched_one_span_of_time_after_the_other(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, states: frozenset[State]
) -> None:
    """Even where more jobs than are examined at once were made at the same moment."""
    monkeypatch.setattr(job_reads, "EXAMINED_JOBS", 3)
    created_seconds = [*range(3), 3, 3, 3, 3, 3, *range(4, 12)]
    await ledger.jobs.record_many(
        [
            new_job(
                message(
                    f"job-{number:02}",
                    created_at=f"2026-01-01T00:00:{second:02}Z",
                    source="wanted" if number % 4 else "another",
                )
            )
            for number, second in enumerate(created_seconds)
        ]
    )
    job_filter = JobFilter(source="wanted")
    expected = [f"job-{number:02}" for number in range(len(created_seconds)) if number % 4]
    statements = 0
    read = ledger.core.database.read

    async def count_and_read(body: Any) -> Any:
        nonlocal statements
        statements += 1
        return await read(body)

    monkeypatch.setattr(ledger.core.database, "read", count_and_read)
    assert await ledger.job_reads.count_matching(job_filter, states, at_most=100) == len(expected)
    assert statements > len(created_seconds) / 3
    assert await ledger.job_reads.count_matching(job_filter, states, at_most=5) == 5

    matching_ids: list[str] = []
    after = None
    while jobs_found := await ledger.job_reads.matching_jobs(
        job_filter, states, after=after, limit=5
    ):
        matching_ids += [job.id for job in jobs_found]
        after = (jobs_found[-1].created_at, jobs_found[-1].id)
    assert matching_ids == expected

    since, until = (1767225600.0 + second for second in (2, 7))
    in_time = await ledger.job_reads.matching_jobs(
        JobFilter(source="wanted", since=since, until=until), states
    )
    assert [job.id for job in in_time] == [
        job_id for job_id in expected if 2 <= created_seconds[int(job_id[4:])] < 7
    ]


@pytest.mark.parametrize(
    "job_filter",
    [JobFilter(source="wanted"), JobFilter(tags={"team": "red"})],
    ids=["scan", "index"],
)
async def test_many_ended_jobs_hide_no_open_ones_from_a_count_by_state(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, job_filter: JobFilter
) -> None:
    monkeypatch.setattr(job_reads, "EXAMINED_JOBS", 3)
    await ledger.jobs.record_many(
        [
            new_job(
                message(
                    f"job-{number:02}",
                    created_at=f"2026-01-01T00:00:{number:02}Z",
                    source="wanted" if number % 5 else "another",
                    tags={"team": "red" if number % 5 else "blue"},
                )
            )
            for number in range(15)
        ]
    )
    for number in range(9):  # seven of them match
        await ledger.jobs.cancel(f"job-{number:02}", ledger.clock.time())
    count = ledger.job_reads.count_matching_by_state
    assert await count(job_filter, at_most=100) == {State.CANCELLED: 7, State.PENDING: 5}
    assert await count(job_filter, at_most=5) == {State.CANCELLED: 5, State.PENDING: 5}
    ended_only = replace(job_filter, state=State.CANCELLED)
    assert await count(ended_only, at_most=100) == {State.CANCELLED: 7}
    assert await count(replace(job_filter, state=State.DEAD), at_most=100) == {}
    early = replace(job_filter, until=1767225603.0)
    assert await count(early, at_most=100) == {State.CANCELLED: 2}

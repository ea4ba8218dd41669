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


async def job_ids(ledger: Ledger, **wanted) -> list[str]:
    page = await ledger.job_reads.list_jobs(JobFilter(**wanted))
    return [job.id for job in page.items]


async def test_an_unknown_job_is_none(ledger: Ledger) -> None:
    assert await ledger.job_reads.get("nobody") is None


async def test_what_only_reads_costs_postgresql_no_round_trip_more(postgres_url: str) -> None:
    """Within a transaction, now() stands still."""

    def read(connection: Connection) -> set[object]:
        return {connection.scalar(text("SELECT now()")) for _ in range(3)}

    async with await Ledger.open(postgres_url) as ledger:
        assert len(await ledger.core.database.read(read)) == 3
        assert len(await ledger.core.database.write(read)) == 1
        await ledger.disk_space.require_room()


async def test_states_of_any_number_of_jobs(ledger: Ledger) -> None:
    await ledger.jobs.record_many([new_job("a"), new_job("b")])
    await ledger.jobs.claim(claim("b", "claim-b"))
    asked = ["a", "b", *(f"unknown-{n}" for n in range(40_000))]
    assert await ledger.job_reads.states(asked) == {"a": State.PENDING, "b": State.RUNNING}
    assert await ledger.job_reads.states([]) == {}


async def test_a_listing_is_newest_first_page_by_page(ledger: Ledger) -> None:
    await ledger.jobs.record_many(
        [
            new_job(message(f"job-{n}", created_at=f"2026-01-01T00:00:{n // 3:02}Z"))
            for n in range(10)
        ]
    )
    seen: list[str] = []
    cursor = None
    while True:
        page = await ledger.job_reads.list_jobs(limit=3, cursor=cursor)
        seen += [job.id for job in page.items]
        if page.next_cursor is None:
            break
        cursor = page.next_cursor
        await ledger.jobs.record(new_job(message(f"later-{len(seen)}")))  # must not shift the pages
    assert seen == sorted((f"job-{n}" for n in range(10)), reverse=True)


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
    assert await job_ids(ledger, state=State.RUNNING) == ["b"]
    assert await job_ids(ledger, lane="hot") == ["a"]
    assert await job_ids(ledger, worker="embed") == ["b"]
    assert await job_ids(ledger, source="arxiv") == ["a"]
    assert await job_ids(ledger, parent_id="p") == ["a"]
    assert await job_ids(ledger, job_type="other") == []
    assert await job_ids(ledger, since=NOW * 2) == []
    assert await job_ids(ledger, state=State.PENDING, lane="backfill") == []


@pytest.mark.parametrize("wanted", [{"state": State.PENDING}, {"lane": "hot"}])
async def test_a_listing_of_several_lanes_or_states_is_newest_first_page_by_page(
    ledger: Ledger, wanted: dict[str, Any]
) -> None:
    for n in range(12):
        made = f"2026-01-01T00:00:{n // 4:02}Z"
        lane = ("hot", "backfill", "maintenance")[n % 3]
        await ledger.jobs.record(new_job(message(f"job-{n:02}", created_at=made), lane=lane))
        if n % 2:
            await ledger.jobs.claim(claim(f"job-{n:02}", f"claim-{n}"))
    fit = [n for n in range(12) if (n % 2 == 0 if "state" in wanted else n % 3 == 0)]
    seen: list[str] = []
    cursor, more = None, True
    while more:
        page = await ledger.job_reads.list_jobs(JobFilter(**wanted), limit=2, cursor=cursor)
        seen += [job.id for job in page.items]
        cursor, more = page.next_cursor, page.next_cursor is not None
    assert seen == [f"job-{n:02}" for n in reversed(fit)]


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
    assert await job_ids(ledger, slower_than=5.0) == ["runs", "slow"]
    assert await job_ids(ledger, slower_than=10.5) == ["runs"]
    assert await job_ids(ledger, finished_since=now - 60) == ["quick"]
    assert await job_ids(ledger, finished_until=now - 60) == ["slow"]


async def test_jobs_are_found_by_their_backfill_their_run_and_when_they_were_made(
    ledger: Ledger,
) -> None:
    for day, name in enumerate(("root", "next", "other"), start=1):
        pipeline = {"next": "root"}.get(name)
        made = f"2026-01-0{day}T00:00:00Z"
        await ledger.jobs.record(new_job(message(name, created_at=made, pipeline=pipeline)))
    await set_columns(ledger, "other", operation_id="backfill-1")
    assert await job_ids(ledger, pipeline="root") == ["next", "root"]
    assert await job_ids(ledger, operation_id="backfill-1") == ["other"]
    second = 1_767_312_000.0  # 2026-01-02
    assert await job_ids(ledger, since=second, until=second + 1) == ["next"]


@pytest.mark.parametrize("said", ["time", "TIMEOUT", "100%_", "exhaus"])
async def test_jobs_are_found_by_what_their_error_says(ledger: Ledger, said: str) -> None:
    for name, text_ in (("a", "100%_ sure"), ("b", "100 of them")):
        await ledger.jobs.record(new_job(name))
        await set_columns(
            ledger,
            name,
            error_type="Timeout" if name == "a" else "ValueError",
            error_message=text_,
            reason="exhausted" if name == "a" else "permanent",
        )
    assert await job_ids(ledger, error=said) == ["a"]


@pytest.mark.parametrize(
    ("given", "found"),
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
    ledger: Ledger, given: str, found: list[str]
) -> None:
    first = {"document": {"id": 42, "name": "Ä"}, "ids": ["x", "y"], "force": True, "nothing": None}
    await ledger.jobs.record(new_job(message("a", payload=first)))
    await ledger.jobs.record(new_job(message("b", payload={"by": {"0": "zero"}, "force": False})))
    await ledger.jobs.record(new_job(message("c", payload={"nul": "\x00", "half": "\\ud800"})))
    assert await job_ids(ledger, payload=PayloadField.parse(given)) == found


@pytest.mark.parametrize(
    "given", ["id", "=x", "a..b=x", 'a"b=x', "a'b=x", "$.a=x", "a" * 400 + "=x"]
)
def test_what_names_no_field_of_a_payload_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"such as document\.id"):
        PayloadField.parse(given)


async def set_columns(ledger: Ledger, job_id: str, **values: object) -> None:
    changed = jobs.update().where(jobs.c.id == job_id).values(values)
    await ledger.core.database.write(lambda connection: connection.execute(changed))


async def test_jobs_are_counted_by_lane_and_state(ledger: Ledger) -> None:
    await ledger.jobs.record_many([new_job("a"), new_job("b"), new_job("c", lane="backfill")])
    await ledger.jobs.claim(claim("b", "claim-b"))
    assert await ledger.job_reads.counts() == {
        "hot": {State.PENDING: 1, State.RUNNING: 1},
        "backfill": {State.PENDING: 1},
    }


async def test_ended_jobs_are_counted_anew_unless_they_are_many_and_that_takes_long(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await ledger.jobs.record(new_job(name))
    await set_columns(ledger, "a", state="succeeded")
    assert await ledger.job_reads.counts() == {"hot": {State.SUCCEEDED: 1, State.PENDING: 2}}
    monkeypatch.setattr(job_reads, "COUNT_SECONDS", 0.0)  # from now on no count is quick
    monkeypatch.setattr(job_reads, "COUNT_PAUSE_RATIO", 1e9)
    await set_columns(ledger, "b", state="succeeded")
    assert await ledger.job_reads.counts() == {"hot": {State.SUCCEEDED: 2, State.PENDING: 1}}
    monkeypatch.setattr(job_reads, "MANY_ENDED", 2)
    assert await ledger.job_reads.counts() == {"hot": {State.SUCCEEDED: 2, State.PENDING: 1}}
    await set_columns(ledger, "c", state="succeeded")
    assert await ledger.job_reads.counts() == {"hot": {State.SUCCEEDED: 2}}


async def test_jobs_that_ran_into_their_limit_lately_are_counted_by_type(ledger: Ledger) -> None:
    now = ledger.clock.time()
    old, late = now - 30 * DAY, {"error_type": TIMED_OUT, "updated_at": now}
    for name, values in {
        "unlisted": {"state": "dead", "created_at": now, **late},
        "retrying": {"state": "retrying", "created_at": old, **late},
        "redriven": {"state": "dead", "created_at": old, **late},
        "long-ago": {"state": "dead", "created_at": old, **late, "updated_at": old},
        "other-cause": {"state": "dead", **late, "error_type": "OSError"},
        "succeeded": {"state": "succeeded", "created_at": old, **late},
    }.items():
        await ledger.jobs.record(new_job(name))
        if name not in ("unlisted", "retrying"):
            died = values.get("updated_at")
            await ledger.dead_letters.index_dead([letter(name, dead_at=died)])
        await set_columns(ledger, name, **values)
    assert await ledger.job_reads.timed_out(now - 3600) == {"summarize_content": 3}


async def test_jobs_that_fit_are_counted_by_state_whichever_state_is_wanted(
    ledger: Ledger,
) -> None:
    reads = ledger.job_reads
    await ledger.jobs.record_many([new_job("a"), new_job("b"), new_job("c", lane="backfill")])
    await ledger.jobs.claim(claim("b", "claim-b"))
    await set_columns(ledger, "b", created_at=1.0)
    await ledger.jobs.cancel("c", NOW)
    everything = {State.PENDING: 1, State.RUNNING: 1, State.CANCELLED: 1}
    assert await reads.count_by_state(JobFilter(state=State.DEAD), newest=9) == everything
    newest = await reads.count_by_state(JobFilter(), newest=2)
    assert newest == {State.PENDING: 1, State.CANCELLED: 1}
    in_hot = await reads.count_by_state(JobFilter(state=State.PENDING, lane="hot"), newest=9)
    assert in_hot == {State.PENDING: 1, State.RUNNING: 1}
    assert await reads.count_by_state(JobFilter(job_type="nobodys"), newest=9) == {}
    assert await reads.open_by_state(None) == {State.PENDING: 1, State.RUNNING: 1}
    assert await reads.open_by_state("backfill") == {}


async def test_a_pipeline_is_its_first_job_and_those_that_follow(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job(message("root")))
    await ledger.jobs.record(new_job(message("next", pipeline="root", parent_id="root")))
    await ledger.jobs.record(new_job(message("other", pipeline="elsewhere")))
    assert [job.id for job in await ledger.job_reads.pipeline("root")] == ["root", "next"]


async def test_the_head_of_a_run_changes_with_each_of_its_jobs(ledger: Ledger) -> None:
    jobs, heads, lonely = ledger.jobs, [], set()

    async def look() -> None:
        of_each = await ledger.job_reads.run_versions(["next", "lonely", "nobody"])
        assert set(of_each) == {"next", "lonely"}
        lonely.add(of_each["lonely"])
        heads.append(of_each["next"])

    for each in ("root", "lonely"):
        await jobs.record(new_job(message(each)))
    await jobs.record(new_job(message("next", pipeline="root", parent_id="root")))
    await look()
    await jobs.record(new_job(message("other", pipeline="elsewhere")))
    await look()
    assert heads[0] == heads[1]
    await jobs.record(new_job(message("third", pipeline="root")))
    await look()
    for name in ("root", "third"):
        await set_columns(ledger, name, updated_at=NOW + 5 + len(heads))
        await look()
    begun = claim("next", "claim-1")
    await jobs.claim(begun)
    await look()
    note = ProgressRequest(begun.message, "claim-1", begun.now, ReportedProgress(0.5, "half"), None)
    assert await ledger.progress.save(note)
    await look()
    await jobs.cancel("next", NOW + 9)
    await look()
    await ledger.dead_letters.index_dead([letter("next")])
    await look()
    act = {"operation_id": "rerun-1", "job_id": "next", "acted_at": NOW + 10}
    await ledger.core.database.write(lambda c: c.execute(insert(job_actions), act))
    await look()
    assert len(set(heads)) == len(heads) - 1
    assert len(lonely) == 1


async def test_what_stayed_pending_is_due_when_it_is_old_enough(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job("old", now=NOW))
    await ledger.jobs.record(new_job("young", now=NOW + 60))
    await ledger.jobs.record(new_job("confirmed", now=NOW))
    await ledger.jobs.mark_queued(["confirmed"], NOW)
    assert [job.id for job in await ledger.job_reads.due_pending(NOW + 30, 10)] == ["old"]
    assert len(await ledger.job_reads.due_pending(NOW + 90, 1)) == 1


async def test_what_is_scheduled_is_due_in_its_order(ledger: Ledger) -> None:
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
    jobs = [new_job(message(f"job-{n}", tags={"n": str(n % 3)})) for n in range(30)]
    await ledger.jobs.record_many(jobs)
    pages, cursor = [], None
    while True:
        page = await ledger.job_reads.list_jobs(JobFilter(tags={"n": "1"}), limit=4, cursor=cursor)
        pages += [job.id for job in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sorted(pages) == sorted(f"job-{n}" for n in range(1, 30, 3))
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
    made = await ledger.jobs.record(new_job(message("a", tags={"n": "1"})))
    assert isinstance(made, Created)
    await ledger.jobs.rollback_inserts([made])
    rows = await ledger.core.database.read(
        lambda connection: connection.scalar(text("SELECT count(*) FROM job_tags"))
    )
    assert rows == 0


async def test_where_no_index_finds_jobs_a_page_examines_some_and_the_next_goes_on(
    ledger: Ledger,
) -> None:
    for number in range(10):
        source = "rare" if number in (1, 8) else "common"
        await ledger.jobs.record(new_job(message(f"job-{number}", source=source), now=NOW + number))
    at = {job.id: job.created_at for job in (await ledger.job_reads.list_jobs()).items}

    async def pages(**wanted) -> list[tuple[list[str], float | None]]:
        found, cursor = [], None
        while True:
            page = await ledger.job_reads.list_jobs(
                JobFilter(**wanted), limit=3, cursor=cursor, examined=4
            )
            found.append(([job.id for job in page.items], page.examined_since))
            if (cursor := page.next_cursor) is None:
                return found

    assert await pages(source="rare") == [
        (["job-8"], at["job-6"]),
        ([], at["job-2"]),
        (["job-1"], None),
    ]
    assert await pages(source="rare", until=at["job-5"]) == [(["job-1"], at["job-1"]), ([], None)]
    assert await pages(source="rare", since=at["job-7"]) == [(["job-8"], None)]
    await ledger.jobs.cancel("job-7", now=NOW + 20)
    assert await pages(source="rare", lane="hot", state=State.PENDING) == [
        (["job-8"], at["job-5"]),
        (["job-1"], at["job-1"]),
        ([], None),
    ]
    assert await pages(source="rare", state=State.CANCELLED) == [([], None)]
    common = [job for listed, _ in await pages(source="common") for job in listed]
    assert common == [f"job-{number}" for number in (9, 7, 6, 5, 4, 3, 2, 0)]


@pytest.mark.parametrize("states", [OPEN, frozenset(State)])
async def test_jobs_that_no_index_finds_are_acted_on_a_span_of_time_after_the_other(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, states: frozenset[State]
) -> None:
    """More jobs than are examined at once may have been made at the same moment."""
    monkeypatch.setattr(job_reads, "EXAMINED_JOBS", 3)
    made_at = [*range(3), 3, 3, 3, 3, 3, *range(4, 12)]
    await ledger.jobs.record_many(
        [
            new_job(
                message(
                    f"job-{number:02}",
                    created_at=f"2026-01-01T00:00:{second:02}Z",
                    source="wanted" if number % 4 else "another",
                )
            )
            for number, second in enumerate(made_at)
        ]
    )
    wanted = JobFilter(source="wanted")
    expected = [f"job-{number:02}" for number in range(len(made_at)) if number % 4]
    statements = 0
    read = ledger.core.database.read

    async def counted(work: Any) -> Any:
        nonlocal statements
        statements += 1
        return await read(work)

    monkeypatch.setattr(ledger.core.database, "read", counted)
    assert await ledger.job_reads.count_matching(wanted, states, at_most=100) == len(expected)
    assert statements > len(made_at) / 3
    assert await ledger.job_reads.count_matching(wanted, states, at_most=5) == 5

    seen: list[str] = []
    after = None
    while jobs_found := await ledger.job_reads.matching_jobs(wanted, states, after=after, limit=5):
        seen += [each.id for each in jobs_found]
        after = (jobs_found[-1].created_at, jobs_found[-1].id)
    assert seen == expected

    since, until = (1767225600.0 + second for second in (2, 7))
    in_time = await ledger.job_reads.matching_jobs(
        JobFilter(source="wanted", since=since, until=until), states
    )
    assert [each.id for each in in_time] == [
        job_id for job_id in expected if 2 <= made_at[int(job_id[4:])] < 7
    ]


@pytest.mark.parametrize(
    "wanted", [JobFilter(source="wanted"), JobFilter(tags={"team": "red"})], ids=["scan", "index"]
)
async def test_matching_jobs_are_counted_by_state_so_that_many_ended_hide_none_that_are_open(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, wanted: JobFilter
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
    assert await count(wanted, at_most=100) == {State.CANCELLED: 7, State.PENDING: 5}
    assert await count(wanted, at_most=5) == {State.CANCELLED: 5, State.PENDING: 5}
    ended_only = replace(wanted, state=State.CANCELLED)
    assert await count(ended_only, at_most=100) == {State.CANCELLED: 7}
    assert await count(replace(wanted, state=State.DEAD), at_most=100) == {}
    early = replace(wanted, until=1767225603.0)
    assert await count(early, at_most=100) == {State.CANCELLED: 2}

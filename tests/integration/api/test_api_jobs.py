"""Publishing, listing, showing and cancelling jobs over HTTP."""

import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from switchyard.services.engine.ledger.job_reads import EXAMINED_JOBS
from switchyard.services.engine.ledger.sql.tables import jobs
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.records.joins import Joining
from switchyard.services.engine.records.states import State
from tests.support.api_server import RunningApi, environment_of, problem, serving, until_connected
from tests.support.brokers import TestBroker
from tests.support.commands import jobctl
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System, lanes_with, open_system

NOOP = {"routing_key": "hot.noop", "payload": {"n": 3}}


@pytest.fixture
async def both(
    broker310: TestBroker, database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[System, RunningApi]]:
    """System and API, on each kind of database."""
    data_dir = tmp_path_factory.mktemp("data")
    async with (
        open_system(broker310, database_url, data_dir=data_dir) as system,
        serving(system.settings) as api,
    ):
        await until_connected(api)
        yield system, api


async def test_a_published_job_runs_and_shows_its_result(both: tuple[System, RunningApi]) -> None:
    system, api = both
    await system.start_worker("llm")
    accepted = await api.client.post("/jobs", json=NOOP)
    assert accepted.status_code == 202
    job_id = accepted.json()["job_id"]
    assert accepted.headers["location"] == f"/jobs/{job_id}"
    assert accepted.headers["x-lane-pressure"] == "ok"
    assert accepted.json() == {
        "job_id": job_id, "routing_key": "hot.noop", "state": "queued", "duplicate": False,
        "pressure": "ok",
    }  # fmt: skip
    await system.wait_for_state(job_id, State.SUCCEEDED)
    shown = (await api.client.get(f"/jobs/{job_id}")).json()
    assert (shown["state"], shown["result"], shown["payload"]) == (
        "succeeded",
        {"n": 3},
        {"n": 3},
    )
    assert (shown["source"], shown["priority"]) == ("api", 10)
    status = (await api.client.get(f"/jobs/{job_id}/status")).json()
    assert (status["job_id"], status["state"], status["max_attempts"]) == (job_id, "succeeded", 3)


async def test_failed_attempts_stand_in_the_timeline(system: System, api: RunningApi) -> None:
    await system.start_worker("llm")
    body = {"lane": "hot", "job_type": "scripted", "payload": {"steps": ["raise", "done"]}}
    job_id = (await api.client.post("/jobs", json=body)).json()["job_id"]
    await system.wait_for_state(job_id, State.SUCCEEDED)
    timeline = (await api.client.get(f"/jobs/{job_id}")).json()["timeline"]
    assert [(each["outcome"], each["error_type"]) for each in timeline] == [
        ("retry", "RuntimeError")
    ]


async def test_priority_attempts_expiry_and_source_reach_the_job(
    system: System, api: RunningApi
) -> None:
    expires_at = datetime.now(UTC) + timedelta(hours=1)
    body = NOOP | {
        "priority": 4,
        "max_attempts": 7,
        "expires_at": expires_at.isoformat(),
        "source": "arxiv",
    }
    job_id = (await api.client.post("/jobs", json=body)).json()["job_id"]
    record = await system.record(job_id)
    assert (record.priority, record.max_attempts, record.source) == (4, 7, "arxiv")
    assert record.expires_at == pytest.approx(expires_at.timestamp(), abs=0.001)


@pytest.mark.parametrize("when", ["delay", "run_at"])
async def test_a_job_for_later_waits_for_its_time(
    system: System, api: RunningApi, when: str
) -> None:
    later = datetime.now(UTC) + timedelta(seconds=90)
    body = NOOP | ({"delay": 90} if when == "delay" else {"run_at": later.isoformat()})
    accepted = (await api.client.post("/jobs", json=body)).json()
    assert accepted["state"] == "scheduled"
    record = await system.record(accepted["job_id"])
    assert record.run_at == pytest.approx(later.timestamp(), abs=5)


@pytest.mark.parametrize(
    ("change", "location"),
    [
        ({"routing_key": "hot.unknown"}, ["body", "routing_key"]),
        ({"routing_key": "vlm_ocr.noop"}, ["body", "routing_key"]),
        ({"routing_key": "hot"}, ["body", "routing_key"]),
        ({"routing_key": None}, ["body", "routing_key"]),
        ({"routing_key": None, "lane": "hot", "job_type": "unknown"}, ["body", "job_type"]),
        ({"routing_key": None, "lane": "cold", "job_type": "noop"}, ["body", "lane"]),
        ({"lane": "hot"}, ["body", "routing_key"]),
        ({"payload": {"n": "many"}}, ["body", "payload", "n"]),
        ({"payload": []}, ["body", "payload"]),
        ({"priority": 11}, ["body", "priority"]),
        ({"max_attempts": 0}, ["body", "max_attempts"]),
        ({"delay": -1}, ["body", "delay"]),
        ({"delay": 1, "run_at": "2030-01-01T00:00:00Z"}, ["body"]),
        ({"run_at": "2030-01-01T00:00:00"}, ["body", "run_at"]),
        ({"run_at": 1893456000}, ["body", "run_at"]),
        ({"run_at": "2300-01-01T00:00:00Z"}, ["body", "run_at"]),
        ({"surprise": 1}, ["body", "surprise"]),
    ],
)
async def test_an_invalid_job_is_refused_with_the_place_of_the_fault(
    shared_api: RunningApi, change: dict[str, Any], location: list[str]
) -> None:
    before = (await shared_api.client.get("/jobs")).json()
    answer = await shared_api.client.post("/jobs", json=NOOP | change)
    told = problem(answer, 422, "invalid")
    assert location in [each["location"] for each in told["errors"]]
    assert location == ["body"] or ".".join(location) in told["detail"]
    assert (await shared_api.client.get("/jobs")).json() == before


@pytest.mark.parametrize("body", [b"{", b"", b'{"payload": {"n": NaN}, "routing_key": "hot.noop"}'])
async def test_a_body_that_is_not_json_is_refused(shared_api: RunningApi, body: bytes) -> None:
    answer = await shared_api.client.post(
        "/jobs", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"


async def test_the_same_key_and_job_answers_with_the_same_job(
    both: tuple[System, RunningApi],
) -> None:
    system, api = both
    headers = {"Idempotency-Key": "order-1"}
    body = NOOP | {"delay": 60}
    first = await api.client.post("/jobs", json=body, headers=headers)
    again = await api.client.post("/jobs", json=body, headers=headers)
    assert first.json()["duplicate"] is False
    assert again.status_code == 202
    assert again.json() == first.json() | {"duplicate": True}
    assert again.headers["idempotency-replayed"] == "true"
    assert len((await system.ledger.job_reads.list_jobs()).items) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"payload": {"n": 4}},
        {"routing_key": "backfill.noop"},
        {"routing_key": "hot.gated"},
        {"priority": 3},
        {"max_attempts": 9},
        {"delay": 60},
        {"expires_at": "2030-01-01T00:00:00Z"},
    ],
)
async def test_the_same_key_for_another_job_is_a_conflict(
    shared_api: RunningApi, change: dict[str, Any]
) -> None:
    headers = {"Idempotency-Key": f"order-{secrets.token_hex(8)}"}
    first = await shared_api.client.post("/jobs", json=NOOP, headers=headers)
    assert first.json()["duplicate"] is False
    answer = await shared_api.client.post("/jobs", json=NOOP | change, headers=headers)
    assert problem(answer, 409, "idempotency-conflict")["job_id"] == first.json()["job_id"]


async def test_a_listing_is_filtered_and_paged(system: System, api: RunningApi) -> None:
    ids = [await system.publish("hot.noop", source="one") for _ in range(5)]
    other = await system.publish("backfill.gated", source="two")
    seen: list[str] = []
    cursor = None
    while True:
        query = {"limit": "2", "lane": "hot"} | ({"cursor": cursor} if cursor else {})
        page = (await api.client.get("/jobs", params=query)).json()
        seen += [job["job_id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ids[::-1]
    for query in ({"source": "two"}, {"job_type": "gated"}, {"lane": "backfill"}):
        page = (await api.client.get("/jobs", params=query)).json()
        assert [job["job_id"] for job in page["jobs"]] == [other]
    assert (await api.client.get("/jobs", params={"state": "dead"})).json()["jobs"] == []
    problem(await api.client.get("/jobs", params={"cursor": "abc"}), 422, "invalid")


async def test_a_listing_that_no_index_serves_goes_on_where_it_has_examined_enough(
    system: System, api: RunningApi
) -> None:
    rare = [await system.publish("hot.noop", source="rare") for _ in range(2)]
    common = await system.publish("hot.noop", source="common")
    now = system.ledger.clock.time()
    await _execute(system, _COPIES, number=EXAMINED_JOBS + 10, job=common)
    for job_id, seconds in zip(rare, (2 * EXAMINED_JOBS, 3), strict=True):
        made = "UPDATE jobs SET created_at = :at WHERE id = :job"
        await _execute(system, made, at=now - seconds, job=job_id)

    async def page(**query: str) -> tuple[list[str], str | None, str | None]:
        answer = (await api.client.get("/jobs", params={"source": "rare", **query})).json()
        ids = [job["job_id"] for job in answer["jobs"]]
        return ids, answer["next_cursor"], answer["examined_since"]

    listed, cursor, since = await page()
    assert (listed, cursor is not None, since is not None) == ([rare[1]], True, True)
    age = now - datetime.fromisoformat(str(since)).timestamp()
    assert age == pytest.approx(EXAMINED_JOBS, abs=60)  # one job each second
    assert await page(cursor=str(cursor)) == ([rare[0]], None, None)
    assert (await page(limit="1"))[0] == [rare[1]]
    assert await page(lane="backfill", since=str(since)) == ([], None, None)
    environment = environment_of(system.settings)
    for limit, expected in (("50", rare[::-1]), ("1", rare[:0:-1])):
        options = ("--source", "rare", "--limit", limit, "--json")
        told = await jobctl("jobs", "list", *options, **environment)
        assert [job["job_id"] for job in json.loads(told.stdout)] == expected, told.stderr


_COPIED = ", ".join(each.name for each in jobs.c if each.name not in ("id", "created_at"))
_COPIES = f"""
WITH RECURSIVE numbers(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM numbers WHERE n < :number)
INSERT INTO jobs (id, created_at, {_COPIED})
SELECT id || '-' || n, created_at - n, {_COPIED} FROM jobs, numbers WHERE id = :job
"""
"""Copies of a job, each a second older than the one before."""


async def _execute(system: System, statement: str, **values: Any) -> None:
    await system.ledger.core.database.write(
        lambda connection: connection.execute(text(statement), values)
    )


@pytest.mark.parametrize("path", ["/jobs/none", "/jobs/none/status", "/jobs/none/events"])
async def test_an_unknown_job_is_not_found(shared_api: RunningApi, path: str) -> None:
    problem(await shared_api.client.get(path), 404, "not-found")


async def test_a_cancelled_job_that_waits_never_runs(system: System, api: RunningApi) -> None:
    job_id = (await api.client.post("/jobs", json=NOOP)).json()["job_id"]
    answer = await api.client.delete(f"/jobs/{job_id}")
    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    assert (await api.client.delete(f"/jobs/{job_id}")).status_code == 200
    later = (await api.client.post("/jobs", json=NOOP)).json()["job_id"]
    await system.start_worker("llm", slots=1)
    await system.wait_for_state(later, State.SUCCEEDED)
    assert journal.runs(job_id) == 0
    problem(await api.client.delete(f"/jobs/{later}"), 409, "already-ended")
    problem(await api.client.delete("/jobs/none"), 404, "not-found")


async def test_a_cancelled_job_that_runs_is_stopped(system: System, api: RunningApi) -> None:
    await system.start_worker("llm")
    job_id = (await api.client.post("/jobs", json={"routing_key": "hot.gated"})).json()["job_id"]
    await journal.started(job_id)
    answer = await api.client.delete(f"/jobs/{job_id}")
    assert (answer.status_code, answer.json()["stopping"]) == (202, True)
    await system.wait_for_state(job_id, State.CANCELLED)
    assert journal.cancelled == [job_id]


@pytest.mark.parametrize(("routing_key", "letters"), [("hot.noop", 0), ("backfill.noop", 0)])
async def test_a_full_lane_refuses_and_keeps_nothing(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, routing_key: str, letters: int
) -> None:
    lanes = lanes_with(max_length={"hot": 4, "backfill": 4})
    async with (
        open_system(broker310, sqlite_url, lanes=lanes, data_dir=tmp_path) as system,
        serving(system.settings) as api,
    ):
        await until_connected(api)
        pressures = []
        for _ in range(4):
            await eventually_fresh(api)
            answer = await api.client.post("/jobs", json={"routing_key": routing_key})
            assert answer.status_code == 202
            pressures.append(answer.headers["x-lane-pressure"])
        assert pressures == ["ok", "ok", "slow", "slow"]
        await eventually_fresh(api)
        answer = await api.client.post("/jobs", json={"routing_key": routing_key})
        problem(answer, 503, "lane-full")
        assert int(answer.headers["retry-after"]) >= 1
        assert len((await system.ledger.job_reads.list_jobs()).items) == 4
        assert len(await system.letters()) == letters
        lane = routing_key.partition(".")[0]
        shown = {
            each["lane"]: each for each in (await api.client.get("/backpressure")).json()["lanes"]
        }
        assert shown[lane]["pressure"] == "full"
        assert shown["maintenance"]["pressure"] == "ok"


async def test_a_job_without_a_queue_is_refused_and_leaves_nothing(
    both: tuple[System, RunningApi],
) -> None:
    system, api = both
    async with system.channel() as channel:
        await channel.queue_delete("hot.llm")
    answer = await api.client.post("/jobs", json=NOOP)
    assert "jobctl topology apply" in problem(answer, 503, "no-queue")["detail"]
    assert int(answer.headers["retry-after"]) >= 1
    assert (await system.ledger.job_reads.list_jobs()).items == ()
    assert await system.letters() == []


async def eventually_fresh(api: RunningApi) -> None:
    """Forget the depths that are known, and ask for new ones."""
    api.state.broker.pressure._snapshot = None
    assert (await api.client.get("/backpressure")).is_success


@pytest.mark.parametrize(("routing_key", "letters"), [("hot.noop", 1), ("backfill.noop", 0)])
async def test_a_lane_that_fills_up_meanwhile_refuses_too(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, routing_key: str, letters: int
) -> None:
    lanes = lanes_with(max_length={"hot": 1, "backfill": 1})
    async with (
        open_system(broker310, sqlite_url, lanes=lanes, data_dir=tmp_path) as system,
        serving(system.settings) as api,
    ):
        await eventually_fresh(api)  # nothing waits, as far as the API knows
        await system.publish(routing_key)
        answer = await api.client.post("/jobs", json={"routing_key": routing_key})
        body = problem(answer, 503, "lane-full")
        assert len(await system.letters()) == letters
        records = {job.id: job.state for job in (await system.ledger.job_reads.list_jobs()).items}
        assert len(records) == 1 + letters
        if letters:
            assert records[body["job_id"]] is State.DEAD


async def test_the_live_depth_counts_what_waits(system: System, api: RunningApi) -> None:
    for _ in range(3):
        await system.publish("hot.noop")

    async def ready() -> list[Any]:
        lanes = (await api.client.get("/backpressure")).json()["lanes"]
        queues = {queue["queue"]: queue for lane in lanes for queue in lane["queues"]}
        found = queues["hot.llm"]
        return [found["ready"], found["limit"], found["pressure"]]

    async def right() -> bool:
        return await ready() == [3, 1000, "ok"]

    await eventually(right)


async def test_a_job_that_waits_for_dead_ones_can_go_on_without_them(
    system: System, api: RunningApi
) -> None:
    then, open_one = [await system.jobs.prepare(JobRequest("hot.noop", {"n": n})) for n in range(2)]
    then_id, open_id = then.message.job_id, open_one.message.job_id
    await system.ledger.joins.record_joined(
        [replace(open_one, join_id=then_id), replace(then, joins=Joining())]
    )
    for _ in range(2):  # it waits for one that is open yet
        answer = await api.client.post(f"/jobs/{then_id}/release")
        assert answer.json() == {"job_id": then_id, "open": 1, "dead": 0}
    join = await system.ledger.joins.join(then_id)
    assert join is not None
    assert join.when_dead == "go_on"
    problem(await api.client.post(f"/jobs/{open_id}/release"), 409, "wrong-state")
    problem(await api.client.post("/jobs/nothing/release"), 404, "not-found")

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
async def system_and_api(
    broker310: TestBroker, database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[System, RunningApi]]:
    """Yield a system and its API, on each kind of database."""
    data_dir = tmp_path_factory.mktemp("data")
    async with (
        open_system(broker310, database_url, data_dir=data_dir) as system,
        serving(system.settings) as api,
    ):
        await until_connected(api)
        yield system, api


async def test_a_published_job_runs_and_shows_its_result(
    system_and_api: tuple[System, RunningApi],
) -> None:
    system, api = system_and_api
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


async def test_failed_attempts_are_in_the_timeline(system: System, api: RunningApi) -> None:
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


@pytest.mark.parametrize("time_field", ["delay", "run_at"])
async def test_a_delayed_job_is_scheduled(system: System, api: RunningApi, time_field: str) -> None:
    run_at = datetime.now(UTC) + timedelta(seconds=90)
    body = NOOP | ({"delay": 90} if time_field == "delay" else {"run_at": run_at.isoformat()})
    accepted = (await api.client.post("/jobs", json=body)).json()
    assert accepted["state"] == "scheduled"
    record = await system.record(accepted["job_id"])
    assert record.run_at == pytest.approx(run_at.timestamp(), abs=5)


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
async def test_the_error_locates_the_invalid_field_of_a_job(
    shared_api: RunningApi, change: dict[str, Any], location: list[str]
) -> None:
    before = (await shared_api.client.get("/jobs")).json()
    answer = await shared_api.client.post("/jobs", json=NOOP | change)
    body = problem(answer, 422, "invalid")
    assert location in [each["location"] for each in body["errors"]]
    assert location == ["body"] or ".".join(location) in body["detail"]
    assert (await shared_api.client.get("/jobs")).json() == before


@pytest.mark.parametrize("body", [b"{", b"", b'{"payload": {"n": NaN}, "routing_key": "hot.noop"}'])
async def test_a_body_that_is_not_json_is_refused(shared_api: RunningApi, body: bytes) -> None:
    answer = await shared_api.client.post(
        "/jobs", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"


async def test_the_same_key_and_job_answers_with_the_same_job(
    system_and_api: tuple[System, RunningApi],
) -> None:
    system, api = system_and_api
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
    listed: list[str] = []
    cursor = None
    while True:
        query = {"limit": "2", "lane": "hot"} | ({"cursor": cursor} if cursor else {})
        page = (await api.client.get("/jobs", params=query)).json()
        listed += [job["job_id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert listed == ids[::-1]
    for query in ({"source": "two"}, {"job_type": "gated"}, {"lane": "backfill"}):
        page = (await api.client.get("/jobs", params=query)).json()
        assert [job["job_id"] for job in page["jobs"]] == [other]
    assert (await api.client.get("/jobs", params={"state": "dead"})).json()["jobs"] == []
    problem(await api.client.get("/jobs", params={"cursor": "abc"}), 422, "invalid")


async def test_a_listing_without_an_index_continues_after_a_bounded_number_of_jobs(
    system: System, api: RunningApi
) -> None:
    rare = [await system.publish("hot.noop", source="rare") for _ in range(2)]
    common = await system.publish("hot.noop", source="common")
    now = system.ledger.clock.time()
    await _execute(system, _INSERT_COPIES, number=EXAMINED_JOBS + 10, job=common)
    for job_id, seconds in zip(rare, (2 * EXAMINED_JOBS, 3), strict=True):
        statement = "UPDATE jobs SET created_at = :at WHERE id = :job"
        await _execute(system, statement, at=now - seconds, job=job_id)

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
        result = await jobctl("jobs", "list", *options, **environment)
        assert [job["job_id"] for job in json.loads(result.stdout)] == expected, result.stderr


_COPIED_COLUMNS = ", ".join(each.name for each in jobs.c if each.name not in ("id", "created_at"))
_INSERT_COPIES = f"""
WITH RECURSIVE numbers(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM numbers WHERE n < :number)
INSERT INTO jobs (id, created_at, {_COPIED_COLUMNS})
SELECT id || '-' || n, created_at - n, {_COPIED_COLUMNS} FROM jobs, numbers WHERE id = :job
"""
"""Inserts copies of a job, each a second older than the one before."""


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
async def test_a_full_lane_refuses_a_job_and_records_nothing(
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
            await refresh_depths(api)
            answer = await api.client.post("/jobs", json={"routing_key": routing_key})
            assert answer.status_code == 202
            pressures.append(answer.headers["x-lane-pressure"])
        assert pressures == ["ok", "ok", "slow", "slow"]
        await refresh_depths(api)
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


async def test_a_job_without_a_queue_is_refused_and_not_recorded(
    system_and_api: tuple[System, RunningApi],
) -> None:
    system, api = system_and_api
    async with system.channel() as channel:
        await channel.queue_delete("hot.llm")
    answer = await api.client.post("/jobs", json=NOOP)
    assert "jobctl topology apply" in problem(answer, 503, "no-queue")["detail"]
    assert int(answer.headers["retry-after"]) >= 1
    assert (await system.ledger.job_reads.list_jobs()).items == ()
    assert await system.letters() == []


async def refresh_depths(api: RunningApi) -> None:
    """Make the API forget the depths of the lanes and ask for them again."""
    api.state.broker.pressure._snapshot = None
    assert (await api.client.get("/backpressure")).is_success


@pytest.mark.parametrize(("routing_key", "letters"), [("hot.noop", 1), ("backfill.noop", 0)])
async def test_a_lane_that_the_api_does_not_know_to_be_full_refuses_too(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, routing_key: str, letters: int
) -> None:
    lanes = lanes_with(max_length={"hot": 1, "backfill": 1})
    async with (
        open_system(broker310, sqlite_url, lanes=lanes, data_dir=tmp_path) as system,
        serving(system.settings) as api,
    ):
        await refresh_depths(api)  # nothing waits, as far as the API knows
        await system.publish(routing_key)
        answer = await api.client.post("/jobs", json={"routing_key": routing_key})
        body = problem(answer, 503, "lane-full")
        assert len(await system.letters()) == letters
        records = {job.id: job.state for job in (await system.ledger.job_reads.list_jobs()).items}
        assert len(records) == 1 + letters
        if letters:
            assert records[body["job_id"]] is State.DEAD


async def test_the_live_depth_counts_waiting_jobs(system: System, api: RunningApi) -> None:
    for _ in range(3):
        await system.publish("hot.noop")

    async def hot_queue() -> list[Any]:
        lanes = (await api.client.get("/backpressure")).json()["lanes"]
        queues = {queue["queue"]: queue for lane in lanes for queue in lane["queues"]}
        queue = queues["hot.llm"]
        return [queue["ready"], queue["limit"], queue["pressure"]]

    async def is_counted() -> bool:
        return await hot_queue() == [3, 1000, "ok"]

    await eventually(is_counted)


async def test_a_join_can_be_released_from_its_dead_jobs(system: System, api: RunningApi) -> None:
    waiting_job, open_job = [
        await system.jobs.prepare(JobRequest("hot.noop", {"n": n})) for n in range(2)
    ]
    waiting_id, open_id = waiting_job.message.job_id, open_job.message.job_id
    await system.ledger.joins.record_joined(
        [replace(open_job, join_id=waiting_id), replace(waiting_job, joins=Joining())]
    )
    for _ in range(2):  # it still waits for the open job
        answer = await api.client.post(f"/jobs/{waiting_id}/release")
        assert answer.json() == {"job_id": waiting_id, "open": 1, "dead": 0}
    join = await system.ledger.joins.join(waiting_id)
    assert join is not None
    assert join.when_dead == "go_on"
    problem(await api.client.post(f"/jobs/{open_id}/release"), 409, "wrong-state")
    problem(await api.client.post("/jobs/nothing/release"), 404, "not-found")

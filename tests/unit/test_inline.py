"""Jobs without a broker take the workers' steps: claim, run, decide, record, then the next job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Outcome, Retry, Snooze
from switchyard.services.engine.jobs.registry import InvalidPayload, Registry, job
from switchyard.services.engine.jobs.retry import MAX_DEATHS
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.preparing import (
    THEN,
    InvalidJob,
    JobRequest,
    job_id_of,
    prepare,
)
from switchyard.services.engine.records.requests import ClaimRequest, FinishRequest
from switchyard.services.engine.records.results import AttemptFinished
from switchyard.services.engine.records.states import State
from switchyard.services.engine.runtime.inline import InlineRunner
from tests.support.eventually import eventually
from tests.support.ledgers import make_ledger
from tests.support.raising import HOSTILE, exception


class Payload(BaseModel):
    until: str = ""
    fail: int = 0


@job("first", worker="llm", lanes=("hot",), timeout=20)
async def first(payload: Payload, ctx: JobContext) -> Outcome:
    return Next([Job("second", {}), Job("second", {"fail": 1})], {"number": 1})


@job("second", worker="llm", lanes=("hot",), timeout=20)
async def second(payload: Payload, ctx: JobContext) -> Outcome:
    if ctx.attempt <= payload.fail:
        return Retry("not yet")
    return Done({"attempt": ctx.attempt})


@job("fanning", worker="llm", lanes=("hot",), timeout=20)
async def fan_out(payload: Payload, ctx: JobContext) -> Outcome:
    return Next([Job("first", {}), Job("second", {"fail": 1})], then=Job("gathering", {}))


@job("gathering", worker="llm", lanes=("hot",), timeout=20)
async def gather_states(payload: Payload, ctx: JobContext) -> Outcome:
    record_run(ctx)
    return Done({"found": [each.state async for each in ctx.joined()]})


@job("broken", worker="llm", lanes=("hot",), timeout=20)
async def broken(payload: Payload, ctx: JobContext) -> Outcome:
    raise PermanentError("it can't be read")


@job("sleepy", worker="llm", lanes=("hot",), timeout=20)
async def sleepy(payload: Payload, ctx: JobContext) -> Outcome:
    return Snooze(0.01)


@job("confused", worker="llm", lanes=("hot",), timeout=20)
async def confused(payload: Payload, ctx: JobContext) -> Outcome:
    return Next([Job("no_such_type", {})])


@job("waiting", worker="llm", lanes=("hot",), timeout=20)
async def waiting(payload: Payload, ctx: JobContext) -> Outcome:
    record_run(ctx)
    await eventually((ctx.settings.data_dir / payload.until).exists)
    return Done()


@job("unstoppable", worker="llm", lanes=("hot",), timeout=20)
async def unstoppable(payload: Payload, ctx: JobContext) -> Outcome:
    record_run(ctx)
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return Next([Job("noted", {})])


@job("noted", worker="llm", lanes=("hot",), timeout=20)
async def noted(payload: Payload, ctx: JobContext) -> Outcome:
    record_run(ctx)
    return Done()


def record_run(ctx: JobContext) -> None:
    with (ctx.settings.data_dir / "runs").open("a") as runs:
        runs.write(f"{ctx.job_id}\n")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, amqp_url=None, retry_delays=(0.01, 0.02))


@pytest.fixture
async def ledger(settings: Settings) -> AsyncIterator[Ledger]:
    await make_ledger(settings.ledger_url)
    async with await Ledger.open(settings.ledger_url) as open_ledger:
        yield open_ledger


@pytest.fixture
def registry() -> Registry:
    return Registry.load([__name__, "tests.support.alone", "tests.support.raising"])


@pytest.fixture
async def runner(
    settings: Settings, registry: Registry, ledger: Ledger
) -> AsyncIterator[InlineRunner]:
    async with InlineRunner(settings, registry, ledger, max_wait=0.5) as open_runner:
        yield open_runner


async def run_to_end(runner: InlineRunner, job_type: str, payload: dict | None = None) -> str:
    published = await runner.publish(JobRequest(f"hot.{job_type}", payload or {}))
    await asyncio.wait_for(runner.finish(published.job_id), 20)
    return published.job_id


async def test_a_job_that_joins_others_runs_last_and_once(
    runner: InlineRunner, ledger: Ledger, settings: Settings
) -> None:
    job_id = await run_to_end(runner, "fanning")
    ids = await ledger.system.job_ids()
    joining_job = await ledger.job_reads.get(job_id_of(ids, job_id, "gathering", THEN))
    assert joining_job is not None
    # The two jobs it waits for, and the two that followed from the first of them.
    assert joining_job.result == {"found": ["succeeded"] * 4}
    assert (settings.data_dir / "runs").read_text().split() == [joining_job.id]


async def test_a_job_and_all_its_follow_ups_run_and_are_recorded(
    runner: InlineRunner, ledger: Ledger
):
    job_id = await run_to_end(runner, "first")
    jobs = await ledger.job_reads.pipeline(job_id)
    assert [(each.job_type, each.state, each.attempts) for each in jobs] == [
        ("first", State.SUCCEEDED, 0),
        ("second", State.SUCCEEDED, 0),
        ("second", State.SUCCEEDED, 1),
    ]
    ids = await ledger.system.job_ids()
    assert {each.id for each in jobs[1:]} == {job_id_of(ids, job_id, "second", n) for n in (0, 1)}
    retried = await ledger.job_reads.get(job_id_of(ids, job_id, "second", 1))
    assert retried is not None
    assert retried.result == {"attempt": 2}
    assert [each.outcome for each in retried.timeline] == ["retry"]


@pytest.mark.parametrize(
    ("job_type", "payload", "reason", "error_type", "attempts"),
    [
        ("broken", {}, "permanent", "PermanentError", 1),
        ("second", {"fail": 9}, "exhausted", "Retry", 3),
        ("sleepy", {}, "exhausted", "Snooze", 0),
        ("confused", {}, "permanent", "InvalidOutcome", 1),
        ("deadly", {}, "crashed", "ProcessCrashed", 2),
    ],
)
async def test_a_job_that_keeps_failing_is_dead_with_the_workers_reason(
    runner: InlineRunner,
    ledger: Ledger,
    job_type: str,
    payload: dict,
    reason: str,
    error_type: str,
    attempts: int,
):
    record = await ledger.job_reads.get(await run_to_end(runner, job_type, payload))
    assert record is not None
    assert (record.state, record.reason) == (State.DEAD, reason)
    assert (record.error_type, record.attempts) == (error_type, attempts)


async def test_a_retry_later_than_max_wait_is_given_up(
    settings: Settings, registry: Registry, ledger: Ledger
):
    async with InlineRunner(settings, registry, ledger, max_wait=0.005) as runner:
        record = await ledger.job_reads.get(await run_to_end(runner, "second", {"fail": 1}))
    assert record is not None
    assert (record.state, record.reason, record.attempts) == (State.DEAD, "exhausted", 1)


async def test_a_job_published_again_runs_once(
    runner: InlineRunner, ledger: Ledger, settings: Settings
):
    request = JobRequest("hot.waiting", {"until": "go"}, job_id="same")
    published = [await runner.publish(request) for _ in range(3)]
    assert [each.duplicate for each in published] == [False, True, True]
    both_calls = asyncio.gather(runner.finish("same"), runner.finish("same"))
    (settings.data_dir / "go").touch()
    await asyncio.wait_for(both_calls, 20)
    assert (settings.data_dir / "runs").read_text() == "same\n"


async def test_a_job_runs_on_when_its_caller_is_cancelled(
    runner: InlineRunner, ledger: Ledger, settings: Settings
):
    await runner.publish(JobRequest("hot.waiting", {"until": "go"}, job_id="left"))
    caller = asyncio.create_task(runner.finish("left"))
    await eventually((settings.data_dir / "runs").exists)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    (settings.data_dir / "go").touch()
    await asyncio.wait_for(runner.finish("left"), 20)
    assert await ledger.job_reads.states(["left"]) == {"left": State.SUCCEEDED}
    assert (settings.data_dir / "runs").read_text() == "left\n"


async def test_the_next_process_finishes_what_the_last_one_left(
    settings: Settings, registry: Registry, ledger: Ledger
):
    async with InlineRunner(settings, registry, ledger) as runner:
        await runner.publish(JobRequest("hot.waiting", {"until": "go"}, job_id="cut"))
        await eventually((settings.data_dir / "runs").exists)
    assert await ledger.job_reads.states(["cut"]) == {"cut": State.RUNNING}
    (settings.data_dir / "go").touch()
    async with InlineRunner(settings, registry, ledger) as runner:
        await asyncio.wait_for(runner.finish("cut"), 20)
    assert await ledger.job_reads.states(["cut"]) == {"cut": State.SUCCEEDED}


async def test_a_closed_runner_starts_no_job_for_a_caller(
    settings: Settings, registry: Registry, ledger: Ledger
):
    async with InlineRunner(settings, registry, ledger) as runner:
        await runner.publish(JobRequest("hot.waiting", {"until": "go"}, job_id="late"))
        await eventually((settings.data_dir / "runs").exists)
    (settings.data_dir / "go").touch()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(runner.finish("late"), 20)
    assert (settings.data_dir / "runs").read_text() == "late\n"
    assert await ledger.job_reads.states(["late"]) == {"late": State.RUNNING}


async def test_after_a_job_that_ends_as_the_runner_closes_no_other_starts(
    settings: Settings, registry: Registry, ledger: Ledger
):
    async with InlineRunner(settings, registry, ledger) as runner:
        await runner.publish(JobRequest("hot.unstoppable", {}, job_id="first"))
        await eventually((settings.data_dir / "runs").exists)
    assert await ledger.job_reads.states(["first"]) == {"first": State.SUCCEEDED}
    assert (settings.data_dir / "runs").read_text() == "first\n"
    async with InlineRunner(settings, registry, ledger) as runner:
        await asyncio.wait_for(runner.finish("first"), 20)
    assert len((settings.data_dir / "runs").read_text().splitlines()) == 2


async def test_a_job_that_killed_its_process_often_is_not_started_again(
    settings: Settings, registry: Registry, ledger: Ledger, runner: InlineRunner
):
    new_job = prepare(registry, JobRequest("hot.second", {}, job_id="killer"))
    await ledger.jobs.record(new_job)
    last_claim = None
    for claim in [f"{number}/1" for number in range(MAX_DEATHS)]:
        await ledger.jobs.claim(
            ClaimRequest(new_job.message, "hot", "llm", "hot.second", claim, claim, 1.0, last_claim)
        )
        last_claim = claim
    await asyncio.wait_for(runner.finish("killer"), 20)
    record = await ledger.job_reads.get("killer")
    assert record is not None
    assert (record.state, record.reason) == (State.DEAD, "crashed")


async def test_whatever_a_handler_raises_ends_its_attempt(runner: InlineRunner, ledger: Ledger):
    routes = ("raise_here", "raise_in_limit", "answer_badly", "follow_badly")
    requests = [JobRequest(f"hot.{route}", {"name": name}) for route in routes for name in HOSTILE]
    published = [(await runner.publish(each)).job_id for each in requests]
    async with asyncio.timeout(60):
        for job_id in published:
            await runner.finish(job_id)
    assert set((await ledger.job_reads.states(published)).values()) == {State.DEAD}


async def test_a_job_whose_end_can_not_be_recorded_is_dead(
    runner: InlineRunner, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    finish = ledger.jobs.finish

    async def fail_success(request: FinishRequest) -> AttemptFinished | None:
        if request.state is State.SUCCEEDED:
            raise exception("panic")
        return await finish(request)

    monkeypatch.setattr(ledger.jobs, "finish", fail_success)
    published = await runner.publish(JobRequest("hot.second", {}))
    await asyncio.wait_for(runner.finish(published.job_id), 20)
    record = await ledger.job_reads.get(published.job_id)
    assert record is not None
    assert (record.state, record.error_type) == (State.DEAD, "InvalidOutcome")


async def test_a_job_that_can_not_be_run_is_refused_and_not_recorded(
    runner: InlineRunner, ledger: Ledger
):
    with pytest.raises(InvalidJob, match="JOBS_AMQP_URL"):
        await runner.publish(JobRequest("hot.second", {}, delay=5))
    with pytest.raises(InvalidPayload, match="fail"):
        await runner.publish(JobRequest("hot.second", {"fail": "x"}))
    assert (await ledger.job_reads.list_jobs()).items == ()


async def test_an_expired_job_is_not_run(runner: InlineRunner, ledger: Ledger, settings: Settings):
    expires_at = ledger.clock.now() - timedelta(seconds=1)
    published = await runner.publish(JobRequest("hot.waiting", {}, expires_at=expires_at))
    await asyncio.wait_for(runner.finish(published.job_id), 20)
    record = await ledger.job_reads.get(published.job_id)
    assert record is not None
    assert (record.state, record.reason, record.attempts) == (State.DEAD, "expired", 0)
    assert not (settings.data_dir / "runs").exists()

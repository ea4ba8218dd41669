"""With a broker or without, a job has the same life: the ledger's records are the same."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.records.states import FINISHED, State
from switchyard.services.engine.runtime.inline import InlineRunner
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.joining import JOINING_MODULES
from tests.support.ledgers import make_ledger
from tests.support.system import JOB_MODULES, open_system

MODULES = (*JOB_MODULES, *JOINING_MODULES, "tests.support.limited_jobs")
RETRY_DELAYS = (0.05, 0.1)
LARGEST_RESULT = 20_000


@dataclass
class Mode:
    """One way to run jobs, with a ledger of its own."""

    ledger: Ledger
    publish: Callable[[JobRequest], Awaitable[object]]

    async def end_of(self, job_id: str) -> None:
        """Return when the job and all that follow from it have ended."""

        async def ended() -> bool:
            jobs = await self.ledger.job_reads.pipeline(job_id)
            return bool(jobs) and all(job.state in FINISHED for job in jobs)

        await eventually(ended, what=f"the end of {job_id}")


async def let_run(mode: Mode, job_id: str) -> None:
    """Do nothing more: the job ends by itself."""


async def cancel_running(mode: Mode, job_id: str) -> None:
    await journal.started(job_id)
    await mode.ledger.jobs.cancel(job_id, mode.ledger.clock.time())
    journal.release(job_id)


async def release(mode: Mode, job_id: str) -> None:
    journal.release(job_id)


async def fill_limit(mode: Mode, job_id: str) -> None:
    """Let a second job wait for the limit that the first one fills."""
    await journal.started(job_id)
    second = f"{job_id}-second"
    await mode.publish(JobRequest("hot.called", {"account": "acme"}, job_id=second))

    async def is_refused() -> bool:
        reports = await mode.ledger.limits.limit_reports()
        return any(each.waiting or each.in_use > 1 for each in reports if each.name == "account")

    await eventually(is_refused, what="a job that waits")
    journal.release(job_id, second)
    await mode.end_of(second)


@dataclass
class Case:
    """A job, and how it ends."""

    routing_key: str
    payload: dict[str, Any]
    state: State
    options: dict[str, Any] = field(default_factory=dict)
    drive: Callable[[Mode, str], Awaitable[None]] = let_run


def scripted(state: State, *steps: str, **options: Any) -> Case:
    return Case("hot.scripted", {"steps": list(steps)}, state, options)


CASES = {
    "success": scripted(State.SUCCEEDED, "done"),
    "retry": scripted(State.SUCCEEDED, "retry", "retryable", "done"),
    "snooze": scripted(State.SUCCEEDED, "snooze:0.05", "done"),
    "server-away": scripted(State.SUCCEEDED, "away:0.05", "done"),
    "dead": scripted(State.DEAD, "permanent"),
    "discarded": scripted(State.DEAD, "discard"),
    "exhausted": scripted(State.DEAD, "failure", "retry", "failure"),
    "last-attempt": scripted(State.DEAD, "retry", "done", max_attempts=1),
    "no-outcome": scripted(State.DEAD, "nonsense"),
    "no-json": scripted(State.DEAD, "unjsonable"),
    "largest-result": scripted(State.SUCCEEDED, f"result:{LARGEST_RESULT}"),
    "too-large-result": scripted(State.DEAD, f"result:{LARGEST_RESULT + 1}"),
    "cancelled-library": scripted(State.SUCCEEDED, "cancelled", "done"),
    "system-exit": scripted(State.SUCCEEDED, "exit", "done"),
    "own-process": Case("hot.telling_alone", {"end": "raise"}, State.SUCCEEDED),
    "expired": scripted(State.DEAD, "done", expires_at=timedelta(seconds=-1)),
    "cancelled-too-late": Case("hot.gated", {}, State.SUCCEEDED, drive=cancel_running),
    "cancelled": Case(
        "hot.held_script", {"steps": ["retry"]}, State.CANCELLED, drive=cancel_running
    ),
    "limit-full": Case("hot.called", {"account": "acme"}, State.SUCCEEDED, drive=fill_limit),
    "limit-refused": Case("hot.counted", {"tokens": 1_000_000}, State.DEAD),
    "progress": Case(
        "hot.telling",
        {"reports": 4, "keep": True, "end": "retry"},
        State.SUCCEEDED,
        drive=release,
    ),
    "next-stage": Case("hot.spread", {"count": 3}, State.SUCCEEDED),
    "no-next-stage": Case("hot.spread", {"count": 1, "job_type": "no_such_type"}, State.DEAD),
    "join": Case("hot.fan", {"leaves": 2, "depth": 2, "follow": 1}, State.SUCCEEDED),
    "join-failed": Case("hot.fan", {"leaves": 2, "dead": 1, "when_dead": "fail"}, State.SUCCEEDED),
    "join-without": Case(
        "hot.fan", {"leaves": 2, "dead": 1, "when_dead": "go_on"}, State.SUCCEEDED
    ),
}


@asynccontextmanager
async def inline_mode(directory: Path) -> AsyncIterator[Mode]:
    settings = Settings(
        data_dir=directory,
        amqp_url=None,
        retry_delays=RETRY_DELAYS,
        max_result_bytes=LARGEST_RESULT,
    )
    directory.mkdir()
    await make_ledger(settings.ledger_url)
    async with (
        await Ledger.open(settings.ledger_url) as ledger,
        InlineRunner(settings, Registry.load(MODULES), ledger) as runner,
    ):
        yield Mode(ledger, runner.publish)


@asynccontextmanager
async def broker_mode(broker: TestBroker, database_url: str) -> AsyncIterator[Mode]:
    async with open_system(
        broker,
        database_url,
        modules=MODULES,
        retry_delays=RETRY_DELAYS,
        max_result_bytes=LARGEST_RESULT,
    ) as system:
        await system.start_worker("llm", "embed", slots=8)
        yield Mode(system.ledger, system.jobs.publish)


async def run(mode: Mode, name: str, case: Case) -> None:
    options = dict(case.options)
    if "expires_at" in options:
        options["expires_at"] += mode.ledger.clock.now()
    await mode.publish(JobRequest(case.routing_key, case.payload, job_id=name, **options))
    await case.drive(mode, name)
    await mode.end_of(name)


async def records_of(mode: Mode, job_id: str) -> dict[str, dict[str, Any]]:
    """What the ledger says of a job and of all that follow from it, but for times and places."""
    records: dict[str, dict[str, Any]] = {}
    for job in await mode.ledger.job_reads.pipeline(job_id):
        record = await mode.ledger.job_reads.get(job.id)
        assert record is not None
        records[job.id] = {
            "job_type": record.job_type,
            "payload": record.payload,
            "state": record.state,
            "reason": record.reason,
            "error": (record.error_type, record.error_message),
            "attempts": (record.attempts, record.max_attempts, record.crashes),
            # `called` says how many jobs of all cases ran at its time.
            "result": record.result if record.job_type != "called" else None,
            "place": (record.lane, record.worker, record.parent_id, record.join_id),
            "joins": record.joins,
            "timeline": [
                (each.attempt, each.outcome, each.error_type)
                for each in record.timeline
                # A job that waits for a limit says so with a broker, and waits in place without.
                if each.error_type != "NoRoom"
            ],
            "progress": record.progress and (record.progress.fraction, record.progress.note),
            "has_checkpoint": record.checkpoint_at is not None,
        }
    return records


async def lives(mode: Mode) -> dict[str, dict[str, dict[str, Any]]]:
    journal.clear()
    try:
        await asyncio.gather(*(run(mode, name, case) for name, case in CASES.items()))
    finally:
        journal.release_all()
    names = [*CASES, "limit-full-second"]
    return {name: await records_of(mode, name) for name in names}


async def test_the_ledger_says_the_same_of_a_job_with_a_broker_and_without(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with broker_mode(broker310, sqlite_url) as mode:
        with_broker = await lives(mode)
    async with inline_mode(tmp_path / "inline") as mode:
        without = await lives(mode)
    ends = {name: with_broker[name][name]["state"] for name in CASES}
    assert ends == {name: case.state for name, case in CASES.items()}
    different = [name for name, records in with_broker.items() if without[name] != records]
    assert {name: without[name] for name in different} == {
        name: with_broker[name] for name in different
    }

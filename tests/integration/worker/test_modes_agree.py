"""A job leaves the same records in the ledger with a broker and without one."""

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

    async def wait_for_end(self, job_id: str) -> None:
        """Wait until the job and all jobs that follow from it have ended."""

        async def have_ended() -> bool:
            jobs = await self.ledger.job_reads.pipeline(job_id)
            return bool(jobs) and all(job.state in FINISHED for job in jobs)

        await eventually(have_ended, what=f"the end of {job_id}")


async def do_nothing(mode: Mode, job_id: str) -> None:
    """Do nothing: the job ends by itself."""


async def cancel_while_running(mode: Mode, job_id: str) -> None:
    await journal.started(job_id)
    await mode.ledger.jobs.cancel(job_id, mode.ledger.clock.time())
    journal.release(job_id)


async def release(mode: Mode, job_id: str) -> None:
    journal.release(job_id)


async def fill_limit(mode: Mode, job_id: str) -> None:
    """Let a second job wait for the limit that the first one fills, then release both."""
    await journal.started(job_id)
    second_id = f"{job_id}-second"
    await mode.publish(JobRequest("hot.called", {"account": "acme"}, job_id=second_id))

    async def is_waiting() -> bool:
        reports = await mode.ledger.limits.limit_reports()
        return any(
            report.waiting or report.in_use > 1 for report in reports if report.name == "account"
        )

    await eventually(is_waiting, what="a job that waits")
    journal.release(job_id, second_id)
    await mode.wait_for_end(second_id)


@dataclass
class Case:
    """A job, what is done to it while it runs, and the state in which it ends."""

    routing_key: str
    payload: dict[str, Any]
    state: State
    options: dict[str, Any] = field(default_factory=dict)
    drive: Callable[[Mode, str], Awaitable[None]] = do_nothing


def scripted_case(state: State, *steps: str, **options: Any) -> Case:
    return Case("hot.scripted", {"steps": list(steps)}, state, options)


CASES = {
    "success": scripted_case(State.SUCCEEDED, "done"),
    "retry": scripted_case(State.SUCCEEDED, "retry", "retryable", "done"),
    "snooze": scripted_case(State.SUCCEEDED, "snooze:0.05", "done"),
    "server-away": scripted_case(State.SUCCEEDED, "away:0.05", "done"),
    "dead": scripted_case(State.DEAD, "permanent"),
    "discarded": scripted_case(State.DEAD, "discard"),
    "exhausted": scripted_case(State.DEAD, "failure", "retry", "failure"),
    "last-attempt": scripted_case(State.DEAD, "retry", "done", max_attempts=1),
    "no-outcome": scripted_case(State.DEAD, "nonsense"),
    "no-json": scripted_case(State.DEAD, "unjsonable"),
    "largest-result": scripted_case(State.SUCCEEDED, f"result:{LARGEST_RESULT}"),
    "too-large-result": scripted_case(State.DEAD, f"result:{LARGEST_RESULT + 1}"),
    "cancelled-library": scripted_case(State.SUCCEEDED, "cancelled", "done"),
    "system-exit": scripted_case(State.SUCCEEDED, "exit", "done"),
    "own-process": Case("hot.telling_alone", {"end": "raise"}, State.SUCCEEDED),
    "expired": scripted_case(State.DEAD, "done", expires_at=timedelta(seconds=-1)),
    "cancelled-too-late": Case("hot.gated", {}, State.SUCCEEDED, drive=cancel_while_running),
    "cancelled": Case(
        "hot.held_script", {"steps": ["retry"]}, State.CANCELLED, drive=cancel_while_running
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


async def run_case(mode: Mode, name: str, case: Case) -> None:
    options = dict(case.options)
    if "expires_at" in options:
        options["expires_at"] += mode.ledger.clock.now()
    await mode.publish(JobRequest(case.routing_key, case.payload, job_id=name, **options))
    await case.drive(mode, name)
    await mode.wait_for_end(name)


async def read_records(mode: Mode, job_id: str) -> dict[str, dict[str, Any]]:
    """Read the records of a job and of all that follow from it, without times and worker ids."""
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
            # The result of `called` depends on how many jobs of other cases ran at the same time.
            "result": record.result if record.job_type != "called" else None,
            "place": (record.lane, record.worker, record.parent_id, record.join_id),
            "joins": record.joins,
            "timeline": [
                (line.attempt, line.outcome, line.error_type)
                for line in record.timeline
                # Only with a broker has waiting for a limit a line of its own.
                if line.error_type != "NoRoom"
            ],
            "progress": record.progress and (record.progress.fraction, record.progress.note),
            "has_checkpoint": record.checkpoint_at is not None,
        }
    return records


async def run_all_cases(mode: Mode) -> dict[str, dict[str, dict[str, Any]]]:
    journal.clear()
    try:
        await asyncio.gather(*(run_case(mode, name, case) for name, case in CASES.items()))
    finally:
        journal.release_all()
    job_ids = [*CASES, "limit-full-second"]
    return {job_id: await read_records(mode, job_id) for job_id in job_ids}


async def test_a_job_leaves_the_same_records_with_a_broker_and_without(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with broker_mode(broker310, sqlite_url) as mode:
        with_broker = await run_all_cases(mode)
    async with inline_mode(tmp_path / "inline") as mode:
        without_broker = await run_all_cases(mode)
    states = {name: with_broker[name][name]["state"] for name in CASES}
    assert states == {name: case.state for name, case in CASES.items()}
    differing_cases = [
        name for name, records in with_broker.items() if without_broker[name] != records
    ]
    assert {name: without_broker[name] for name in differing_cases} == {
        name: with_broker[name] for name in differing_cases
    }

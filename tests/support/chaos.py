"""Jobs that leave a trace of every run, and the check at the end of every chaos test: each accepted
job is accounted for."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import Connection, text

from switchyard.broker.errors import PublishError
from switchyard.services.common.errors import PermanentError
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.engine.ledger.sql.database import connect
from switchyard.services.engine.publishing.preparing import InvalidJob, JobRequest
from switchyard.services.engine.publishing.publisher import Published
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.engine.records.states import State
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.system import Broker, System, open_system
from tests.support.worker_process import Process, Processes

CHAOS_MODULES = ("tests.support.chaos",)

BOTH_QUEUE_TYPES = pytest.mark.parametrize(
    "broker",
    [
        pytest.param(("3.10", "classic"), id="classic", marks=pytest.mark.broker310),
        pytest.param(("4.3", "quorum"), id="quorum", marks=pytest.mark.broker43),
    ],
    indirect=True,
)
"""Parameters of the fixture `broker`: one version for each queue type suffices."""


# --- effects --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    """A step of a handler: `started`, `failed`, or `done` for success."""

    job_id: str
    what: str
    attempt: int
    worker_id: str
    at: float
    """Seconds, on the monotonic clock, which all processes share."""


class Effects:
    """The effects of handlers in all processes, in a file that survives the processes."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "effects"

    def note(self, ctx: JobContext, what: str) -> None:
        line = f"{ctx.job_id} {what} {ctx.attempt} {ctx.worker_id} {time.monotonic()}\n"
        # One small write with O_APPEND: lines of several processes do not mix.
        file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def all(self) -> list[Effect]:
        if not self._file.exists():
            return []
        lines = (line.split() for line in self._file.read_text().splitlines())
        return [
            Effect(job_id, what, int(attempt), worker_id, float(at))
            for job_id, what, attempt, worker_id, at in lines
        ]

    def ids(self, what: str) -> list[str]:
        """Return the job ids of all effects of this kind, in order, with repetitions."""
        return [effect.job_id for effect in self.all() if effect.what == what]

    def under_way(self, worker_id: str) -> set[str]:
        """Return jobs that this worker has started and not ended."""
        effects = [effect for effect in self.all() if effect.worker_id == worker_id]
        ended = {effect.job_id for effect in effects if effect.what != "started"}
        return {effect.job_id for effect in effects} - ended

    async def reach(self, what: str, count: int, timeout: float = MAX_WAIT) -> None:
        """Wait until `count` jobs have this effect. `timeout`: seconds without a further one."""
        await eventually(
            lambda: len(set(self.ids(what))) >= count,
            timeout,
            f"{count} jobs {what}",
            progress=lambda: len(set(self.ids(what))),
        )


class Work(BaseModel):
    """The payload of `effect`: what the job does."""

    seconds: float = 0
    until: str = ""
    """Name of a file in the data directory whose existence the job awaits before it ends."""
    fail_attempts: int = 0
    """Number of first attempts that fail."""
    fail_redrives: int = 0
    """Number of redrives until which every attempt fails."""
    fail_on: str = ""
    """Id of the worker on which the job fails permanently."""
    then: bool = False
    """Whether another job follows."""


@job("effect", worker="llm", lanes=("hot", "backfill"), timeout=60)
async def effect(payload: Work, ctx: JobContext) -> Outcome:
    """Leave a trace when it starts, and when it is done."""
    effects = Effects(ctx.settings.data_dir)
    effects.note(ctx, "started")
    await asyncio.sleep(payload.seconds)
    if payload.until:
        await eventually((ctx.settings.data_dir / payload.until).exists, timeout=60)
    redrives = ctx.message.metadata.redrives
    if ctx.attempt <= payload.fail_attempts or redrives < payload.fail_redrives:
        effects.note(ctx, "failed")
        raise RuntimeError("it fails, as it was told to")
    if ctx.worker_id == payload.fail_on:
        effects.note(ctx, "failed")
        raise PermanentError("it fails here for good, as it was told to")
    effects.note(ctx, "done")
    return Next([Job("effect", {})]) if payload.then else Done()


@job("poison", worker="llm", lanes=("hot", "backfill"), timeout=60)
async def poison(payload: Work, ctx: JobContext) -> Outcome:
    """Kill the worker that runs it."""
    Effects(ctx.settings.data_dir).note(ctx, "started")
    await asyncio.sleep(payload.seconds)
    os.kill(os.getpid(), signal.SIGKILL)
    return Done()


# --- states in the ledger, and their history --------------------------------------------------

_HISTORY = {
    "sqlite": (
        "CREATE TABLE history (job_id TEXT, old TEXT, new TEXT)",
        """CREATE TRIGGER history AFTER UPDATE ON jobs WHEN OLD.state <> NEW.state
        BEGIN INSERT INTO history VALUES (NEW.id, OLD.state, NEW.state); END""",
    ),
    "postgresql": (
        "CREATE TABLE history (job_id TEXT, old TEXT, new TEXT)",
        """CREATE FUNCTION keep_history() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO history VALUES (NEW.id, OLD.state, NEW.state); RETURN NULL; END $$""",
        """CREATE TRIGGER history AFTER UPDATE ON jobs FOR EACH ROW
        WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION keep_history()""",
    ),
}


async def keep_history(database_url: str) -> None:
    """Let a trigger of the database record every change of a job's state from now on."""

    def prepare(connection: Connection) -> None:
        for statement in _HISTORY[connection.dialect.name]:
            connection.execute(text(statement))

    database = await connect(database_url)
    await database.write(prepare)
    await database.close()


async def history_of(database_url: str) -> list[tuple[str, str, str]]:
    """Return every change of state since `keep_history`: job, old state, new state."""

    def rows(connection: Connection) -> list[tuple[str, str, str]]:
        history_rows = connection.execute(text("SELECT job_id, old, new FROM history")).all()
        return [(row.job_id, row.old, row.new) for row in history_rows]

    database = await connect(database_url)
    try:
        return await database.read(rows)
    finally:
        await database.close()


async def assert_all_accounted_for(
    system: System,
    accepted: Collection[str],
    *,
    dead: Collection[str] = (),
    timeout: float = 60.0,
) -> None:
    """Check that every accepted job ends: those of `dead` are dead, all others have succeeded.

    Exactly once in the ledger (it never leaves `succeeded`, and enters it once), with at least
    one trace of its handler, and with nothing of it left on the broker but, in `jobs.dead`, one
    letter for each dead job. Needs `keep_history`.
    """
    assert len(set(accepted)) == len(accepted)
    assert set(dead) <= set(accepted)
    alive = set(accepted) - set(dead)
    await system.wait_until_all(accepted, State.SUCCEEDED, State.DEAD, timeout=timeout)

    states = await system.ledger.job_reads.states(list(accepted))
    found_dead = {job_id for job_id, state in states.items() if state is State.DEAD}
    assert found_dead == set(dead), f"dead: {found_dead}, expected: {set(dead)}"
    changes = await history_of(system.settings.ledger_url)
    successes = Counter(job_id for job_id, _, new in changes if new == State.SUCCEEDED)
    assert successes == Counter(alive), "not exactly one success for each"
    assert not [change for change in changes if change[1] == State.SUCCEEDED], "success undone"
    missing = alive - set(Effects(system.settings.data_dir).ids("done"))
    assert not missing, f"succeeded without having run: {sorted(missing)[:10]}"

    await wait_until_lanes_are_empty(system)
    assert Counter(letter.id for letter in await system.letters()) == Counter(dead)


async def wait_until_lanes_are_empty(system: System, timeout: float = MAX_WAIT) -> None:
    """Wait until only dead letters are left on the broker."""
    message_counts: dict[str, int] = {}

    async def is_empty() -> bool:
        queues = await system.broker.management.get("/queues/{vhost}")
        message_counts.clear()
        for queue in queues:
            if not queue["name"].startswith("jobs.dead") and queue.get("messages"):
                message_counts[queue["name"]] = queue["messages"]
        return not message_counts

    try:
        await eventually(is_empty, timeout)
    except AssertionError:
        raise AssertionError(f"left in the queues after {timeout:g} s: {message_counts}") from None


@asynccontextmanager
async def open_chaos(
    broker: Broker, database_url: str, directory: Path, **settings: Any
) -> AsyncIterator[System]:
    """Open a system with the jobs of this module, whose ledger keeps its history."""
    options: dict[str, Any] = {"modules": CHAOS_MODULES, "data_dir": directory} | settings
    async with open_system(broker, database_url, **options) as system:
        await keep_history(database_url)
        yield system


@asynccontextmanager
async def outbox(system: System) -> AsyncIterator[None]:
    """Run a scheduler that publishes pending jobs within a second."""
    scheduler = Scheduler(
        system.settings,
        system.registry,
        system.ledger,
        intervals=SchedulerIntervals(turn=0.1, pending=1.0),
    )
    task = asyncio.create_task(scheduler.run())
    try:
        yield
    finally:
        scheduler.stop()
        await asyncio.wait_for(task, 20)


# --- publishing -------------------------------------------------------------------------------


async def publish_all(
    system: System,
    requests: Sequence[JobRequest],
    *,
    batch: int = 100,
    timeout: float = 60.0,
    accepted: list[str] | None = None,
) -> list[str]:
    """Publish jobs, and repeat those that are not accepted under the same id until all are.

    A repeated job that an earlier try has recorded counts as accepted, although it is pending: run
    an `outbox` if a try may fail half-way. Returns the ids of all jobs. `accepted` is the list to
    which they are appended, for callers that watch it grow.
    """
    accepted = [] if accepted is None else accepted
    async with asyncio.timeout(timeout):
        for start in range(0, len(requests), batch):
            remaining = list(requests[start : start + batch])
            while remaining:
                remaining = await _publish(system, remaining, accepted)
                if remaining:
                    await asyncio.sleep(0.1)
    return accepted


async def _publish(
    system: System, requests: Sequence[JobRequest], accepted: list[str]
) -> list[JobRequest]:
    """Publish jobs, and return those that were not accepted."""
    try:
        outcomes = await system.jobs.publish_many(requests)
    except LedgerUnavailable:
        return list(requests)
    remaining: list[JobRequest] = []
    for request, outcome in zip(requests, outcomes, strict=True):
        if isinstance(outcome, Published):
            accepted.append(outcome.job_id)
        elif isinstance(outcome, PublishError):
            remaining.append(request)
        else:
            raise InvalidJob(str(outcome))
    return remaining


def requests_of(
    count: int, routing_key: str = "backfill.effect", *, max_attempts: int = 3, **payload: Any
) -> list[JobRequest]:
    """Return requests for that many jobs, with new ids."""
    prefix = os.urandom(4).hex()
    return [
        JobRequest(routing_key, payload, job_id=f"{prefix}-{number}", max_attempts=max_attempts)
        for number in range(count)
    ]


# --- a pool -----------------------------------------------------------------------------------


class Pool:
    """Keeps a number of workers running: one that ends is started again."""

    def __init__(self, processes: Processes, size: int, **options: Any) -> None:
        self._processes = processes
        self._size = size
        self._options = options
        self._tasks: list[asyncio.Task[None]] = []
        self.deaths: list[int] = []
        """Exit codes of the workers that have ended."""

    async def __aenter__(self) -> "Pool":
        started = [self._processes.start("worker", **self._options) for _ in range(self._size)]
        first = await asyncio.gather(*started)
        self._tasks = [asyncio.create_task(self._keep(process)) for process in first]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, process: Process) -> None:
        while True:
            self.deaths.append(await process.ended(timeout=600))
            process = await self._processes.start("worker", **self._options)


def write(directory: Path, name: str) -> None:
    """Create the file for which jobs wait."""
    (directory / name).touch()


def ids_of(requests: Iterable[JobRequest]) -> list[str]:
    return [request.job_id for request in requests if request.job_id is not None]

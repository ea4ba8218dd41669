"""Run a handler once in a test, without a broker, on a temporary ledger, file storage and index."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec

from pydantic import BaseModel, SecretStr

from switchyard.broker.message import JobMessage
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.context import JobContext, in_thread
from switchyard.services.engine.jobs.outcomes import Outcome
from switchyard.services.engine.jobs.registry import Registry, job_type_of
from switchyard.services.engine.jobs.retry import Decision, Delayed, Died, Failure, Succeeded
from switchyard.services.engine.ledger import Ledger, upgrade
from switchyard.services.engine.publishing.preparing import InvalidJob, JobRequest, prepare
from switchyard.services.engine.records.joins import JoinedJob
from switchyard.services.engine.records.limits import PermitDemand
from switchyard.services.engine.records.progress import ReportedProgress
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.records.states import State
from switchyard.services.engine.runtime.brokerless_attempt import run_single_attempt
from switchyard.services.engine.wings import job_modules

P = ParamSpec("P")

LEDGER_FILE = "ledger.db"


@dataclass(frozen=True, slots=True)
class JobRun:
    """Result of one attempt, and what production would do next."""

    outcome: Outcome | None
    """The handler's outcome; None where it raised, took too long or returned no outcome."""
    published: tuple[NewJob, ...]
    """The jobs that follow: `routing_key`, `lane`, and `message` with payload and priority."""
    decision: Decision
    """Succeeded, Delayed or Died, as `switchyard.services.engine.jobs.retry.decide` says."""
    seconds: float
    """Seconds that the handler ran."""
    progress: ReportedProgress | None = None
    """The progress that it reported last: `fraction` and `note`."""
    checkpoint: Any = None
    """The last value given to `ctx.checkpoint`: pass it to the next run as `last_checkpoint`."""
    needs: tuple[PermitDemand, ...] = ()
    """The permits that it needs of its limits: `name`, `key`, `size`, `tokens`. In a test they are
    always granted, except to a job that could never get them: it is dead, as in production."""
    used_tokens: int | None = None
    """Tokens that the handler reported by `ctx.report_usage`."""

    @property
    def then(self) -> NewJob | None:
        """The job that waits for all others of `published`; None where the handler named none."""
        return next((job for job in self.published if job.joins is not None), None)

    @property
    def state(self) -> State:
        """The job's state after this attempt: succeeded, retrying or dead."""
        match self.decision:
            case Succeeded():
                return State.SUCCEEDED
            case Delayed():
                return State.RETRYING
            case Died():
                return State.DEAD

    @property
    def result(self) -> dict[str, Any] | None:
        """The result that the ledger stores for a success; else None."""
        return dict(self.decision.result) if isinstance(self.decision, Succeeded) else None

    @property
    def failure(self) -> Failure | None:
        """The failure, with `error_type`, `message`, `traceback`, `permanent`, `crashed`; None for
        a success."""
        return self.decision.failure if isinstance(self.decision, Delayed | Died) else None

    @property
    def reason(self) -> str | None:
        """Reason of its death (`permanent`, `exhausted`, `crashed`), as in `jobctl dead list`; None
        unless dead."""
        return str(self.decision.reason) if isinstance(self.decision, Died) else None

    @property
    def retry_after(self) -> float | None:
        """Seconds that the job waits on the broker for its next attempt; None if there is none."""
        return self.decision.seconds if isinstance(self.decision, Delayed) else None


async def run_job(
    handler: Callable[..., Any],
    payload: Mapping[str, Any] | BaseModel | None = None,
    *,
    lane: str | None = None,
    attempt: int = 1,
    max_attempts: int | None = None,
    job_id: str | None = None,
    last_checkpoint: Any = None,
    modules: Iterable[str] = (),
    settings: Mapping[str, Any] | None = None,
    ledger: Ledger | None = None,
    joined: Sequence[JoinedJob | Mapping[str, Any]] | None = None,
) -> JobRun:
    """Run a handler that is declared by `@job` once, as a worker does.

    The payload goes through JSON and its model. Time limit, process and memory limit are those of
    the declaration. The jobs that it publishes are checked against the built-in job types, those of
    the handler's module, of JOBS_MODULES and of `modules`.

    `lane`: None for the type's first. `attempt`: the number of this attempt, from 1.
    `last_checkpoint`: the checkpoint of an earlier attempt. `settings` (`{"llm_base_url": …}`)
    replace JOBS_… variables; ledger, storage and index are in a temporary directory unless they are
    named here. `ledger`: an open one, for a test that reads it afterwards. `joined`: what
    `ctx.joined()` returns; a mapping is the result of a job that has succeeded.

    Raises RegistryError where the function is not declared, InvalidPayload where the payload does
    not fit its model, InvalidJob where lane or attempt do not fit the type, and ValidationError for
    a wrong setting. An error of the handler is in the result.
    """
    job_type = job_type_of(handler)
    with tempfile.TemporaryDirectory(prefix="switchyard-test-") as directory:
        test_settings = isolated_settings(Path(directory), settings or {})
        registry = Registry.load(
            dict.fromkeys((*job_modules(), handler.__module__, *test_settings.modules, *modules))
        )
        registry.add(job_type)  # it may be declared inside a function
        lane = lane or job_type.lanes[0]
        payload_values = (
            payload.model_dump(mode="json") if isinstance(payload, BaseModel) else payload
        )
        request = JobRequest(
            f"{lane}.{job_type.name}",
            payload_values or {},
            source="test",
            max_attempts=max_attempts,
            job_id=job_id,
        )
        message = _receive(prepare(registry, request).message, attempt)
        joined_results = (
            None if joined is None else [_joined_job(each, n) for n, each in enumerate(joined)]
        )
        if ledger is not None:
            return await _run(
                registry, test_settings, ledger, message, lane, last_checkpoint, joined_results
            )
        await make_ledger(test_settings)
        async with await Ledger.open(test_settings.ledger_url) as opened:
            return await _run(
                registry, test_settings, opened, message, lane, last_checkpoint, joined_results
            )


def _make_sync(call: Callable[P, Coroutine[Any, Any, JobRun]]) -> Callable[P, JobRun]:
    def run(*args: P.args, **options: P.kwargs) -> JobRun:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(call(*args, **options))
        raise RuntimeError("an event loop runs here: use `await run_job(…)`")

    run.__doc__ = """Do as `run_job`, in a test that is not `async def`.

    Raises RuntimeError inside an event loop: await `run_job` there."""
    return run


run_job_sync = _make_sync(run_job)


def isolated_settings(directory: Path, values: Mapping[str, Any]) -> Settings:
    """Return the settings of the environment, replaced by `values`. Ledger, files and index are in
    the directory unless `values` names other places. Raises ValueError for an unknown setting, and
    ValidationError for a wrong value."""
    unknown = sorted(set(values).difference(Settings.model_fields))
    if unknown:
        raise ValueError(f"there is no setting {', '.join(unknown)}: docs/settings.md has them all")
    isolated: dict[str, Any] = {
        "amqp_url": None,
        "management_url": None,
        "data_dir": directory,
        "database_url": SecretStr(_url_of(directory / LEDGER_FILE)),
        "storage_url": (directory / "files").as_uri(),
        "index_url": str(directory / "index"),
    }
    return Settings(**(isolated | dict(values)))


async def make_ledger(settings: Settings) -> None:
    """Create the ledger. Its file of SQLite is a copy of one that this process makes once: the
    migrations take longer than the handlers of most tests."""
    path = settings.data_dir / LEDGER_FILE
    if settings.ledger_url == _url_of(path) and not path.exists():
        path.write_bytes(await in_thread(_empty_ledger))
    else:
        await upgrade(settings.ledger_url)


@cache
def _empty_ledger() -> bytes:
    with tempfile.TemporaryDirectory(prefix="switchyard-test-") as directory:
        path = Path(directory) / LEDGER_FILE
        asyncio.run(upgrade(_url_of(path)))
        return path.read_bytes()


def _url_of(path: Path) -> str:
    return f"sqlite+aiosqlite:///{path}"


def _receive(message: JobMessage, attempt: int) -> JobMessage:
    """Return the message as a worker receives it for that attempt. Raises InvalidJob."""
    if not 1 <= attempt <= message.metadata.max_attempts:
        raise InvalidJob(
            f"attempt {attempt} of {message.job_type}: it has {message.metadata.max_attempts}"
        )
    return JobMessage.decode(message.with_metadata(attempts=attempt - 1).encode())


def _joined_job(job_or_result: JoinedJob | Mapping[str, Any], number: int) -> JoinedJob:
    if isinstance(job_or_result, JoinedJob):
        return job_or_result
    return JoinedJob(
        job_id=f"joined-{number}",
        job_type="joined",
        state=State.SUCCEEDED,
        parent_id=None,
        payload={},
        result=job_or_result,
        error_type=None,
        error_message=None,
    )


async def _run(
    registry: Registry,
    settings: Settings,
    ledger: Ledger,
    message: JobMessage,
    lane: str,
    last_checkpoint: Any,
    joined: Sequence[JoinedJob] | None,
) -> JobRun:
    ctx = JobContext(
        message=message,
        lane=lane,
        worker_id="test",
        settings=settings,
        ledger=ledger,
        last_checkpoint=last_checkpoint,
        joined_jobs=joined,
    )
    attempt = await run_single_attempt(registry, ctx)
    reported = ctx.progress_buffer.take()
    checkpoint = None if reported is None else reported.checkpoint
    return JobRun(
        attempt.outcome,
        tuple(attempt.following),
        attempt.decision,
        attempt.seconds,
        progress=None if reported is None else reported.progress,
        checkpoint=None if checkpoint is None else json.loads(checkpoint),
        needs=attempt.needs,
        used_tokens=ctx.usage.tokens,
    )

"""Run a real worker inside a test, in a virtual host of its own on an existing broker."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, SecretStr

from switchyard.broker.addresses import with_vhost
from switchyard.broker.lanes import LANES
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.topology.build import build
from switchyard.broker.topology.definitions import render
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.registry import JobType, Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import FINISHED
from switchyard.services.engine.runtime.execution import Executor
from switchyard.services.engine.runtime.worker import Worker, plan_for
from switchyard.services.engine.testing.running import isolated_settings, make_ledger

RETRY_DELAYS = (0.1, 0.2, 0.4)
"""Seconds; shorter than in production."""
SLOTS = 4
STATE_POLL_INTERVAL = 0.02
"""Seconds between polls of the ledger and of the worker's state."""


@dataclass(frozen=True, slots=True)
class HandlerRun:
    """One run of a handler."""

    job_id: str
    job_type: str
    attempt: int
    """Number of the attempt, from 1."""
    payload: Mapping[str, Any]
    outcome: Any
    """The handler's outcome, or a Failure."""


class TestWorker:
    """A running worker, from `open_worker`."""

    __test__ = False  # a name for pytest to leave alone

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        jobs: JobPublisher,
        worker_task: asyncio.Task[None],
        runs: list[HandlerRun],
    ) -> None:
        self.settings = settings
        self.ledger = ledger
        self.runs = runs
        """Every run of a handler, in the order of their ends."""
        self._jobs = jobs
        self._worker_task = worker_task

    async def publish(
        self, routing_key: str, payload: Mapping[str, Any] | None = None, **options: Any
    ) -> str:
        """Publish a job and return its id. `options`: fields of JobRequest. Raises what
        `JobPublisher.publish` raises."""
        published = await self._jobs.publish(JobRequest(routing_key, payload or {}, **options))
        return published.job_id

    async def wait(self, job_id: str, *, timeout: float = 30) -> JobRecord:
        """Wait until a job and the jobs that follow from it have ended; return the job's record.

        Raises TimeoutError after `timeout` seconds, and what the worker raised if it has ended.
        """
        async with asyncio.timeout(timeout):
            while not self._worker_task.done():
                pipeline = await self.ledger.job_reads.pipeline(job_id)
                if pipeline and all(job.state in FINISHED for job in pipeline):
                    break
                await asyncio.sleep(STATE_POLL_INTERVAL)
            else:
                self._worker_task.result()
                raise RuntimeError("the worker has ended")
        record = await self.ledger.job_reads.get(job_id)
        assert record is not None
        return record

    async def run(
        self,
        routing_key: str,
        payload: Mapping[str, Any] | None = None,
        *,
        timeout: float = 30,
        **options: Any,
    ) -> JobRecord:
        """Publish a job and wait for its end: `publish` and `wait`."""
        return await self.wait(await self.publish(routing_key, payload, **options), timeout=timeout)


@asynccontextmanager
async def open_worker(
    *modules: str, amqp_url: str | None = None, settings: Mapping[str, Any] | None = None
) -> AsyncIterator[TestWorker]:
    """Run a worker in this process, of all kinds that the job types of these modules need.

    It uses a virtual host of its own on the broker at `amqp_url` or JOBS_AMQP_URL, whose user needs
    the tag `administrator`, and a temporary directory for ledger, files and index. Both are removed
    at the end. Retries come after a fraction of a second. There is no scheduler: a job with a delay
    stays `scheduled`. `settings` as in `run_job`.

    Raises RegistryError, ManagementError, ValueError when no broker is named.
    """
    registry = Registry.load(modules)
    base = Settings() if amqp_url is None else Settings(amqp_url=SecretStr(amqp_url))
    url = with_vhost(base.require_amqp_url(), f"switchyard-test-{secrets.token_hex(6)}")
    with tempfile.TemporaryDirectory(prefix="switchyard-test-") as directory:
        own = isolated_settings(
            Path(directory),
            {
                "retry_delays": RETRY_DELAYS,
                "modules": modules,
                "shutdown_grace": 5,
                **(settings or {}),
                "amqp_url": SecretStr(url),
                "management_url": SecretStr(base.require_management_url()),
            },
        )
        async with ManagementClient(own.require_management_url(), own.vhost) as client:
            await client.put_vhost(unquote(urlsplit(url).username or "guest"))
            try:
                lanes = tuple(replace(lane, workers=()) for lane in LANES)
                topology = build(
                    own.profile, registry.routes, lanes=lanes, retry_delays=own.retry_delays
                )
                await client.import_definitions(render(topology, vhost=own.vhost))
                await make_ledger(own)
                async with (
                    await Ledger.open(own.ledger_url) as ledger,
                    _run_worker(own, registry, ledger) as worker,
                ):
                    yield worker
            finally:
                await client.delete_vhost()


@asynccontextmanager
async def _run_worker(
    settings: Settings, registry: Registry, ledger: Ledger
) -> AsyncIterator[TestWorker]:
    runs: list[HandlerRun] = []
    kinds = sorted({job_type.worker for job_type in registry})
    worker = Worker(
        settings,
        registry,
        ledger,
        [plan_for(registry, kind, slots=SLOTS) for kind in kinds],
        executor=lambda slots: _RecordingExecutor(slots, runs),
    )
    async with Publisher(settings, name="test") as publisher:
        task = asyncio.create_task(worker.run())
        try:
            while set(worker.queue_states.values()) != {"consuming"}:
                if task.done():
                    task.result()
                    raise RuntimeError("the worker has ended")
                await asyncio.sleep(STATE_POLL_INTERVAL)
            jobs = JobPublisher(registry, ledger, publisher)
            yield TestWorker(settings, ledger, jobs, task, runs)
        finally:
            worker.stop()
            await task


class _RecordingExecutor(Executor):
    """Records every run of a handler in `runs`."""

    def __init__(self, processes: int, runs: list[HandlerRun]) -> None:
        super().__init__(processes)
        self._runs = runs

    async def run(
        self, job_type: JobType, payload: BaseModel, ctx: JobContext, *, suspect: bool = False
    ) -> Any:
        outcome = await super().run(job_type, payload, ctx, suspect=suspect)
        self._runs.append(
            HandlerRun(ctx.job_id, job_type.name, ctx.attempt, dict(ctx.message.payload), outcome)
        )
        return outcome

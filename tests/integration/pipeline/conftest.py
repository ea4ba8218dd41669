"""Fixtures: a data folder, a ledger and a model server for each test, and a pipeline that runs
without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from switchyard.broker.message import JobMessage, Metadata
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.context import JobContext, ProcessCrashed
from switchyard.services.engine.jobs.outcomes import Job, Next, Outcome
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.runtime.execution import Executor
from tests.support.ledgers import make_ledger
from tests.support.llm_server import FakeLlmServer
from tests.support.pdfs import TEXT, pdf


@dataclass
class Pipeline:
    """Runs jobs as a worker would, each with the jobs that follow from it."""

    settings: Settings
    ledger: Ledger | None
    registry: Registry = field(default_factory=Registry.load)
    outcomes: list[tuple[str, Outcome]] = field(default_factory=list)
    """Job types with the outcomes of their jobs, in order, of the last `run`."""

    run_id: str = ""
    """The run that the last ingest job began; stages that `run_job` runs belong to it, too."""

    @property
    def storage(self) -> Storage:
        return Storage(self.settings.files_url)

    async def run_job(
        self,
        job_type: str,
        payload: dict[str, Any],
        *,
        attempt: int = 1,
        lane: str = "hot",
        run_id: str | None = None,
    ) -> Outcome:
        """Run one job, and return its outcome."""
        declared = self.registry.get(job_type)
        validated = declared.validate(payload)
        if job_type.startswith("ingest_"):
            self.run_id = run_id or str(uuid4())
        metadata = Metadata(attempts=attempt - 1, pipeline=run_id or self.run_id or None)
        message = JobMessage(job_type=job_type, payload=payload, metadata=metadata)
        ctx = JobContext(message, lane, "test", self.settings)
        if declared.isolation == "process":
            outcome: Outcome = declared.handler(validated, ctx)
        else:
            outcome = await declared.handler(validated, replace(ctx, ledger=self.ledger))
        return outcome

    async def run(self, job_type: str, payload: dict[str, Any], lane: str = "hot") -> list[str]:
        """Run a job and all that follow from it. Returns the job types in the order in which they
        ran."""
        self.outcomes, run_id = [], str(uuid4())
        waiting = [Job(job_type, payload, lane)]
        joining: list[Job] = []  # each waits until all others have ended
        while waiting or joining:
            job = waiting.pop(0) if waiting else joining.pop()
            outcome = await self.run_job(
                job.job_type, dict(job.payload), lane=job.lane or lane, run_id=run_id
            )
            self.outcomes.append((job.job_type, outcome))
            if isinstance(outcome, Next):
                waiting.extend(outcome.jobs)
                joining += [outcome.then] if outcome.then else []
        return [name for name, _ in self.outcomes]

    def result(self, job_type: str) -> dict[str, Any]:
        """Return the result of the job of that type in the last `run`."""
        outcome = next(outcome for name, outcome in self.outcomes if name == job_type)
        return dict(outcome.result)  # type: ignore[union-attr]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data")


@pytest.fixture
async def ledger(settings: Settings) -> AsyncIterator[Ledger]:
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    await make_ledger(settings.ledger_url)
    async with await Ledger.open(settings.ledger_url) as ledger:
        yield ledger


@pytest.fixture
async def pipeline(settings: Settings, ledger: Ledger) -> Pipeline:
    return Pipeline(settings, ledger)


@pytest.fixture
def paper(tmp_path: Path) -> str:
    """Return the path of a PDF of two pages."""
    path = tmp_path / "paper.pdf"
    path.write_bytes(pdf([TEXT, TEXT], title="On Tides"))
    return str(path)


@pytest.fixture
def llm() -> Iterator[FakeLlmServer]:
    with FakeLlmServer() as server:
        yield server


@pytest.fixture
async def llm_pipeline(pipeline: Pipeline, llm: FakeLlmServer) -> Pipeline:
    """Return a pipeline that calls the test's model server."""
    update = {"llm_base_url": llm.url, "llm_model": "test-model", "llm_timeout": 5.0}
    return replace(pipeline, settings=pipeline.settings.model_copy(update=update))


@pytest.fixture(scope="session")
def in_process() -> Iterator[Callable[..., Any]]:
    """Return a function that runs another in a process that can be killed, as a worker does. It
    returns what the other returns, or the error that the other raises; where the process is killed,
    it raises ProcessCrashed or TimeoutError."""

    async def run_in_process(work: Callable[..., Any], *args: Any, timeout: float) -> Any:
        try:
            return await executor.in_process(work, *args, timeout=timeout, memory_limit_mb=2048)
        except (ProcessCrashed, TimeoutError):
            raise
        except Exception as error:
            return error

    executor = Executor(1)
    with asyncio.Runner() as runner:
        yield lambda work, *args, timeout: runner.run(run_in_process(work, *args, timeout=timeout))
        runner.run(executor.close())

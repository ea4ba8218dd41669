"""The autoscaler: it reads the ledger, and retires processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from switchyard.cli.system.autoscale import Autoscaler, ProcessRange
from switchyard.cli.system.local_system import System
from switchyard.cli.system.supervisor import Child, Supervisor
from switchyard.services.common.settings import LlmServer, Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger, upgrade
from switchyard.services.llm.ledger import LlmLedger
from tests.support.made import claim, new_job

StartProcess = Callable[[str], int]
HOST = os.uname().nodename


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    started_supervisor = Supervisor(tmp_path / "logs", os.environ)
    yield started_supervisor
    started_supervisor.stop(0)


@pytest.fixture
def start(supervisor: Supervisor) -> StartProcess:
    def start_process(name: str) -> int:
        """Start a process that waits for a signal, in the place of a worker. Returns its pid."""
        command = [sys.executable, "-c", "import signal; signal.pause()"]
        process = subprocess.Popen(command, start_new_session=True)
        log = supervisor.log_dir / f"{name}.log"
        supervisor.children.append(Child(name, ("worker", "llm"), log, process))
        return process.pid

    return start_process


async def test_the_process_with_the_fewest_jobs_retires_and_its_jobs_delay_no_decision(
    supervisor: Supervisor, start: StartProcess, sqlite_url: str
) -> None:
    settings = Settings(
        database_url=sqlite_url,
        amqp_url=None,
        worker_concurrency=8,
        autoscale_calm=10,
    )
    await upgrade(sqlite_url)
    job_counts = {"llm": 3, "llm-2": 1, "llm-3": 2}
    async with await Ledger.open(sqlite_url) as ledger:
        for name, job_count in job_counts.items():
            await ledger.workers.register_worker(
                name, kinds=["llm"], lanes=["hot"], host=HOST, pid=start(name), concurrency=8
            )
            for job_id in (f"{name}-{n}" for n in range(job_count)):
                await ledger.jobs.record(new_job(job_id))
                await ledger.jobs.claim(claim(job_id, worker_id=name))
        scaler = Autoscaler(
            System(settings, Registry(), {}), supervisor, {"llm": ProcessRange(1, 3)}
        )
        assert await scaler.rescale(1_000) == []
        (notice,) = await scaler.rescale(1_020)
        assert notice.startswith("llm: 3 → 2 processes; 6 jobs run")
        assert [child.name for child in supervisor.children if child.is_retiring] == ["llm-2"]
        assert await scaler.rescale(1_030) == []
        (notice,) = await scaler.rescale(1_050)
        assert notice.startswith("llm: 2 → 1 process; 5 jobs run")
        assert [child.name for child in supervisor.children if child.is_retiring] == [
            "llm-2",
            "llm-3",
        ]


async def test_servers_count_with_the_limits_of_the_current_settings(
    supervisor: Supervisor, start: StartProcess, sqlite_url: str
) -> None:
    servers = tuple(
        LlmServer(name=name, base_url=f"http://{name}/v1", max_calls=max_calls)
        for name, max_calls in (("small", 6), ("large", 8))
    )
    settings = Settings(
        database_url=sqlite_url,
        amqp_url=None,
        llm_providers=servers,
        worker_concurrency=8,
        llm_concurrency_max=8,
    )
    await upgrade(sqlite_url)
    for name in ("llm", "llm-2", "llm-3", "llm-4"):
        start(name)
    async with await Ledger.open(sqlite_url) as ledger:
        for name in ("small", "large", "removed-server"):  # with limits of earlier settings
            await LlmLedger(ledger).slots.take_llm_slot(
                name, name, "me", ttl=60, is_hot=True, first_limit=70, max_limit=70
            )
    scaler = Autoscaler(System(settings, Registry(), {}), supervisor, {"llm": ProcessRange(1, 4)})
    assert await scaler.rescale(1_000) == ["llm: 4 → 2 processes; its servers take 14 jobs at once"]

"""A part of the system in a process of its own, which a test can kill, stop or pause.

    async with Processes(system.settings, tmp_path) as processes:
        worker = await processes.start("worker", slots=4)
        worker.kill()
        await worker.ended()

The process takes its settings from the environment, says `ready` on stdout once it does its
work, and is killed when the process that has started it ends. It is a fork (commands.py).
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from switchyard.broker.closeable import AsyncCloseable
from switchyard.services.common.logs import configure
from switchyard.services.common.settings import Settings
from switchyard.services.engine.actions.handler import action_handlers
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.sql import database
from switchyard.services.engine.publishing.preparing import JobRequest, prepare
from switchyard.services.engine.redrive.handler import RedriveHandler
from switchyard.services.engine.runtime.worker import Worker, plan_for
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler
from tests.support.commands import Running, commands
from tests.support.eventually import MAX_WAIT, eventually

ROOT = Path(__file__).parents[2]


class Process:
    """A started process, as the test controls it."""

    def __init__(self, process: Running, log: Path, ready_text: str) -> None:
        self._process = process
        self.log = log
        self.pid = process.pid
        self.ready_text = ready_text
        """The text after `ready`: a worker's id, a scheduler's holder."""

    @property
    def worker_id(self) -> str:
        return self.ready_text

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill it as the OOM killer does: nothing of its own runs any more."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM, so that it stops in order."""
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        """Freeze it until `resume`: it keeps its connections and says nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def ended(self, timeout: float = MAX_WAIT) -> int:
        """Wait for its end. Return its exit code, or the negative number of the signal that ended
        it."""
        try:
            return await asyncio.to_thread(self._process.wait, timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout:g} s:\n{self.tail()}") from None

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def _signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)


class Processes(AsyncCloseable):
    """Starts processes with these settings; kills those that are left at the end."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self._settings = settings
        self._directory = directory
        self.all: list[Process] = []
        self._open = ExitStack()

    async def close(self) -> None:
        with self._open:
            for process in self.all:
                process.kill()
            await asyncio.gather(*(process.ended() for process in self.all))

    async def start(
        self,
        role: str,
        *,
        settings: Mapping[str, Any] | None = None,
        log: Path | None = None,
        **options: Any,
    ) -> Process:
        """Start a process, and wait until it is ready.

        `role` is a function of this module, `options` are what it takes; `settings` change those
        of the system for this process alone. `log` is where it writes its log to.
        """
        log = log or self._directory / f"{role}-{len(self.all)}.log"
        read_fd, write_fd = os.pipe()
        ready_text = self._open.enter_context(os.fdopen(read_fd))
        runner = commands()
        with log.open("wb") as errors, os.fdopen(write_fd, "wb") as output:
            process = await asyncio.to_thread(
                runner.start,
                [role, json.dumps(options)],
                env=environment_of(self._settings.model_copy(update=dict(settings or {}))),
                cwd=ROOT,
                output=output.fileno(),
                errors=errors.fileno(),
                module=__name__,
            )
        started = Process(self._open.enter_context(process), log, "")
        self.all.append(started)
        line = await asyncio.wait_for(asyncio.to_thread(ready_text.readline), MAX_WAIT)
        ready, _, started.ready_text = line.strip().partition(" ")
        assert ready == "ready", f"{role} did not start:\n{started.tail()}"
        return started


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment variables that stand for these settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("JOBS_")}
    variables = {
        f"JOBS_{name.upper()}": _as_text(getattr(settings, name))
        for name in settings.model_fields_set
    }
    return inherited | variables


def _as_text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


# --- what runs in the process ---------------------------------------------------------------


async def worker(
    settings: Settings,
    registry: Registry,
    ledger: Ledger,
    *,
    kind: str = "llm",
    slots: int = 4,
    reserve: int | None = None,
) -> None:
    """Work until SIGTERM."""
    running = Worker(
        settings, registry, ledger, [plan_for(registry, kind, slots=slots, reserve=reserve)]
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.stop)
    task = asyncio.create_task(running.run())
    await eventually(
        lambda: task.done() or set(running.queue_states.values()) == {"consuming"}, MAX_WAIT
    )
    _say_ready(running.worker_id)
    await task


async def scheduler(
    settings: Settings, registry: Registry, ledger: Ledger, **intervals: float
) -> None:
    """Schedule, or stand by, until SIGTERM."""
    running = Scheduler(settings, registry, ledger, intervals=SchedulerIntervals(**intervals))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.stop)
    _say_ready(running.holder)
    await running.run()


async def redrives(
    settings: Settings, registry: Registry, ledger: Ledger, *, operation_id: str
) -> None:
    """Run one redrive until it ends."""
    _say_ready("")
    handler = RedriveHandler(settings, registry, ledger)
    await BulkRunner(ledger, [handler]).run_one(operation_id)


async def actions(
    settings: Settings, registry: Registry, ledger: Ledger, *, operation_id: str
) -> None:
    """Run one bulk action until it ends."""
    _say_ready("")
    await BulkRunner(ledger, action_handlers(settings, registry, ledger)).run_one(operation_id)


async def record(
    settings: Settings, registry: Registry, ledger: Ledger, *, routing_key: str, job_id: str
) -> None:
    """Record a job as a publisher does, and never publish it."""
    await ledger.jobs.record(prepare(registry, JobRequest(routing_key, {}, job_id=job_id)))
    _say_ready(job_id)
    await asyncio.Event().wait()


def _say_ready(text: str) -> None:
    print("ready", text, flush=True)


async def _run(role: str, options: Mapping[str, Any]) -> None:
    role_options = dict(options)
    # `ahead`: seconds by which the clock of this process is fast.
    ahead, real_time = role_options.pop("ahead", 0.0), time.time
    time.time = lambda: real_time() + ahead
    database.BUSY_TIMEOUT = role_options.pop("busy_timeout", database.BUSY_TIMEOUT)
    settings = Settings()
    configure(settings.log_level, "json")
    async with await Ledger.open(settings.ledger_url) as ledger:
        await _ROLES[role](settings, Registry.load(settings.modules), ledger, **role_options)


_ROLES: Mapping[str, Any] = {
    "worker": worker,
    "scheduler": scheduler,
    "redrives": redrives,
    "actions": actions,
    "record": record,
}


def main() -> None:
    asyncio.run(_run(sys.argv[1], json.loads(sys.argv[2])))

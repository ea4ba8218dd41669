"""Keeps the processes of a fault run alive, as a service manager does, and checks how they end."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL
from asyncio.subprocess import Process as Subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from switchyard.services.common.settings import Settings
from tests.support.fault_run.chronicle import Chronicle
from tests.support.worker_process import ROOT, environment_of

JOBCTL = (
    "import ctypes; ctypes.CDLL(None).prctl(1, 9)  # killed when this process ends\n"
    "from switchyard.cli.main import main; main()"
)
RESTART_PAUSE = 0.3
"""Seconds between a process's end and its next start."""
STOP_TIMEOUT = 40.0
"""Seconds that a process may take from SIGTERM to its end, on a busy machine."""


class KeptProcess:
    """A process that is started again whenever it has ended."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        settings: Settings,
        log: Path,
        chronicle: Chronicle,
    ) -> None:
        self.name = name
        self.log = log
        self.starts = 0
        self._arguments = arguments
        self._environment = environment_of(settings)
        self._chronicle = chronicle
        self._process: Subprocess | None = None
        self._sent_signals: set[signal.Signals] = set()
        """Signals that the current process was sent."""
        self._ended = asyncio.Event()
        self._stopping = False

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def run(self) -> None:
        """Start the process again and again, until `stop`."""
        while not self._stopping:
            self._sent_signals = set()
            self._ended.clear()
            with self.log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", JOBCTL, *self._arguments),
                    cwd=ROOT,
                    env=self._environment,
                    stdin=DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self.starts += 1
            self._chronicle.note(f"{self.name} started, pid {self._process.pid}")
            code = await self._process.wait()
            self._ended.set()
            self._check_exit(code)
            await asyncio.sleep(RESTART_PAUSE)

    async def kill(self) -> None:
        if self._signal(signal.SIGKILL):
            await self._ended.wait()

    async def pause(self, seconds: float) -> None:
        """Freeze the process for that long: it keeps its connections and sends nothing."""
        self._signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._signal(signal.SIGCONT)

    async def terminate(self) -> None:
        """Stop the process by SIGTERM. If it does not end, report that and kill it."""
        if not self._signal(signal.SIGTERM):
            return
        try:
            await asyncio.wait_for(self._ended.wait(), STOP_TIMEOUT)
        except TimeoutError:
            self._chronicle.blame(f"{self.name} still ran {STOP_TIMEOUT:g} s after SIGTERM")
            await self.kill()

    async def stop(self) -> None:
        """Stop the process for good."""
        self._stopping = True
        if self.is_running:
            await self.terminate()

    async def kill_for_good(self) -> None:
        """Kill the process; `run` must have been cancelled, so it is not started again."""
        if self._process is not None and self._signal(signal.SIGKILL):
            await self._process.wait()

    def _signal(self, number: signal.Signals) -> bool:
        """Send a signal. Return whether there was a process to receive it."""
        if self._process is None or not self.is_running:
            return False
        self._sent_signals.add(number)
        try:
            os.kill(self._process.pid, number)
        except ProcessLookupError:  # it has ended, and `wait` has not returned yet
            return False
        return True

    def _check_exit(self, code: int) -> None:
        """Report a process that ended otherwise than by a signal that it was sent."""
        was_killed = code == -signal.SIGKILL and signal.SIGKILL in self._sent_signals
        # A process that has not installed its signal handlers yet ends by the signal itself.
        was_stopped = code in (0, -signal.SIGTERM) and signal.SIGTERM in self._sent_signals
        self._chronicle.note(f"{self.name} ended with {code}")
        if not was_killed and not was_stopped:
            sent = ", ".join(sorted(number.name for number in self._sent_signals)) or "no signal"
            last_line = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            self._chronicle.blame(f"{self.name} ended with {code}, having got {sent}: {last_line}")


class Keeper:
    """Keeps all processes of the system running."""

    def __init__(self, settings: Settings, directory: Path, chronicle: Chronicle) -> None:
        self._settings = settings
        self._directory = directory
        self._chronicle = chronicle
        self._tasks: list[asyncio.Task[None]] = []
        self.processes: list[KeptProcess] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(process.kill_for_good() for process in self.processes))

    def start(self, name: str, *arguments: str) -> KeptProcess:
        """Keep `jobctl ARGUMENTS…` running."""
        log = self._directory / f"{name}.log"
        process = KeptProcess(name, arguments, self._settings, log, self._chronicle)
        self.processes.append(process)
        self._tasks.append(asyncio.create_task(process.run()))
        return process

    def named(self, name: str) -> list[KeptProcess]:
        """Return the processes whose names begin with `name`."""
        return [process for process in self.processes if process.name.startswith(name)]

    async def stop(self) -> None:
        """Stop all processes for good."""
        await asyncio.gather(*(process.stop() for process in self.processes))
        await asyncio.gather(*self._tasks)

"""Keeps the processes of a fault run alive, as a service manager does, and sees how they end."""

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
STOP_TIMEOUT = 40.0
"""Seconds that a process may take from SIGTERM to its end, on a busy machine."""


class Kept:
    """One process that is started again whenever it has ended."""

    def __init__(
        self, name: str, arguments: Sequence[str], settings: Settings, log: Path, told: Chronicle
    ) -> None:
        self.name = name
        self.log = log
        self.starts = 0
        self._arguments = arguments
        self._environment = environment_of(settings)
        self._told = told
        self._process: Subprocess | None = None
        self._sent: set[signal.Signals] = set()
        """What this process has got from us."""
        self._ended = asyncio.Event()
        self._stopping = False

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def run(self) -> None:
        """Start it again and again, until `stop`."""
        while not self._stopping:
            self._sent = set()
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
            self._told.note(f"{self.name} started, pid {self._process.pid}")
            code = await self._process.wait()
            self._ended.set()
            self._judge(code)
            await asyncio.sleep(RESTART_PAUSE)

    async def kill(self) -> None:
        if self._signal(signal.SIGKILL):
            await self._ended.wait()

    async def pause(self, seconds: float) -> None:
        """Freeze the process for so long: it keeps its connections and says nothing."""
        self._signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._signal(signal.SIGCONT)

    async def terminate(self) -> None:
        """Stop the process in order. One that does not end is reported, and killed."""
        if not self._signal(signal.SIGTERM):
            return
        try:
            await asyncio.wait_for(self._ended.wait(), STOP_TIMEOUT)
        except TimeoutError:
            self._told.blame(f"{self.name} still ran {STOP_TIMEOUT:g} s after SIGTERM")
            await self.kill()

    async def stop(self) -> None:
        """Stop the process for good."""
        self._stopping = True
        if self.is_running:
            await self.terminate()

    async def end(self) -> None:
        """Kill the process for good, when nobody keeps it any more."""
        if self._process is not None and self._signal(signal.SIGKILL):
            await self._process.wait()

    def _signal(self, number: signal.Signals) -> bool:
        """Send a signal. Return whether there was a process to get it."""
        if self._process is None or not self.is_running:
            return False
        self._sent.add(number)
        try:
            os.kill(self._process.pid, number)
        except ProcessLookupError:  # it has just ended, and we have not been told yet
            return False
        return True

    def _judge(self, code: int) -> None:
        """Tell whether the process ended as we made it end."""
        killed = code == -signal.SIGKILL and signal.SIGKILL in self._sent
        # One that has not set up its handlers yet ends by the signal itself.
        stopped = code in (0, -signal.SIGTERM) and signal.SIGTERM in self._sent
        self._told.note(f"{self.name} ended with {code}")
        if not killed and not stopped:
            sent = ", ".join(sorted(each.name for each in self._sent)) or "no signal"
            last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            self._told.blame(f"{self.name} ended with {code}, having got {sent}: {last}")


class Keeper:
    """All processes of the system."""

    def __init__(self, settings: Settings, directory: Path, told: Chronicle) -> None:
        self._settings = settings
        self._directory = directory
        self._told = told
        self._tasks: list[asyncio.Task[None]] = []
        self.kept: list[Kept] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(each.end() for each in self.kept))

    def start(self, name: str, *arguments: str) -> Kept:
        """Keep `jobctl ARGUMENTS…` running."""
        log = self._directory / f"{name}.log"
        kept = Kept(name, arguments, self._settings, log, self._told)
        self.kept.append(kept)
        self._tasks.append(asyncio.create_task(kept.run()))
        return kept

    def of(self, name: str) -> list[Kept]:
        """Return the processes whose names begin so."""
        return [each for each in self.kept if each.name.startswith(name)]

    async def stop(self) -> None:
        """Stop the process for good."""
        await asyncio.gather(*(each.stop() for each in self.kept))
        await asyncio.gather(*self._tasks)

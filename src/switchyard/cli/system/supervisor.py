"""Child processes of `jobctl demo` and `jobctl up`: started, watched, restarted, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from switchyard.cli.base.stopping import RETIRE_SIGNAL
from switchyard.cli.system.rabbitmq_node import describe_exit, end_with_this_process
from switchyard.cli.system.spawner import ChildProcess, Spawner, SpawnerGone

STOP_SECONDS = 35.0
"""Seconds that a child may take to stop: a little more than running jobs are given."""
MIN_BACKOFF, MAX_BACKOFF = 0.5, 30.0
"""Seconds before a child that died is started again: doubled each time it dies soon again."""
HEALTHY_SECONDS = 30.0
"""Seconds after which a child that has died starts again with the first backoff."""
TAIL_LINES = 5


@dataclass(slots=True)
class RestartBackoff:
    """How long a process that has died waits until it is started again."""

    deaths: int = 0
    """Deaths since it last ran for HEALTHY_SECONDS."""

    def after_death(self, ran_for: float) -> float:
        """Note a death after so many seconds; return how many it waits now."""
        self.deaths = 1 if ran_for > HEALTHY_SECONDS else self.deaths + 1
        pause: float = min(MIN_BACKOFF * 2 ** (self.deaths - 1), MAX_BACKOFF)
        return pause


@dataclass(slots=True)
class Child:
    """One `jobctl` command in a process, and a process group, of its own."""

    name: str
    arguments: tuple[str, ...]
    log: Path
    process: ChildProcess | None = None
    reaper: subprocess.Popen[bytes] | None = None
    """Kills the child if we are killed ourselves."""
    started_at: float = 0.0
    backoff: RestartBackoff = field(default_factory=RestartBackoff)
    restart_at: float | None = None
    is_retiring: bool = False
    """Whether it ends when it is idle, and is not started again."""
    is_restarting: bool = False
    """Whether it was told to end, and is started again at once."""

    @property
    def tail(self) -> str:
        """The end of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


@dataclass(slots=True)
class Supervisor:
    """Runs `jobctl` commands until `stop`; their output goes to files in `log_dir`."""

    log_dir: Path
    environment: Mapping[str, str]
    spawner: Spawner | None = None
    """Forks them; without it, or once it is gone, each loads all it needs anew."""
    children: list[Child] = field(default_factory=list)

    def start(self, name: str, *arguments: str) -> None:
        """Start `jobctl ARGUMENTS…`, known as `name`. Where that fails, as without memory for a
        process, `restart_dead` tries again."""
        self.log_dir.mkdir(parents=True, exist_ok=True)
        child = Child(name, arguments, self.log_dir / f"{name}.log")
        self.children.append(child)
        try:
            self._spawn(child)
        except OSError:
            child.restart_at = time.monotonic()

    def newly_dead(self) -> list[Child]:
        """Return the children that have died and whose restart is not planned yet."""
        return [
            child
            for child in self.children
            if child.process is not None
            and child.process.poll() is not None
            and child.restart_at is None
            and not child.is_retiring
        ]

    def retire(self, name: str) -> None:
        """Tell a worker to end as soon as it is idle: no running job is cut off."""
        for child in self.children:
            if child.name == name:
                child.is_retiring, child.restart_at = True, None
                _signal(child, RETIRE_SIGNAL)

    def restart(self) -> None:
        """Stop all children in good order; `restart_dead` starts each again once it has ended."""
        for child in self.children:
            if not child.is_retiring:
                child.is_restarting = True
                _signal(child, signal.SIGTERM)

    def kill(self, name: str) -> None:
        """Kill a child as the kernel does when memory runs out; `restart_dead` starts it again."""
        for child in self.children:
            if child.name == name and child.process is not None:
                _signal(child, signal.SIGKILL)
                child.process.wait()

    def restart_dead(self) -> list[str]:
        """Start dead children again, each after its backoff, and forget retired ones that have
        ended. Return what happened, as lines."""
        news = []
        now = time.monotonic()
        for child in [each for each in self.children if each.is_retiring]:
            if child.process is None or child.process.poll() is not None:
                self._kill(child)
                self.children.remove(child)
                news.append(f"{child.name} has retired")
        for child in self.newly_dead():
            if child.is_restarting:
                child.restart_at = now
                continue
            pause = child.backoff.after_death(now - child.started_at)
            child.restart_at = now + pause
            code = child.process.returncode if child.process is not None else 0
            news.append(
                f"{child.name} ended ({describe_exit(code)}); starting it again in {pause:g} s; "
                f"its log: {child.log}"
            )
        for child in self.children:
            if child.restart_at is not None and child.restart_at <= now:
                try:
                    self._spawn(child)
                except OSError as error:
                    child.restart_at = now + MAX_BACKOFF
                    news.append(
                        f"{child.name} can't be started: {error.strerror or error}; "
                        f"again in {MAX_BACKOFF:g} s"
                    )
                else:
                    if not child.is_restarting:
                        news.append(f"{child.name} runs again")
                    child.is_restarting = False
        return news

    def stop(self, timeout: float = STOP_SECONDS) -> list[str]:
        """Send SIGTERM to all, and SIGKILL to those that take too long; return the names of these.
        Ctrl-C meanwhile kills at once.
        """
        for child in self.children:
            _signal(child, signal.SIGTERM)
        deadline = time.monotonic() + timeout
        killed = []
        try:
            for child in self.children:
                if child.process is not None:
                    with suppress(subprocess.TimeoutExpired):
                        child.process.wait(max(0.0, deadline - time.monotonic()))
        except KeyboardInterrupt:
            pass  # those that still run are killed at once
        for child in self.children:
            if child.process is not None and child.process.poll() is None:
                killed.append(child.name)
            self._kill(child)
        return killed

    def _spawn(self, child: Child) -> None:
        """Start a process. Raises OSError; nothing runs then."""
        _release_reaper(child)
        child.process = self._start_process(child)
        try:
            child.reaper = end_with_this_process(child.process)
        except OSError:
            _signal(child, signal.SIGKILL)  # it would outlive us
            child.process.wait()
            raise
        child.started_at = time.monotonic()
        child.restart_at = None

    def _start_process(self, child: Child) -> ChildProcess:
        """Start the process of a child. Raises OSError."""
        if self.spawner is not None:
            with suppress(SpawnerGone):
                return self.spawner.start(child.arguments, self.environment, child.log)
        # -P: what lies in the current directory must not take the place of a module of ours.
        command = [sys.executable, "-P", "-m", "switchyard.cli.main", *child.arguments]
        with child.log.open("ab") as log:
            return subprocess.Popen(
                command,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us; we then stop it in good order
            )

    def _kill(self, child: Child) -> None:
        """Kill a child's process group, if any, and its reaper."""
        _release_reaper(child)
        if child.process is None:
            return
        _signal(child, signal.SIGKILL)
        child.process.wait()
        child.process = None


def _release_reaper(child: Child) -> None:
    """End the reaper before it kills anything: the process id that it knows may soon be another
    process's."""
    if child.reaper is None:
        return
    child.reaper.kill()
    child.reaper.wait()
    if child.reaper.stdin is not None:
        child.reaper.stdin.close()
    child.reaper = None


def _signal(child: Child, number: signal.Signals) -> None:
    """Send SIGTERM to the child alone, which ends its own children; SIGKILL to its whole group."""
    if child.process is None:
        return
    with suppress(ProcessLookupError):
        if number is signal.SIGKILL:
            os.killpg(child.process.pid, number)
        elif child.process.poll() is None:
            child.process.send_signal(number)

"""Fixtures for a command line with a virtual host, a topology and a ledger of its own."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from switchyard.broker.lanes import LANES
from switchyard.broker.topology.build import build
from switchyard.cli.base.common import load_registry
from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.commands import Running, commands
from tests.support.ledgers import make_ledger
from tests.support.system import System

JOBCTL = Path(sys.executable).parent / "jobctl"
ROOT = Path(__file__).parents[2]
JOBS_MODULE = "tests.acceptance.job_types"
TIMEOUT = 60.0
"""Seconds within which a command must end, or a state be reached."""
RETRY_DELAYS = (0.2, 0.4, 0.8)

AnyProcess = Running | subprocess.Popen[bytes]


@dataclass
class CommandLine:
    """Runs `jobctl` as a user does."""

    environment: dict[str, str]
    log_dir: Path

    def run(
        self, *arguments: str, stdin: str | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; its standard input is empty unless given."""
        return commands().run(
            list(arguments),
            env=self.environment | environment,
            cwd=ROOT,
            stdin=stdin or "",
            timeout=TIMEOUT,
        )

    def ok(self, *arguments: str, stdin: str | None = None) -> str:
        """Run a command that must succeed; return its standard output."""
        completed = self.run(*arguments, stdin=stdin)
        assert completed.returncode == 0, (
            f"{arguments}: {completed.returncode}\n{completed.stdout}{completed.stderr}"
        )
        return completed.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def fails(self, *arguments: str, code: int = 1, stdin: str | None = None, **env: str) -> str:
        """Run a command that must fail with `code`; return its error, which is one line."""
        completed = self.run(*arguments, stdin=stdin, **env)
        assert completed.returncode == code, (
            f"{arguments}: {completed.returncode}\n{completed.stderr}"
        )
        last_line = completed.stderr.strip().splitlines()[-1]
        assert last_line.startswith("jobctl: "), completed.stderr
        assert "Traceback" not in completed.stderr
        return last_line

    def publish(self, key: str = "hot.work", **payload: Any) -> str:
        """Publish a job; return its id."""
        return self.ok("publish", key, "--payload", json.dumps(payload)).strip()

    def publish_all(self, payloads: Iterable[dict[str, Any]], key: str = "hot.work") -> list[str]:
        """Publish jobs by one command; return their ids."""
        lines = "".join(json.dumps(payload) + "\n" for payload in payloads)
        return self.ok("publish", key, "--payload", "-", stdin=lines).split()

    def state(self, job_id: str) -> str:
        return str(self.json("jobs", "show", job_id)["state"])

    def until_state(self, job_id: str, *states: str) -> None:
        """Wait until the job has one of these states. Reads the ledger's file if it is SQLite, as
        running a command repeatedly would take processor time from the job."""
        read_state = self.state if "JOBS_DATABASE_URL" in self.environment else self._recorded_state
        deadline = time.monotonic() + TIMEOUT
        while (state := read_state(job_id)) not in states:
            assert time.monotonic() < deadline, f"{job_id} is {state}, not {states}"
            time.sleep(0.02)

    def _recorded_state(self, job_id: str) -> str | None:
        with closing(sqlite3.connect(self.ledger_file)) as ledger:
            row = ledger.execute("SELECT state FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return row and str(row[0])

    @property
    def ledger_file(self) -> Path:
        """Path of the ledger, unless JOBS_DATABASE_URL names another."""
        return Path(self.environment["JOBS_DATA_DIR"]) / "ledger.db"

    def run_skewed(self, ahead: float, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command as on a host whose clock is that many seconds ahead."""
        return subprocess.run(
            [*skewed(ahead), *arguments],
            env=self.environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    @contextmanager
    def worker(self, *arguments: str, skewed_by: float = 0) -> Iterator[AnyProcess]:
        """Run `jobctl worker tester …` while the context lasts, which begins when it consumes."""
        log = self.log_dir / "worker.log"
        log_size_before = log.stat().st_size if log.exists() else 0
        with self.started("worker", "tester", *arguments, skewed_by=skewed_by) as process:
            deadline = time.monotonic() + TIMEOUT
            while b"consumer started" not in log.read_bytes()[log_size_before:]:
                assert process.poll() is None, self.log_of("worker")
                assert time.monotonic() < deadline, self.log_of("worker")
                time.sleep(0.02)
            yield process

    @contextmanager
    def started(self, *arguments: str, skewed_by: float = 0) -> Iterator[AnyProcess]:
        """Run a command in the background; kill it at the end if it still runs. `skewed_by` are the
        seconds that its host's clock is ahead."""
        if skewed_by:
            with self._launched([*skewed(skewed_by), *arguments], arguments[0]) as process:
                yield process
            return
        with (self.log_dir / f"{arguments[0]}.log").open("ab") as log:
            running = commands().start(
                list(arguments), env=self.environment, cwd=ROOT, output=log.fileno()
            )
        with running, ending(running):
            yield running

    @contextmanager
    def launched(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Do the same in a new interpreter, for commands that look at how they were started."""
        with self._launched([str(JOBCTL), *arguments], arguments[0]) as process:
            yield process

    @contextmanager
    def _launched(self, command: list[str], name: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.log_dir / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=self.environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with ending(process):
            yield process

    def log_of(self, command: str) -> str:
        return (self.log_dir / f"{command}.log").read_text()


@contextmanager
def ending(process: AnyProcess) -> Iterator[None]:
    """Kill the process at the end, with all that it has started, if it still runs."""
    try:
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def skewed(ahead: float) -> list[str]:
    """Return the beginning of a command line that runs `jobctl` with its clock ahead."""
    return [sys.executable, "-m", "tests.support.skewed", str(ahead)]


def clean_environment(**settings: str) -> dict[str, str]:
    """Return the environment without any JOBS_ variable of the machine, and with these settings."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("JOBS_")}
    return inherited | {f"JOBS_{key.upper()}": value for key, value in settings.items()}


@pytest.fixture
def bare(broker310: TestBroker, tmp_path: Path) -> CommandLine:
    """A command line with a broker, but neither topology nor ledger yet."""
    environment = clean_environment(
        amqp_url=broker310.amqp_url,
        management_url=broker310.management_url,
        data_dir=str(tmp_path / "data"),
        modules=JOBS_MODULE,
        retry_delays=",".join(map(str, RETRY_DELAYS)),
        shutdown_grace="1",
    )
    return CommandLine(environment, tmp_path)


@pytest.fixture
async def _declared(broker310: TestBroker) -> None:
    """Declare what `jobctl topology apply` makes."""
    settings = Settings(modules=(JOBS_MODULE,), retry_delays=RETRY_DELAYS)
    topology = build(
        broker310.profile, load_registry(settings).routes, retry_delays=settings.retry_delays
    )
    await broker310.declare(topology)


@pytest.fixture
async def jobctl(
    _declared: None, bare: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """A command line with topology and ledger, as after `topology apply` and `db upgrade`."""
    for key, value in bare.environment.items():
        if key.startswith("JOBS_"):
            monkeypatch.setenv(key, value)
    await make_ledger(Settings().ledger_url)
    return bare


@pytest.fixture
async def dead_ids(jobctl: CommandLine, broker310: TestBroker) -> list[str]:
    """Ids of three jobs that have died one after the other, in a worker of this process."""
    settings = Settings()
    async with await Ledger.open(settings.ledger_url) as ledger:
        system = System(broker310, settings, load_registry(settings), ledger, LANES)
        await system.start_worker("tester", slots=1)
        ids = [await system.publish("hot.work", {"fail": True, "n": n}) for n in range(3)]
        await system.wait_until_all(ids, State.DEAD)
        await system.stop_workers()
        await system.wire.close()
    return ids

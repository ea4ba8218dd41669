"""The doctor names the process that has locked an SQLite ledger."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.services.common.file_locks import find_writers
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.checks.ledger import ledger
from tests.support.ledgers import make_ledger

LOCK_SCRIPT = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
async def ledger_file(sqlite_url: str) -> Path:
    await make_ledger(sqlite_url)
    return Path(sqlite_url.partition(":///")[2])


@pytest.fixture
def lock_holder(ledger_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has locked the ledger."""
    command = [sys.executable, "-c", LOCK_SCRIPT, str(ledger_file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.kill()


async def test_for_a_stopped_holder_of_the_lock_the_remedy_is_kill_cont(
    sqlite_url: str, lock_holder: subprocess.Popen[bytes]
) -> None:
    context = DoctorContext(Settings(database_url=sqlite_url), Registry())
    (result,) = await ledger(context)
    assert result.finding is Finding.LEDGER_LOCKED
    assert f"`kill {lock_holder.pid}` only where it hangs" in result.remedy
    lock_holder.send_signal(signal.SIGSTOP)
    await asyncio.to_thread(os.waitpid, lock_holder.pid, os.WUNTRACED)
    (result,) = await ledger(context)
    assert f"process {lock_holder.pid} (" in result.remedy
    assert f"was stopped by a signal: `kill -CONT {lock_holder.pid}` lets it go on" in result.remedy
    assert f"`kill {lock_holder.pid}`" not in result.remedy


async def test_a_reader_holds_no_lock(ledger_file: Path) -> None:
    reader = sqlite3.connect(ledger_file, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM jobs").fetchone()
    assert find_writers(ledger_file) == []
    assert find_writers(ledger_file.with_name("nothing")) == []
    reader.close()

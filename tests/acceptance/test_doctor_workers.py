"""The doctor's findings about workers: what harms them, and which process to kill."""

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from switchyard.services.common.instance_ids import process_mark
from tests.acceptance.conftest import JOBS_MODULE, CommandLine
from tests.acceptance.doctor import commands, findings, until_found
from tests.support.eventually import eventually
from tests.support.small_disk import SIZE_MIB, small_disk

__all__ = ["small_disk"]

DAY = 24 * 3600


@pytest.fixture
def harmful_jobctl(jobctl: CommandLine) -> CommandLine:
    """A command line with job types that harm their worker."""
    jobctl.environment["JOBS_MODULES"] = f"{JOBS_MODULE},tests.acceptance.blocking_jobs"
    jobctl.ok("topology", "apply")
    return jobctl


def write_ledger(
    jobctl: CommandLine, statement: str, values: Mapping[str, object] | None = None
) -> None:
    with closing(sqlite3.connect(jobctl.ledger_file)) as database, database:
        database.execute(statement, values or {})


def register(jobctl: CommandLine, worker_id: str, **fields: object) -> None:
    """Register a busy worker that sends no heartbeats."""
    values = {
        "worker_id": worker_id,
        "host": "here",
        "pid": 1,
        "mark": None,
        "ago": 600,
        **fields,
    }
    write_ledger(
        jobctl,
        "INSERT INTO workers (worker_id, kinds, lanes, host, pid, concurrency, started_at, beat, "
        "beat_at, mark) VALUES (:worker_id, '[\"tester\"]', '[\"hot\"]', :host, :pid, 4, "
        "unixepoch() - :ago - 60, 1, unixepoch() - :ago, :mark)",
        values,
    )


async def test_a_job_that_blocks_the_event_loop_is_logged_counted_and_found_the_next_day(
    harmful_jobctl: CommandLine, tmp_path: Path, unused_tcp_port: int
) -> None:
    port = str(unused_tcp_port)
    with harmful_jobctl.worker("--metrics-port", port) as worker:
        mark = str(tmp_path / "mark")
        job_id = harmful_jobctl.publish("hot.blocking", mark=mark, seconds=3)
        harmful_jobctl.until_state(job_id, "succeeded")
        await eventually(lambda: "event loop free again" in harmful_jobctl.log_of("worker"))
        async with httpx.AsyncClient() as client:
            metrics = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
        assert 'switchyard_event_loop_blocks_total{job_type="blocking"} 1.0' in metrics
        worker.kill()
        worker.wait()
    log = harmful_jobctl.log_of("worker")
    assert "event loop blocked" in log
    assert job_id in log
    write_ledger(harmful_jobctl, f"UPDATE loop_blocks SET began_at = began_at - {DAY - 600}")
    check = until_found(harmful_jobctl, "loop-blocked")["loop-blocked"]
    assert f"by blocking (job {job_id}) at " in check["detail"]
    assert "blocking_jobs.py" in check["detail"]
    assert "in _block" in check["detail"]


def test_a_worker_that_is_killed_repeatedly_is_found_with_the_job_type_that_ran(
    harmful_jobctl: CommandLine, tmp_path: Path
) -> None:
    for number in range(3):
        with harmful_jobctl.worker() as worker:
            job_id = harmful_jobctl.publish("hot.leaky", mark=str(tmp_path / f"mark-{number}"))
            worker.wait()
        if number == 1:
            assert "workers-killed" in findings(harmful_jobctl)
    with harmful_jobctl.worker():
        harmful_jobctl.until_state(job_id, "succeeded")
        check = findings(harmful_jobctl)["workers-killed"]
    assert "killed 3 times in 1 minute, always while leaky ran" in check["detail"]
    assert check["status"] == "wrong"
    assert "kill" not in {command[0] for command in commands(check, "kill")}
    # Workers that ended together, as with their host, were not killed one by one.
    write_ledger(harmful_jobctl, "UPDATE workers SET started_at = started_at - 600")
    assert "workers-killed" not in findings(harmful_jobctl)


@pytest.mark.parametrize(
    ("mark", "advice"),
    [
        pytest.param(None, "knows whether process {pid} on here is still the worker", id="unknown"),
        pytest.param("another host 7", "knows whether process {pid} on here is", id="elsewhere"),
        pytest.param("of another process", "process {pid} on here has ended", id="ended"),
        pytest.param("its own", "`kill -9 {pid}`", id="it"),
    ],
)
def test_a_kill_is_advised_only_for_a_process_that_is_known_to_be_the_worker(
    jobctl: CommandLine, mark: str | None, advice: str
) -> None:
    own_mark = process_mark()
    assert own_mark is not None
    if mark == "its own":
        mark = own_mark
    elif mark == "of another process":
        mark = f"{own_mark.rpartition(' ')[0]} 1"
    register(jobctl, "worker", pid=os.getpid(), mark=mark)
    check = findings(jobctl)["workers-silent"]
    assert advice.format(pid=os.getpid()) in check["remedy"]
    assert bool(commands(check, "kill")) == (mark == own_mark)


def test_a_kill_is_not_advised_while_a_disk_is_full(jobctl: CommandLine, small_disk: Path) -> None:
    jobctl.environment["JOBS_STORAGE_URL"] = small_disk.as_uri()
    register(jobctl, "worker", pid=os.getpid(), mark=process_mark())
    assert commands(findings(jobctl)["workers-silent"], "kill")
    (small_disk / "large").write_bytes(b"\0" * (SIZE_MIB - 8) * 1024 * 1024)
    remedy = findings(jobctl)["workers-silent"]["remedy"]
    assert "first mend what is reported above of the full disk" in remedy
    assert "kill" not in remedy


def test_a_stop_is_advised_for_a_worker_that_sends_heartbeats_with_its_jobs(
    jobctl: CommandLine,
) -> None:
    with jobctl.worker() as worker:
        job_id = jobctl.publish(seconds=50)
        jobctl.until_state(job_id, "running")
        write_ledger(jobctl, "UPDATE jobs SET started_at = started_at - 4000")
        check = findings(jobctl)["job-overdue"]
        assert commands(check, "kill") == [["kill", str(worker.pid)]]
        assert f"it runs work {job_id}" in check["remedy"]

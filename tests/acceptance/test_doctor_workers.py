"""What the doctor says of workers and their processes: what harms them, and when to end one."""

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
def harmed(jobctl: CommandLine) -> CommandLine:
    """With job types that harm their worker."""
    jobctl.environment["JOBS_MODULES"] = f"{JOBS_MODULE},tests.acceptance.blocking_jobs"
    jobctl.ok("topology", "apply")
    return jobctl


def change(jobctl: CommandLine, statement: str, values: Mapping[str, object] | None = None) -> None:
    with closing(sqlite3.connect(jobctl.ledger_file)) as database, database:
        database.execute(statement, values or {})


def register(jobctl: CommandLine, worker_id: str, **fields: object) -> None:
    """A worker that gives no sign of life, and is busy."""
    values = {
        "worker_id": worker_id,
        "host": "here",
        "pid": 1,
        "mark": None,
        "ago": 600,
        **fields,
    }
    change(
        jobctl,
        "INSERT INTO workers (worker_id, kinds, lanes, host, pid, concurrency, started_at, beat, "
        "beat_at, mark) VALUES (:worker_id, '[\"tester\"]', '[\"hot\"]', :host, :pid, 4, "
        "unixepoch() - :ago - 60, 1, unixepoch() - :ago, :mark)",
        values,
    )


async def test_a_job_that_blocks_the_event_loop_is_logged_counted_and_told_the_next_day(
    harmed: CommandLine, tmp_path: Path, unused_tcp_port: int
) -> None:
    port = str(unused_tcp_port)
    with harmed.worker("--metrics-port", port) as worker:
        mark = str(tmp_path / "mark")
        job_id = harmed.publish("hot.blocking", mark=mark, seconds=3)
        harmed.until_state(job_id, "succeeded")
        await eventually(lambda: "event loop free again" in harmed.log_of("worker"))
        async with httpx.AsyncClient() as client:
            shown = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
        assert 'switchyard_event_loop_blocks_total{job_type="blocking"} 1.0' in shown
        worker.kill()
        worker.wait()
    logged = harmed.log_of("worker")
    assert "event loop blocked" in logged
    assert job_id in logged
    change(harmed, f"UPDATE loop_blocks SET began_at = began_at - {DAY - 600}")
    told = until_found(harmed, "loop-blocked")["loop-blocked"]
    assert f"by blocking (job {job_id}) at " in told["detail"]
    assert "blocking_jobs.py" in told["detail"]
    assert "in _block" in told["detail"]


def test_a_worker_that_is_killed_again_and_again_is_told_with_what_ran_each_time(
    harmed: CommandLine, tmp_path: Path
) -> None:
    for number in range(3):
        with harmed.worker() as worker:
            job_id = harmed.publish("hot.leaky", mark=str(tmp_path / f"mark-{number}"))
            worker.wait()
        if number == 1:
            assert "workers-killed" in findings(harmed)
    with harmed.worker():
        harmed.until_state(job_id, "succeeded")
        told = findings(harmed)["workers-killed"]
    assert "killed 3 times in 1 minute, always while leaky ran" in told["detail"]
    assert told["status"] == "wrong"
    assert "kill" not in {each[0] for each in commands(told, "kill")}
    # With the host, or all at once, they end without anybody having done that.
    change(harmed, "UPDATE workers SET started_at = started_at - 600")
    assert "workers-killed" not in findings(harmed)


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        pytest.param(None, "knows whether process {pid} on here is still the worker", id="unknown"),
        pytest.param("another host 7", "knows whether process {pid} on here is", id="elsewhere"),
        pytest.param("of another process", "process {pid} on here has ended", id="ended"),
        pytest.param("its own", "`kill -9 {pid}`", id="it"),
    ],
)
def test_to_end_a_process_is_advised_only_where_it_is_known_to_be_the_worker(
    jobctl: CommandLine, mark: str | None, said: str
) -> None:
    own = process_mark()
    assert own is not None
    if mark == "its own":
        mark = own
    elif mark == "of another process":
        mark = f"{own.rpartition(' ')[0]} 1"
    register(jobctl, "worker", pid=os.getpid(), mark=mark)
    told = findings(jobctl)["workers-silent"]
    assert said.format(pid=os.getpid()) in told["remedy"]
    assert bool(commands(told, "kill")) == (mark == own)


def test_no_process_is_to_be_ended_before_a_full_disk_is_ruled_out(
    jobctl: CommandLine, small_disk: Path
) -> None:
    jobctl.environment["JOBS_STORAGE_URL"] = small_disk.as_uri()
    register(jobctl, "worker", pid=os.getpid(), mark=process_mark())
    assert commands(findings(jobctl)["workers-silent"], "kill")
    (small_disk / "large").write_bytes(b"\0" * (SIZE_MIB - 8) * 1024 * 1024)
    told = findings(jobctl)["workers-silent"]["remedy"]
    assert "first mend what is reported above of the full disk" in told
    assert "kill" not in told


def test_a_worker_that_sends_heartbeats_is_stopped_in_order_and_told_with_what_it_runs(
    jobctl: CommandLine,
) -> None:
    with jobctl.worker() as worker:
        job_id = jobctl.publish(seconds=50)
        jobctl.until_state(job_id, "running")
        change(jobctl, "UPDATE jobs SET started_at = started_at - 4000")
        told = findings(jobctl)["job-overdue"]
        assert commands(told, "kill") == [["kill", str(worker.pid)]]
        assert f"it runs work {job_id}" in told["remedy"]

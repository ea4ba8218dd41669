"""`jobctl worker` and `jobctl scheduler`: how they start and stop."""

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from switchyard.cli.system.free_ports import free_port
from tests.acceptance.conftest import CommandLine


def test_sigterm_gives_jobs_back_and_uses_up_no_attempt(jobctl: CommandLine) -> None:
    with jobctl.worker("--concurrency", "2") as process:
        ids = [jobctl.publish(seconds=50) for _ in range(3)]
        jobctl.until_state(ids[0], "running")
        jobctl.until_state(ids[1], "running")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    for job_id in ids:
        job = jobctl.json("jobs", "show", job_id)
        assert (job["state"], job["attempts"], job["crashes"]) == ("queued", 0, 0)
    lanes = {lane["lane"]: lane for lane in jobctl.json("lanes")}
    queues = {queue["queue"]: queue["ready"] for queue in lanes["hot"]["queues"]}
    assert queues["hot.tester"] == 3


def test_sigterm_lets_a_job_finish_within_the_grace(jobctl: CommandLine, tmp_path: Path) -> None:
    jobctl.environment["JOBS_SHUTDOWN_GRACE"] = "40"
    with jobctl.worker() as process:
        job_id = jobctl.publish(until=str(tmp_path / "free"))
        jobctl.until_state(job_id, "running")
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)  # the grace of the other tests is a second
        (tmp_path / "free").touch()
        assert process.wait(20) == 0
    assert jobctl.state(job_id) == "succeeded"


def test_a_second_signal_right_after_the_first_is_ignored(
    jobctl: CommandLine, tmp_path: Path
) -> None:
    """GNU `timeout` signals its command and then its process group: both mean one stop."""
    jobctl.environment["JOBS_SHUTDOWN_GRACE"] = "40"
    with jobctl.worker() as process:
        job_id = jobctl.publish(until=str(tmp_path / "free"))
        jobctl.until_state(job_id, "running")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)  # a different signal, as two equal ones may be merged
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        (tmp_path / "free").touch()
        assert process.wait(20) == 0
    assert jobctl.state(job_id) == "succeeded"


def test_a_handler_can_not_end_its_worker_but_a_signal_can(
    jobctl: CommandLine, tmp_path: Path
) -> None:
    """It tries so directly and from a task that it has started, which would end an event loop."""
    with jobctl.worker("--concurrency", "2") as process:
        gated_id = jobctl.publish(until=str(tmp_path / "free"))
        jobctl.until_state(gated_id, "running")
        for n in (0, 1):
            for fail in (False, True):
                job_id = jobctl.publish("hot.quitting", n=n, fail=fail, text="bye")
                jobctl.until_state(job_id, "dead")
                job = jobctl.json("jobs", "show", job_id)
                error_type = "KeyboardInterrupt" if fail else "SystemExit"
                assert (job["reason"], job["error_type"]) == ("exhausted", error_type)
                assert process.poll() is None
        assert jobctl.state(gated_id) == "running"
        (tmp_path / "free").touch()
        jobctl.until_state(gated_id, "succeeded")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.long
def test_a_later_signal_ends_the_worker_at_once_and_its_job_is_taken_over(
    jobctl: CommandLine,
) -> None:
    jobctl.environment["JOBS_SHUTDOWN_GRACE"] = "60"
    with jobctl.worker() as process:
        job_id = jobctl.publish(seconds=8)
        jobctl.until_state(job_id, "running")
        process.send_signal(signal.SIGINT)
        while "stopping" not in jobctl.log_of("worker"):
            assert process.poll() is None
        for _ in range(50):  # those soon after the first are ignored
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                assert process.wait(0.1) == 130
                break
    assert process.returncode == 130
    with jobctl.worker():
        jobctl.ok("jobs", "watch", job_id)


def test_a_worker_names_a_missing_topology_and_ledger(bare: CommandLine) -> None:
    assert "run `jobctl topology apply`" in bare.fails("worker", "tester")
    bare.ok("topology", "apply")
    assert "`jobctl db upgrade` creates" in bare.fails("worker", "tester")
    file = bare.ledger_file
    assert bare.ok("db", "upgrade") == f"A new ledger: {file}\n"
    assert bare.ok("db", "upgrade") == f"The ledger is up to date: {file}\n"


def test_worker_of_an_unknown_kind_or_lane_is_refused(jobctl: CommandLine) -> None:
    unknown = jobctl.fails("worker", "nobody")
    assert "kinds with work are: embed, ingest, link, llm, ocr, reindex, tester" in unknown
    assert "its lanes are: hot, backfill" in jobctl.fails("worker", "tester", "--lanes", "vlm_ocr")
    assert "can't import the job module 'nope'" in jobctl.fails(
        "worker", "tester", "--include", "nope"
    )
    assert "KIND" in jobctl.fails("worker", code=2)


def test_all_kinds_in_one_process(jobctl: CommandLine) -> None:
    with jobctl.started("worker", "all"):
        job_id = jobctl.publish(n=1)
        jobctl.ok("jobs", "watch", job_id)
        (worker,) = jobctl.json("workers")
        assert worker["kinds"] == [*("embed", "ingest", "link", "llm", "ocr", "reindex", "tester")]


def test_scheduler_publishes_what_is_due_and_stops_in_order(jobctl: CommandLine) -> None:
    with jobctl.worker(), jobctl.started("scheduler") as scheduler:
        output = jobctl.ok(
            "publish", "hot.work", "--payload", "{}", "--delay", "500ms", "--wait", "--json"
        )
        assert '"state": "succeeded"' in output
        os.kill(scheduler.pid, signal.SIGTERM)
        assert scheduler.wait(20) == 0


@pytest.mark.parametrize(
    "command", [("worker", "tester"), ("scheduler",)], ids=lambda command: command[0]
)
def test_metrics_are_served_on_loopback_if_a_port_is_given(
    jobctl: CommandLine, command: tuple[str, ...]
) -> None:
    port = free_port()
    with jobctl.started(*command, "--metrics-port", str(port)) as process:
        while "showing metrics" not in jobctl.log_of(command[0]):
            assert process.poll() is None
        response = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False)
        assert "switchyard_ledger_seconds_count" in response.text
        with (
            pytest.raises(ConnectionRefusedError),
            socket.create_connection(("127.0.0.2", port), 5),
        ):
            pass

"""`jobctl jobs`, `lanes` and `workers`: show and change jobs, queues and workers."""

import json
import time

from tests.acceptance.conftest import CommandLine


def test_list_applies_filters_and_says_if_there_are_more_jobs(jobctl: CommandLine) -> None:
    hot_id, backfill_id = jobctl.publish(), jobctl.publish("backfill.work")
    listed = jobctl.json("jobs", "list", "--lane", "backfill", "--type", "work", "--since", "1h")
    assert [job["job_id"] for job in listed] == [backfill_id]
    assert {job["job_id"] for job in jobctl.json("jobs", "list", "--state", "queued")} == {
        hot_id,
        backfill_id,
    }
    assert jobctl.json("jobs", "list", "--worker", "llm") == []
    newest = jobctl.run("jobs", "list", "--limit", "1")
    assert backfill_id in newest.stdout
    assert "more with --limit" in newest.stderr


def test_show_prints_the_result_of_a_finished_job(jobctl: CommandLine) -> None:
    with jobctl.worker():
        job_id = jobctl.publish(n=4)
        jobctl.ok("jobs", "watch", job_id)
    shown = jobctl.json("jobs", "show", job_id)
    assert (shown["state"], shown["result"], shown["payload"]) == ("succeeded", {"n": 4}, {"n": 4})
    assert shown["pipeline_jobs"] == []
    assert '{"n": 4}' in jobctl.ok("jobs", "show", job_id)


def test_watch_prints_the_progress_of_a_running_job_escaped(jobctl: CommandLine) -> None:
    with jobctl.worker():
        job_id = jobctl.publish(n=4, seconds=4, text="\x1b[2J[red]")
        lines = jobctl.ok("jobs", "watch", job_id).splitlines()
        shown = jobctl.json("jobs", "show", job_id)
    assert [line.split("  ", 1)[1] for line in lines][-3:] == [
        "running",
        r"50 %, half of it \x1b[2J[red]",
        "succeeded",
    ]
    assert (shown["progress"]["fraction"], shown["checkpoint_at"]) == (0.5, None)
    assert shown["progress"]["reported_at"].endswith("Z")
    assert r"50 %, half of it \x1b[2J[red]" in jobctl.ok("jobs", "show", job_id)


def test_watch_fails_for_a_job_that_dies(jobctl: CommandLine) -> None:
    with jobctl.worker():
        job_id = jobctl.publish(fail=True)
        assert f"job {job_id} is dead: it was told to" in jobctl.fails("jobs", "watch", job_id)


def test_the_traceback_of_a_retry_is_in_the_log_and_show_names_its_worker(
    jobctl: CommandLine,
) -> None:
    with jobctl.worker():
        job_id = jobctl.publish("hot.unlucky")
        jobctl.ok("jobs", "watch", job_id)
        (worker,) = jobctl.json("workers")
        log = jobctl.log_of("worker")
    lines = [json.loads(line) for line in log.splitlines() if '"job retried"' in line]
    (retry_line,) = [line for line in lines if line["job_id"] == job_id]
    assert len(retry_line["traceback"]) == 4_000
    assert retry_line["error"].startswith("\x1b[2Jout of luck")
    assert "\x1b" not in log
    shown = jobctl.run("jobs", "show", job_id)
    assert f"Tracebacks of retries are in the log of {worker['worker_id']}" in shown.stderr


def test_show_of_a_dead_job_names_the_command_with_its_traceback(jobctl: CommandLine) -> None:
    with jobctl.worker():
        job_id = jobctl.publish(fail=True)
        jobctl.fails("jobs", "watch", job_id)
    shown = " ".join(jobctl.run("jobs", "show", job_id).stderr.split())
    assert f"Traceback, and how to go on: `jobctl dead show {job_id}`" in shown


def test_unknown_ids_are_reported(jobctl: CommandLine) -> None:
    for command in ("show", "watch", "cancel"):
        assert "there is no job 'nope'" in jobctl.fails("jobs", command, "nope")


def test_a_queued_job_is_cancelled(jobctl: CommandLine) -> None:
    job_id = jobctl.publish()
    assert jobctl.json("jobs", "cancel", job_id) == {
        "job_id": job_id,
        "state": "cancelled",
        "stopping": False,
    }
    assert jobctl.state(job_id) == "cancelled"


def test_cancelling_a_running_job_stops_it(jobctl: CommandLine) -> None:
    with jobctl.worker():
        job_id = jobctl.publish(seconds=50)
        jobctl.until_state(job_id, "running")
        cancelled = jobctl.json("jobs", "cancel", job_id)
    assert (cancelled["state"], cancelled["stopping"]) == ("cancelled", False)


def test_cancelling_a_finished_job_is_refused(jobctl: CommandLine) -> None:
    with jobctl.worker():
        job_id = jobctl.publish()
        jobctl.ok("jobs", "watch", job_id)
        assert "it is succeeded" in jobctl.fails("jobs", "cancel", job_id)


def test_lanes_shows_numbers_of_waiting_jobs_and_consumers(jobctl: CommandLine) -> None:
    jobctl.publish()
    jobctl.publish()
    deadline = time.monotonic() + 30
    while True:
        lanes = {lane["lane"]: lane for lane in jobctl.json("lanes")}
        queues = {queue["queue"]: queue for queue in lanes["hot"]["queues"]}
        if queues["hot.tester"]["limit"] is not None:  # the broker's statistics lag behind
            break
        assert time.monotonic() < deadline
    assert queues["hot.tester"]["ready"] == 2
    assert queues["hot.tester"]["consumers"] == 0
    assert queues["hot.tester"]["limit"] == 1_000
    assert (queues["hot.tester"]["pressure"], lanes["hot"]["pressure"]) == ("ok", "ok")
    assert queues["hot.tester"]["ttl_seconds"] == 3600
    assert lanes["hot"]["jobs"] == {"queued": 2}
    assert "hot.tester" in jobctl.ok("lanes")


def test_lanes_shows_depths_without_the_management_api(jobctl: CommandLine) -> None:
    jobctl.publish()
    jobctl.environment["JOBS_MANAGEMENT_URL"] = "http://localhost:1"
    completed = jobctl.run("lanes")
    assert completed.returncode == 0
    assert "are not known: can't reach the management API" in completed.stderr
    row = next(
        line.split() for line in completed.stdout.splitlines() if line.startswith("hot.tester")
    )
    assert row[:4] == ["hot.tester", "1", "–", "0"]


def test_workers_are_shown_as_alive_and_then_as_stopped(jobctl: CommandLine) -> None:
    with jobctl.worker("--lanes", "hot", "--concurrency", "2") as process:
        (worker,) = jobctl.json("workers")
        assert (worker["status"], worker["kinds"], worker["lanes"]) == (
            "alive",
            ["tester"],
            ["hot"],
        )
        assert worker["concurrency"] == 2
        process.terminate()
        assert process.wait(20) == 0
    assert jobctl.json("workers") == []
    (worker,) = jobctl.json("workers", "--all")
    assert worker["status"] == "stopped"


def test_jobs_are_moved_cancelled_and_rerun_by_recorded_bulk_actions(jobctl: CommandLine) -> None:
    """There is no worker, so queued jobs stay queued."""
    first_id, second_id = jobctl.publish_all([{"n": 1}, {"n": 2}])
    filters = ("--type", "work", "--lane", "hot")
    dry_run = jobctl.ok("jobs", "move", *filters, "--to-lane", "backfill", "--dry-run")
    assert "2 jobs would be moved" in dry_run
    assert "ids or filters, and not both" in jobctl.fails(
        "jobs", "cancel", first_id, *filters, code=2
    )

    moved = jobctl.json(
        *("jobs", "move", *filters, "--to-lane", "backfill", "--yes", "--why", "a test"),
        *("--rate", "1000/s"),
    )
    assert (moved["action"], moved["done"], moved["reason"]) == ("move", 2, "a test")
    assert jobctl.json("jobs", "show", first_id)["lane"] == "backfill"
    jobctl.ok("jobs", "cancel", "--type", "work", "--yes")
    rerun = jobctl.json("jobs", "rerun", first_id, second_id, "--set", "payload.n=3", "--yes")
    new_jobs = jobctl.json("jobs", "list", "--operation", rerun["id"])
    assert [jobctl.json("jobs", "show", job["job_id"])["payload"]["n"] for job in new_jobs] == [
        3,
        3,
    ]
    jobctl.ok("jobs", "actions", "undo", rerun["id"])
    assert [jobctl.state(job["job_id"]) for job in new_jobs] == ["cancelled", "cancelled"]
    assert [action["action"] for action in jobctl.json("jobs", "actions", "list")] == [
        *("cancel", "rerun", "cancel", "move")
    ]

"""A job that waits for others is shown, found by the doctor, and released."""

import json

import pytest

from tests.acceptance.conftest import CommandLine


def publish_stuck_join(jobctl: CommandLine) -> str:
    """Publish a job that waits for a dead one; return its id."""
    with jobctl.worker():
        parent_id = jobctl.publish("hot.halves", fail=True)
        jobctl.ok("jobs", "watch", parent_id)
        for job in jobctl.json("jobs", "list", "--type", "work"):
            if job["state"] == "joining":
                waiting_id = str(job["job_id"])
            else:
                jobctl.run("jobs", "watch", job["job_id"])
    return waiting_id


@pytest.mark.long
def test_a_waiting_job_is_shown_found_and_released(jobctl: CommandLine) -> None:
    waiting_id = publish_stuck_join(jobctl)
    shown = jobctl.json("jobs", "show", waiting_id)
    assert shown["state"] == "joining"
    join = shown["join"]
    assert (join["total"], join["open"], join["dead"], join["when_dead"]) == (2, 0, 1, "wait")
    (dead,) = jobctl.json("jobs", "list", "--state", "dead")
    assert dead["join_id"] == waiting_id

    completed = jobctl.run("jobs", "show", waiting_id)
    assert "1 of 2 jobs have ended, 1 are dead; waits until those are redriven" in completed.stdout
    hint = " ".join(completed.stderr.split())
    assert f"`jobctl dead redrive {dead['job_id']}`" in hint
    assert f"`jobctl jobs release {waiting_id}`" in hint

    checks = {check["name"]: check for check in json.loads(jobctl.run("doctor", "--json").stdout)}
    assert checks["joins"]["finding"] == "join-stuck"
    assert f"jobctl jobs release {waiting_id}" in checks["joins"]["remedy"]

    assert "goes on without 1 dead" in jobctl.ok("jobs", "release", waiting_id)
    assert jobctl.json("jobs", "show", waiting_id)["state"] == "pending"
    assert "does not wait any more" in jobctl.fails("jobs", "release", waiting_id)


def test_only_a_waiting_job_is_released(jobctl: CommandLine) -> None:
    job_id = jobctl.publish()
    assert f"job {job_id} waits for no other" in jobctl.fails("jobs", "release", job_id)
    assert "there is no job 'nothing'" in jobctl.fails("jobs", "release", "nothing")

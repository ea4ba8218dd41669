"""A job that waits for others: shown, found by the doctor, and let go."""

import json

import pytest

from tests.acceptance.conftest import CommandLine


def waiting(jobctl: CommandLine) -> str:
    """The id of a job that waits for one that has died."""
    with jobctl.worker():
        first = jobctl.publish("hot.halves", fail=True)
        jobctl.ok("jobs", "watch", first)
        for job in jobctl.json("jobs", "list", "--type", "work"):
            if job["state"] == "joining":
                then = str(job["job_id"])
            else:
                jobctl.run("jobs", "watch", job["job_id"])
    return then


@pytest.mark.long
def test_it_is_shown_found_and_let_go(jobctl: CommandLine) -> None:
    then = waiting(jobctl)
    shown = jobctl.json("jobs", "show", then)
    assert shown["state"] == "joining"
    join = shown["join"]
    assert (join["total"], join["open"], join["dead"], join["when_dead"]) == (2, 0, 1, "wait")
    (dead,) = jobctl.json("jobs", "list", "--state", "dead")
    assert dead["join_id"] == then

    told = jobctl.run("jobs", "show", then)
    assert "1 of 2 jobs have ended, 1 are dead; waits until those are redriven" in told.stdout
    hint = " ".join(told.stderr.split())
    assert f"`jobctl dead redrive {dead['job_id']}`" in hint
    assert f"`jobctl jobs release {then}`" in hint

    checks = {each["name"]: each for each in json.loads(jobctl.run("doctor", "--json").stdout)}
    assert checks["joins"]["finding"] == "join-stuck"
    assert f"jobctl jobs release {then}" in checks["joins"]["remedy"]

    assert "goes on without 1 dead" in jobctl.ok("jobs", "release", then)
    assert jobctl.json("jobs", "show", then)["state"] == "pending"
    assert "does not wait any more" in jobctl.fails("jobs", "release", then)


def test_only_what_waits_is_let_go(jobctl: CommandLine) -> None:
    job_id = jobctl.publish()
    assert f"job {job_id} waits for no other" in jobctl.fails("jobs", "release", job_id)
    assert "there is no job 'nothing'" in jobctl.fails("jobs", "release", "nothing")

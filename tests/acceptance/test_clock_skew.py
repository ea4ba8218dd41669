"""Hosts whose clocks are wrong: ages, limits of time and due times go by the ledger's clock."""

import json
import re
import subprocess
from datetime import datetime, timedelta

import pytest

from tests.acceptance.conftest import CommandLine

AHEAD = 2 * 3600.0
"""Seconds; a hot job may wait for half of that."""


@pytest.fixture
async def anywhere(jobctl: CommandLine, database_url: str) -> CommandLine:
    """With a ledger on each kind of database."""
    jobctl.environment["JOBS_DATABASE_URL"] = database_url
    return jobctl


@pytest.mark.long
def test_a_worker_whose_clock_is_ahead_expires_no_job_of_others(anywhere: CommandLine) -> None:
    with anywhere.worker(skewed_by=AHEAD):
        job_id = anywhere.publish()
        anywhere.until_state(job_id, "succeeded", "dead")
        record = anywhere.json("jobs", "show", job_id)
    assert record["state"] == "succeeded", record["reason"]
    took = datetime.fromisoformat(record["finished_at"]) - datetime.fromisoformat(
        record["created_at"]
    )
    assert timedelta(0) <= took < timedelta(minutes=1)
    assert "clock differs from the ledger's" in anywhere.log_of("worker")


@pytest.mark.parametrize(
    "option",
    [
        ("--expires-in", "60s"),
        pytest.param((), marks=pytest.mark.long),
        pytest.param(("--delay", "200ms"), marks=pytest.mark.long),
    ],
)
def test_a_job_from_a_host_whose_clock_is_behind_runs(
    jobctl: CommandLine, option: tuple[str, ...]
) -> None:
    with jobctl.started("scheduler"), jobctl.worker():
        done = published(jobctl, -AHEAD, *option, "--wait", "--json")
    assert json.loads(done)["state"] == "succeeded"


@pytest.mark.long
def test_a_scheduler_whose_clock_is_ahead_publishes_nothing_before_its_time(
    jobctl: CommandLine,
) -> None:
    with jobctl.started("scheduler", skewed_by=AHEAD), jobctl.worker():
        later = published(jobctl, 0, "--delay", "1h").strip()
        soon = published(jobctl, 0, "--delay", "1s").strip()
        jobctl.until_state(soon, "succeeded")
        assert jobctl.state(later) == "scheduled"


@pytest.mark.long
def test_a_redrive_on_a_host_whose_clock_is_behind_does_not_expire_the_job_again(
    jobctl: CommandLine,
) -> None:
    with jobctl.worker():
        job_id = jobctl.publish(fail=True)
        jobctl.until_state(job_id, "dead")
        skewed = jobctl.run_skewed(
            -AHEAD, "dead", "redrive", job_id, "--set", "payload.fail=false", "--yes"
        )
        assert skewed.returncode == 0, skewed.stderr
        jobctl.until_state(job_id, "succeeded")


@pytest.mark.long
@pytest.mark.parametrize("ahead", [AHEAD, -AHEAD])
def test_what_is_listed_on_a_host_whose_clock_is_wrong_is_as_old_as_it_is(
    jobctl: CommandLine, ahead: float
) -> None:
    with jobctl.worker():
        job_id = jobctl.publish(fail=True)
        jobctl.until_state(job_id, "dead")
        for command in (
            ("jobs", "list", "--since", "10m"),
            ("jobs", "show", job_id),
            ("dead", "groups"),
            ("dead", "show", job_id),
            ("lanes",),
            ("workers",),
        ):
            listed = jobctl.run_skewed(ahead, *command)
            assert listed.returncode == 0, listed.stderr
            assert listed.stdout.strip()
            assert not re.search(r"\b2 h\b|\bin \d+ h\b", listed.stdout), listed.stdout


def published(jobctl: CommandLine, ahead: float, *options: str) -> str:
    done: subprocess.CompletedProcess[str] = jobctl.run_skewed(
        ahead, "publish", "hot.work", "--payload", "{}", *options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

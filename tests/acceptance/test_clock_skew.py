"""Hosts whose clocks are wrong: ages, time limits and due times go by the ledger's clock."""

import json
import re
import subprocess
from datetime import datetime, timedelta

import pytest

from tests.acceptance.conftest import CommandLine

AHEAD = 2 * 3600.0
"""Seconds by which a clock is ahead: twice as long as a hot job may wait."""


@pytest.fixture
async def jobctl_on_each_database(jobctl: CommandLine, database_url: str) -> CommandLine:
    """A command line with a ledger on each kind of database."""
    jobctl.environment["JOBS_DATABASE_URL"] = database_url
    return jobctl


@pytest.mark.long
def test_a_worker_whose_clock_is_ahead_expires_no_job_of_others(
    jobctl_on_each_database: CommandLine,
) -> None:
    with jobctl_on_each_database.worker(skewed_by=AHEAD):
        job_id = jobctl_on_each_database.publish()
        jobctl_on_each_database.until_state(job_id, "succeeded", "dead")
        record = jobctl_on_each_database.json("jobs", "show", job_id)
    assert record["state"] == "succeeded", record["reason"]
    duration = datetime.fromisoformat(record["finished_at"]) - datetime.fromisoformat(
        record["created_at"]
    )
    assert timedelta(0) <= duration < timedelta(minutes=1)
    assert "clock differs from the ledger's" in jobctl_on_each_database.log_of("worker")


@pytest.mark.parametrize(
    "options",
    [
        ("--expires-in", "60s"),
        pytest.param((), marks=pytest.mark.long),
        pytest.param(("--delay", "200ms"), marks=pytest.mark.long),
    ],
)
def test_a_job_from_a_host_whose_clock_is_behind_runs(
    jobctl: CommandLine, options: tuple[str, ...]
) -> None:
    with jobctl.started("scheduler"), jobctl.worker():
        output = publish_skewed(jobctl, -AHEAD, *options, "--wait", "--json")
    assert json.loads(output)["state"] == "succeeded"


@pytest.mark.long
def test_a_scheduler_whose_clock_is_ahead_publishes_nothing_before_its_time(
    jobctl: CommandLine,
) -> None:
    with jobctl.started("scheduler", skewed_by=AHEAD), jobctl.worker():
        later_id = publish_skewed(jobctl, 0, "--delay", "1h").strip()
        soon_id = publish_skewed(jobctl, 0, "--delay", "1s").strip()
        jobctl.until_state(soon_id, "succeeded")
        assert jobctl.state(later_id) == "scheduled"


@pytest.mark.long
def test_a_redrive_on_a_host_whose_clock_is_behind_does_not_expire_the_job_again(
    jobctl: CommandLine,
) -> None:
    with jobctl.worker():
        job_id = jobctl.publish(fail=True)
        jobctl.until_state(job_id, "dead")
        completed = jobctl.run_skewed(
            -AHEAD, "dead", "redrive", job_id, "--set", "payload.fail=false", "--yes"
        )
        assert completed.returncode == 0, completed.stderr
        jobctl.until_state(job_id, "succeeded")


@pytest.mark.long
@pytest.mark.parametrize("ahead", [AHEAD, -AHEAD])
def test_lists_on_a_host_whose_clock_is_wrong_show_the_right_ages(
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
            completed = jobctl.run_skewed(ahead, *command)
            assert completed.returncode == 0, completed.stderr
            assert completed.stdout.strip()
            assert not re.search(r"\b2 h\b|\bin \d+ h\b", completed.stdout), completed.stdout


def publish_skewed(jobctl: CommandLine, ahead: float, *options: str) -> str:
    completed: subprocess.CompletedProcess[str] = jobctl.run_skewed(
        ahead, "publish", "hot.work", "--payload", "{}", *options
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout

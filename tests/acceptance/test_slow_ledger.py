"""A command that waits for its ledger says so; it ends as ever when it has waited enough."""

import sqlite3
import time
from contextlib import closing

from tests.acceptance.conftest import TIMEOUT, CommandLine


def test_a_command_that_waits_for_a_locked_ledger_says_so_and_goes_on(jobctl: CommandLine) -> None:
    payload = ("publish", "hot.work", "--payload", "{}")
    with (
        closing(sqlite3.connect(jobctl.ledger_file, isolation_level=None)) as other,
        jobctl.started(*payload) as publishing,
    ):
        other.execute("BEGIN IMMEDIATE")
        wanted = f"waiting for the ledger at {jobctl.ledger_file} …"
        deadline = time.monotonic() + TIMEOUT
        while wanted not in jobctl.log_of("publish"):
            assert publishing.poll() is None, jobctl.log_of("publish")
            assert time.monotonic() < deadline, jobctl.log_of("publish")
            time.sleep(0.02)
        other.execute("ROLLBACK")
        assert publishing.wait(TIMEOUT) == 0
    assert [job["state"] for job in jobctl.json("jobs", "list")] == ["queued"]


def test_one_that_waits_for_nothing_says_nothing(jobctl: CommandLine) -> None:
    assert "waiting" not in jobctl.run("lanes").stderr

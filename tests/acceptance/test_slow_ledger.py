"""A command that waits for a locked ledger says so."""

import sqlite3
import time
from contextlib import closing

from tests.acceptance.conftest import TIMEOUT, CommandLine


def test_a_command_that_waits_for_a_locked_ledger_says_so_and_goes_on(jobctl: CommandLine) -> None:
    publish = ("publish", "hot.work", "--payload", "{}")
    with (
        closing(sqlite3.connect(jobctl.ledger_file, isolation_level=None)) as connection,
        jobctl.started(*publish) as publishing,
    ):
        connection.execute("BEGIN IMMEDIATE")
        waiting_line = f"waiting for the ledger at {jobctl.ledger_file} …"
        deadline = time.monotonic() + TIMEOUT
        while waiting_line not in jobctl.log_of("publish"):
            assert publishing.poll() is None, jobctl.log_of("publish")
            assert time.monotonic() < deadline, jobctl.log_of("publish")
            time.sleep(0.02)
        connection.execute("ROLLBACK")
        assert publishing.wait(TIMEOUT) == 0
    assert [job["state"] for job in jobctl.json("jobs", "list")] == ["queued"]


def test_a_command_that_does_not_wait_says_nothing_of_it(jobctl: CommandLine) -> None:
    assert "waiting" not in jobctl.run("lanes").stderr

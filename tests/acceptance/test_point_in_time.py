"""The steps of docs/backup.md that set a ledger on PostgreSQL, not its broker, back to a moment."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.acceptance.conftest import ROOT, CommandLine
from tests.acceptance.test_restore import ledger_variable, run_printed
from tests.support.missing import MissingError, skip_or_fail
from tests.support.postgres import PostgresServer
from tests.support.postgres_recovery import ARCHIVE, RecoveredServer, archiving_server

pytestmark = [pytest.mark.long, pytest.mark.postgres, pytest.mark.timeout(240)]

PAGE = (ROOT / "docs" / "backup.md").read_text()
JOBS = 4


@pytest.fixture
def backups() -> Iterator[Path]:
    """A folder that PostgreSQL's own user may enter, unlike tmp_path."""
    with TemporaryDirectory(prefix="switchyard-recovery-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture
def server(backups: Path) -> Iterator[PostgresServer]:
    try:
        server = archiving_server(backups)
    except MissingError as error:
        skip_or_fail(str(error))
    server.start()
    yield server
    server.stop()


def test_a_ledger_goes_back_to_a_moment_and_every_job_is_accounted_for(
    bare: CommandLine, server: PostgresServer, backups: Path
) -> None:
    (section,) = re.findall(r"^## PostgreSQL, back to a moment$(.*?)^## ", PAGE, re.M | re.S)
    assert ARCHIVE.format(wal="/backups/wal") in section
    url = server.create_database()
    bare.environment["JOBS_DATABASE_URL"] = url
    bare.ok("db", "upgrade")
    bare.ok("topology", "apply")
    with bare.started("scheduler"), bare.worker():
        (succeeded_before,) = bare.publish_all([{"n": 0}])
        bare.until_state(succeeded_before, "succeeded")
    backup_variables = {"LEDGER": ledger_variable(url), "BACKUPS": str(backups), "DATA": ""}
    assert run_printed("pg_basebackup", section, backups, backup_variables) == 1
    waiting = bare.publish_all({"n": n} for n in range(JOBS))
    target_time = server.execute("SELECT clock_timestamp()").strip()

    # The ledger of the target time knows nothing of these jobs.
    with bare.started("scheduler"), bare.worker():
        (dead_id,) = bare.publish_all([{"fail": True}])
        (succeeded_after,) = bare.publish_all([{"n": 5}])
        for job_id, state in ((dead_id, "dead"), (succeeded_after, "succeeded")):
            bare.until_state(job_id, state)
        for job_id in waiting:
            bare.until_state(job_id, "succeeded")
    published_after = bare.publish_all({"n": n} for n in range(JOBS))
    name = url.rpartition("/")[2]
    server.execute(f"ALTER DATABASE {name} RENAME TO deleted_by_mistake")
    server.execute("SELECT pg_switch_wal()")
    server.stop(signal.SIGINT)

    def restore(data: Path) -> None:
        restore_variables = {"BACKUPS": str(backups), "DATA": str(data), "UNTIL": target_time}
        assert run_printed("cp -a|echo|touch", section, backups, restore_variables) == 5

    recovered = RecoveredServer(backups / "recovered", server, restore)
    try:
        recovered.recover()
        bare.environment["JOBS_DATABASE_URL"] = recovered.url(name)
        assert "no job" in bare.fails("jobs", "show", dead_id)
        states = [bare.state(job_id) for job_id in (succeeded_before, *waiting)]
        assert states == ["succeeded", *["queued"] * JOBS]
        (reconcile_command,) = re.findall(r"^jobctl (backup reconcile) --yes$", section, re.M)
        counts = bare.json(*reconcile_command.split(), "--dry-run")
        assert (counts["on_broker"], counts["unknown"], counts["lost"]) == (JOBS, JOBS, JOBS)
        assert bare.json(*reconcile_command.split(), "--yes")["done"]["republished"] == JOBS
        with bare.started("scheduler"), bare.worker():
            for job_id in (*waiting, *published_after):
                bare.until_state(job_id, "succeeded")
        assert bare.state(dead_id) == "dead"  # its letter was on the broker
        assert "no job" in bare.fails("jobs", "show", succeeded_after)
        assert bare.json(*reconcile_command.split(), "--dry-run")["lost"] == 0
    finally:
        recovered.stop()

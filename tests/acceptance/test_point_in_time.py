"""docs/backup.md, followed: a ledger on PostgreSQL goes back to a moment, its broker does not."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.acceptance.conftest import ROOT, CommandLine
from tests.acceptance.test_restore import as_printed, run_printed
from tests.support.missing import MissingError, skip_or_fail
from tests.support.postgres import PostgresServer
from tests.support.postgres_recovery import ARCHIVE, RecoveredServer, archiving_server

pytestmark = [pytest.mark.long, pytest.mark.postgres, pytest.mark.timeout(240)]

PAGE = (ROOT / "docs" / "backup.md").read_text()
FEW = 4


@pytest.fixture
def backups() -> Iterator[Path]:
    """Where PostgreSQL's own user may go, which is not so in tmp_path."""
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
        (done_before,) = bare.publish_all([{"n": 0}])
        bare.until_state(done_before, "succeeded")
    printed = {"LEDGER": as_printed(url), "BACKUPS": str(backups), "DATA": ""}
    assert run_printed("pg_basebackup", section, backups, printed) == 1
    waiting = bare.publish_all({"n": n} for n in range(FEW))
    until = server.execute("SELECT clock_timestamp()").strip()

    # All of this is unknown to the ledger as it was at that moment.
    with bare.started("scheduler"), bare.worker():
        (died,) = bare.publish_all([{"fail": True}])
        (gone,) = bare.publish_all([{"n": 5}])
        for job_id, state in ((died, "dead"), (gone, "succeeded")):
            bare.until_state(job_id, state)
        for job_id in waiting:
            bare.until_state(job_id, "succeeded")
    after = bare.publish_all({"n": n} for n in range(FEW))
    name = url.rpartition("/")[2]
    server.execute(f"ALTER DATABASE {name} RENAME TO deleted_by_mistake")
    server.execute("SELECT pg_switch_wal()")
    server.stop(signal.SIGINT)

    def make(data: Path) -> None:
        values = {"BACKUPS": str(backups), "DATA": str(data), "UNTIL": until}
        assert run_printed("cp -a|echo|touch", section, backups, values) == 5

    recovered = RecoveredServer(backups / "recovered", server, make)
    try:
        recovered.recover()
        bare.environment["JOBS_DATABASE_URL"] = recovered.url(name)
        assert "no job" in bare.fails("jobs", "show", died)
        states = [bare.state(job_id) for job_id in (done_before, *waiting)]
        assert states == ["succeeded", *["queued"] * FEW]
        (again,) = re.findall(r"^jobctl (backup reconcile) --yes$", section, re.M)
        found = bare.json(*again.split(), "--dry-run")
        assert (found["on_broker"], found["unknown"], found["lost"]) == (FEW, FEW, FEW)
        assert bare.json(*again.split(), "--yes")["done"]["republished"] == FEW
        with bare.started("scheduler"), bare.worker():
            for job_id in (*waiting, *after):
                bare.until_state(job_id, "succeeded")
        assert bare.state(died) == "dead"  # its letter was on the broker
        assert "no job" in bare.fails("jobs", "show", gone)
        assert bare.json(*again.split(), "--dry-run")["lost"] == 0
    finally:
        recovered.stop()

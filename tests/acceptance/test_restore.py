"""docs/backup.md, followed: a broker that is lost, and everything on a new one from a copy."""

import re
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from switchyard.cli.system.node import LocalNode
from tests.acceptance.conftest import ROOT, CommandLine
from tests.support.brokers import TestBroker, fresh_vhost

FEW, MANY = 6, 20


def publish(jobctl: CommandLine, jobs: int = FEW) -> list[str]:
    """Jobs that wait for a minute already: those of the last seconds may be on their way to the
    broker, so the scheduler leaves them alone for that long."""
    ids = jobctl.publish_all({"n": n} for n in range(jobs))
    with closing(sqlite3.connect(jobctl.ledger_file)) as ledger, ledger:
        ledger.execute("UPDATE jobs SET updated_at = updated_at - 60")
    return ids


def move_to(jobctl: CommandLine, broker: LocalNode | TestBroker) -> None:
    """As somebody does who starts a new broker."""
    jobctl.environment |= {
        "JOBS_AMQP_URL": broker.amqp_url,
        "JOBS_MANAGEMENT_URL": broker.management_url,
    }


@pytest.mark.long  # as the next but one, with the old ledger and more jobs
def test_a_lost_broker_loses_no_job(
    jobctl: CommandLine, own_node: Callable[..., LocalNode]
) -> None:
    ids = publish(jobctl, MANY)
    move_to(jobctl, own_node())
    jobctl.ok("topology", "apply")
    assert f"{MANY} jobs are published again" in jobctl.ok("jobs", "republish", "--yes")
    with jobctl.started("scheduler"), jobctl.worker():
        for job_id in ids:
            jobctl.ok("jobs", "watch", job_id)
    assert [jobctl.json("jobs", "show", job_id)["timeline"] for job_id in ids] == [[]] * MANY
    assert "nothing to publish again" in jobctl.run("jobs", "republish", "--yes").stderr


def test_what_the_broker_has_after_all_runs_once(jobctl: CommandLine) -> None:
    ids = publish(jobctl)
    jobctl.ok("jobs", "republish", "--lane", "hot", "--yes")
    with jobctl.started("scheduler"), jobctl.worker():
        for job_id in ids:
            jobctl.ok("jobs", "watch", job_id)
    # Attempts that did not simply succeed: there was one, and it did.
    assert [jobctl.json("jobs", "show", job_id)["timeline"] for job_id in ids] == [[]] * FEW


@pytest.mark.parametrize("jobs", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_everything_is_restored_from_a_copy_on_a_new_broker(
    jobctl: CommandLine, broker310: TestBroker, tmp_path: Path, jobs: int
) -> None:
    """To jobs, an empty vhost is a new broker; in the test above it has a node of its own."""
    ids = publish(jobctl, jobs)
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    data = Path(jobctl.environment["JOBS_DATA_DIR"])
    with (
        closing(sqlite3.connect(data / "ledger.db")) as ledger,
        closing(sqlite3.connect(copy / "ledger.db")) as target,
    ):
        ledger.backup(target)
    jobctl.environment["JOBS_DATA_DIR"] = str(copy)
    with fresh_vhost(broker310.node, broker310.version, "classic") as new:
        move_to(jobctl, new)
        jobctl.ok("db", "upgrade")
        jobctl.ok("topology", "apply")
        jobctl.ok("system", "adopt", "--yes")
        assert f"{jobs} jobs are published again" in jobctl.ok("jobs", "republish", "--yes")
        with jobctl.started("scheduler"), jobctl.worker():
            for job_id in ids:
                jobctl.ok("jobs", "watch", job_id)
        assert [jobctl.json("jobs", "show", job_id)["timeline"] for job_id in ids] == [[]] * jobs
        assert "nothing to publish again" in jobctl.run("jobs", "republish", "--yes").stderr


def test_copies_of_files_come_back_to_their_place_in_a_new_directory(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "backup.md").read_text()
    _, backing_up, restoring, *_ = page.split("\n## ")
    old, new = tmp_path / "old", tmp_path / "new"
    (old / ".switchyard" / "files" / "inbox").mkdir(parents=True)
    (old / ".switchyard" / "files" / "inbox" / "a.pdf").write_text("a document")
    new.mkdir()
    (old / "backup").mkdir()
    (old / "backup" / "ledger.db").write_text("made by sqlite3")
    copy_files(backing_up, old)
    (old / "backup").rename(new / "backup")
    copy_files(restoring, new)
    restored = new / ".switchyard"
    assert (restored / "files" / "inbox" / "a.pdf").read_text() == "a document"
    assert (restored / "ledger.db").read_text() == "made by sqlite3"
    assert restored.stat().st_mode & 0o077 == 0


def copy_files(section: str, directory: Path) -> None:
    """Run what a section prints of mkdir and cp, as printed."""
    commands = re.findall(r"^(?:mkdir|cp) .*$", section, flags=re.MULTILINE)
    assert len(commands) >= 2
    for command in commands:
        subprocess.run(command, shell=True, cwd=directory, check=True)


def test_bad_requests_are_told(jobctl: CommandLine) -> None:
    assert "choose one of hot" in jobctl.fails("jobs", "republish", "--lane", "nope", code=2)
    publish(jobctl)
    assert "give --yes" in jobctl.fails("jobs", "republish", code=2)

"""docs/backup.md, followed: a broker that is lost, and everything on a new one from a copy."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from switchyard.cli.system.node import LocalNode
from tests.acceptance.conftest import CommandLine

JOBS = 6


def publish(jobctl: CommandLine) -> list[str]:
    lines = "".join(json.dumps({"n": n}) + "\n" for n in range(JOBS))
    return jobctl.ok("publish", "hot.work", "--payload", "-", stdin=lines).split()


def move_to(jobctl: CommandLine, node: LocalNode) -> None:
    """As somebody does who starts a new broker."""
    jobctl.environment |= {
        "JOBS_AMQP_URL": node.amqp_url,
        "JOBS_MANAGEMENT_URL": node.management_url,
    }


def test_a_lost_broker_loses_no_job(
    jobctl: CommandLine, own_node: Callable[..., LocalNode]
) -> None:
    ids = publish(jobctl)
    move_to(jobctl, own_node())
    jobctl.ok("topology", "apply")
    assert f"{JOBS} jobs are published again" in jobctl.ok("jobs", "republish", "--yes")
    with jobctl.started("scheduler"), jobctl.worker():
        for job_id in ids:
            jobctl.ok("jobs", "watch", job_id)
    assert [jobctl.json("jobs", "show", job_id)["timeline"] for job_id in ids] == [[]] * JOBS
    assert "nothing to publish again" in jobctl.run("jobs", "republish", "--yes").stderr


def test_what_the_broker_has_after_all_runs_once(jobctl: CommandLine) -> None:
    ids = publish(jobctl)
    jobctl.ok("jobs", "republish", "--lane", "hot", "--yes")
    with jobctl.started("scheduler"), jobctl.worker():
        for job_id in ids:
            jobctl.ok("jobs", "watch", job_id)
    # Attempts that did not simply succeed: there was one, and it did.
    assert [jobctl.json("jobs", "show", job_id)["timeline"] for job_id in ids] == [[]] * JOBS


def test_everything_is_restored_from_a_copy_on_a_new_broker(
    jobctl: CommandLine, own_node: Callable[..., LocalNode], tmp_path: Path
) -> None:
    ids = publish(jobctl)
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    data = Path(jobctl.environment["JOBS_DATA_DIR"])
    with (
        closing(sqlite3.connect(data / "ledger.db")) as ledger,
        closing(sqlite3.connect(copy / "ledger.db")) as target,
    ):
        ledger.backup(target)
    jobctl.environment["JOBS_DATA_DIR"] = str(copy)
    move_to(jobctl, own_node())
    jobctl.ok("db", "upgrade")
    jobctl.ok("topology", "apply")
    jobctl.ok("system", "adopt", "--yes")
    jobctl.ok("jobs", "republish", "--yes")
    with jobctl.started("scheduler"), jobctl.worker():
        for job_id in ids:
            jobctl.ok("jobs", "watch", job_id)


def test_bad_requests_are_told(jobctl: CommandLine) -> None:
    assert "choose one of hot" in jobctl.fails("jobs", "republish", "--lane", "nope", code=2)
    publish(jobctl)
    assert "give --yes" in jobctl.fails("jobs", "republish", code=2)

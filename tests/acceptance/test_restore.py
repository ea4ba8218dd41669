"""docs/backup.md, followed: a broker that is lost, and everything on a new one from a copy."""

import json
import os
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from switchyard import Client
from switchyard.cli.system.free_ports import free_port
from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.pipeline.samples.articles import sample
from tests.acceptance.conftest import ROOT, CommandLine
from tests.support.brokers import TestBroker, fresh_vhost
from tests.support.postgres import PostgresServer

FEW, MANY = 6, 20
UNWORKED = {"consumers", "scheduler", "workers"}
"""Checks of the doctor that want processes."""
PATIENT = 8
"""Retries until an API that has just been started answers: 50 s."""


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


@pytest.mark.parametrize(
    "jobs", [FEW, pytest.param(MANY, marks=(pytest.mark.long, pytest.mark.timeout(300)))]
)
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


def test_what_a_restore_loses_and_repeats_is_counted_and_put_right_by_one_command(
    jobctl: CommandLine, tmp_path: Path
) -> None:
    waiting = publish(jobctl)
    (archive,) = re.findall(r"^(\S+\.tar): ", jobctl.ok("backup", "create", str(tmp_path)))
    assert jobctl.json("backup", "verify", archive)["tables"]["jobs"] == FEW
    with jobctl.started("scheduler"), jobctl.worker():
        refused = jobctl.fails("backup", "restore", archive, "--replace")
        assert "a process uses the ledger" in refused
        for job_id in waiting:
            jobctl.ok("jobs", "watch", job_id)
    unknown = jobctl.publish_all({"n": n} for n in range(2))
    dead = jobctl.ok("publish", "hot.staged", "--payload", '{"fail": true}').strip()

    assert "there is data at" in jobctl.fails("backup", "restore", archive)
    assert "kept what was there" in jobctl.ok("backup", "restore", archive, "--replace")
    assert "no job" in jobctl.fails("jobs", "show", unknown[0])
    expected = {"on_broker": 3, "unknown": 3, "ended": 0, "unreadable": 0, "lost": FEW}
    counted = jobctl.json("backup", "reconcile", "--dry-run")
    assert counted == expected | {"done": None}
    assert "give --yes" in jobctl.fails("backup", "reconcile", code=2)
    done = jobctl.json("backup", "reconcile", "--yes")["done"]
    assert done["republished"] == FEW
    with jobctl.started("scheduler"), jobctl.worker():
        assert "stop them first" in jobctl.fails("backup", "reconcile", "--dry-run")
        for job_id in (*waiting, *unknown):
            jobctl.until_state(job_id, "succeeded")
        jobctl.until_state(dead, "succeeded")
        (follower,) = jobctl.json("jobs", "list", "--parent", dead)
        jobctl.until_state(follower["job_id"], "dead")
    assert jobctl.json("backup", "reconcile", "--dry-run")["lost"] == 0


def test_copies_of_files_come_back_to_their_place_in_a_new_directory(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "backup.md").read_text()
    backing_up, restoring = sections(page)
    old, new = tmp_path / "old", tmp_path / "new"
    (old / ".switchyard" / "files" / "inbox").mkdir(parents=True)
    (old / ".switchyard" / "files" / "inbox" / "a.pdf").write_text("a document")
    new.mkdir()
    copy_files(backing_up, old)
    (old / "backup").rename(new / "backup")
    copy_files(restoring, new)
    restored = new / ".switchyard"
    assert (restored / "files" / "inbox" / "a.pdf").read_text() == "a document"
    assert restored.stat().st_mode & 0o077 == 0


def sections(page: str) -> tuple[str, str]:
    """How a system on PostgreSQL is copied and restored."""
    by_title = dict(each.split("\n", 1) for each in page.split("\n## "))
    return by_title["PostgreSQL"], by_title["Restore everything, on new machines"]


def copy_files(section: str, directory: Path) -> None:
    """Run what a section prints of mkdir and cp, as printed."""
    assert run_printed(r"mkdir|cp", section, directory, {}) >= 2


def run_printed(names: str, section: str, directory: Path, environment: dict[str, str]) -> int:
    """Run the commands of these names in a section, as printed; how many there are."""
    commands = re.findall(rf"^(?:{names}) .*$", section, flags=re.MULTILINE)
    for command in commands:
        subprocess.run(command, shell=True, cwd=directory, check=True, env=os.environ | environment)
    return len(commands)


@contextmanager
def system(jobctl: CommandLine) -> Iterator[None]:
    """Scheduler, workers and API of one machine."""
    with ExitStack() as running:
        running.enter_context(jobctl.started("scheduler"))
        running.enter_context(jobctl.started("worker", "all"))
        running.enter_context(jobctl.started("api"))
        with Client(jobctl.environment["JOBS_API_URL"], retries=PATIENT) as client:
            client.ready()
        yield


def at_home(jobctl: CommandLine, home: Path, ledger: str) -> None:
    """As on another machine: all in a directory of its own, and another database."""
    home.mkdir()
    port = str(free_port())
    jobctl.environment |= {
        "JOBS_DATA_DIR": str(home / ".switchyard"),
        "JOBS_DATABASE_URL": ledger,
        "JOBS_API_PORT": port,
        "JOBS_API_URL": f"http://127.0.0.1:{port}",
    }


@pytest.mark.long
@pytest.mark.timeout(300)  # 80 s on two cores that others use as well
def test_everything_is_restored_on_postgresql_without_the_index(
    bare: CommandLine,
    broker310: TestBroker,
    empty_postgres_url: str,
    postgres_server: PostgresServer,
    tmp_path: Path,
) -> None:
    """By the printed commands, on another broker, server and directory."""
    backing_up, restoring = sections((ROOT / "docs" / "backup.md").read_text())
    old, new = tmp_path / "old", tmp_path / "new"
    papers = []
    for number in range(2):
        papers.append(tmp_path / f"paper-{number}.pdf")
        papers[-1].write_bytes(sample(number).content)

    at_home(bare, old, empty_postgres_url)
    bare.ok("db", "upgrade")
    bare.ok("topology", "apply")
    with system(bare):
        sent = bare.ok("documents", "upload", *map(str, papers), "--wait").split()[::2]
        text = bare.json("documents", "result", sent[0], "--text")["pages"][0]["text"]
    waiting = bare.publish_all({"n": n} for n in range(FEW))
    (old / "backup").mkdir()
    dumped = {"LEDGER": as_printed(empty_postgres_url)}
    assert run_printed("pg_dump", backing_up, old, dumped) == 1
    assert run_printed(r"cp -a \.switchyard/files", backing_up, old, {}) == 1
    after_the_backup = bare.publish(n=FEW)

    server = postgres_server.create_database()
    at_home(bare, new, server)
    (old / "backup").rename(new / "backup")
    (old / "ledger.dump").rename(new / "ledger.dump")
    restored = {"LEDGER": as_printed(server)}
    assert run_printed("mkdir|pg_restore|cp -a", restoring, new, restored) == 3
    with fresh_vhost(broker310.node, broker310.version, "classic") as broker:
        move_to(bare, broker)
        for printed in re.findall("^jobctl ([^#\n]*)", restoring, flags=re.MULTILINE)[:3]:
            bare.ok(*printed.split())
        # Nobody works the jobs yet.
        found = json.loads(bare.run("doctor", "--json").stdout)
        assert {each["name"] for each in found if each["status"] == "wrong"} <= UNWORKED
        with system(bare):
            for job_id in waiting:
                bare.ok("jobs", "watch", job_id)
            words = " ".join(text.split()[:8])
            assert bare.json("documents", "result", sent[0], "--text")["pages"][0]["text"] == text
            assert bare.json("search", words) == []
            (again,) = re.findall("^jobctl (backfill [^\n]*)", restoring, flags=re.MULTILINE)
            bare.ok(*again.split(), "--watch")
            found = {each["document_id"] for each in bare.json("search", words)}
            assert sent[0] in found
        assert "no job" in bare.fails("jobs", "show", after_the_backup)


def as_printed(url: str) -> str:
    """What the page calls $LEDGER."""
    return url.replace("+asyncpg", "")


def test_bad_requests_are_told(jobctl: CommandLine) -> None:
    assert "choose one of hot" in jobctl.fails("jobs", "republish", "--lane", "nope", code=2)
    publish(jobctl)
    assert "give --yes" in jobctl.fails("jobs", "republish", code=2)

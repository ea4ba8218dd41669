"""The steps of docs/backup.md: after the loss of a broker, and on new machines from a backup."""

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
PROCESS_CHECKS = {"consumers", "scheduler", "workers"}
"""Checks of the doctor that are wrong without running processes."""
API_RETRIES = 8
"""Retries until an API that has just been started answers: 50 s in all."""


def publish_old_jobs(jobctl: CommandLine, jobs: int = FEW) -> list[str]:
    """Publish jobs and backdate them by a minute. The scheduler leaves newer ones alone, as they
    may be on their way to the broker."""
    ids = jobctl.publish_all({"n": n} for n in range(jobs))
    with closing(sqlite3.connect(jobctl.ledger_file)) as ledger, ledger:
        ledger.execute("UPDATE jobs SET updated_at = updated_at - 60")
    return ids


def use_broker(jobctl: CommandLine, broker: LocalNode | TestBroker) -> None:
    """Let the command line use another broker, as an operator does who starts a new one."""
    jobctl.environment |= {
        "JOBS_AMQP_URL": broker.amqp_url,
        "JOBS_MANAGEMENT_URL": broker.management_url,
    }


@pytest.mark.long  # like the test below, with the old ledger and more jobs
def test_a_lost_broker_loses_no_job(
    jobctl: CommandLine, own_node: Callable[..., LocalNode]
) -> None:
    ids = publish_old_jobs(jobctl, MANY)
    use_broker(jobctl, own_node())
    jobctl.ok("topology", "apply")
    assert f"{MANY} jobs are published again" in jobctl.ok("jobs", "republish", "--yes")
    with jobctl.started("scheduler"), jobctl.worker():
        for job_id in ids:
            jobctl.ok("jobs", "watch", job_id)
    assert [jobctl.json("jobs", "show", job_id)["timeline"] for job_id in ids] == [[]] * MANY
    assert "nothing to publish again" in jobctl.run("jobs", "republish", "--yes").stderr


def test_a_job_that_is_published_again_and_still_on_the_broker_runs_once(
    jobctl: CommandLine,
) -> None:
    ids = publish_old_jobs(jobctl)
    jobctl.ok("jobs", "republish", "--lane", "hot", "--yes")
    with jobctl.started("scheduler"), jobctl.worker():
        for job_id in ids:
            jobctl.ok("jobs", "watch", job_id)
    # The timeline has only attempts that did not succeed: the first one did.
    assert [jobctl.json("jobs", "show", job_id)["timeline"] for job_id in ids] == [[]] * FEW


@pytest.mark.parametrize(
    "jobs", [FEW, pytest.param(MANY, marks=(pytest.mark.long, pytest.mark.timeout(300)))]
)
def test_everything_is_restored_from_a_copy_on_a_new_broker(
    jobctl: CommandLine, broker310: TestBroker, tmp_path: Path, jobs: int
) -> None:
    """For jobs, an empty virtual host is a new broker; the test above has a new node."""
    ids = publish_old_jobs(jobctl, jobs)
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    data = Path(jobctl.environment["JOBS_DATA_DIR"])
    with (
        closing(sqlite3.connect(data / "ledger.db")) as ledger,
        closing(sqlite3.connect(copy / "ledger.db")) as target,
    ):
        ledger.backup(target)
    jobctl.environment["JOBS_DATA_DIR"] = str(copy)
    with fresh_vhost(broker310.node, broker310.version, "classic") as new_broker:
        use_broker(jobctl, new_broker)
        jobctl.ok("db", "upgrade")
        jobctl.ok("topology", "apply")
        jobctl.ok("system", "adopt", "--yes")
        assert f"{jobs} jobs are published again" in jobctl.ok("jobs", "republish", "--yes")
        with jobctl.started("scheduler"), jobctl.worker():
            for job_id in ids:
                jobctl.ok("jobs", "watch", job_id)
        assert [jobctl.json("jobs", "show", job_id)["timeline"] for job_id in ids] == [[]] * jobs
        assert "nothing to publish again" in jobctl.run("jobs", "republish", "--yes").stderr


def test_jobs_lost_and_repeated_by_a_restore_are_counted_and_reconciled(
    jobctl: CommandLine, tmp_path: Path
) -> None:
    waiting = publish_old_jobs(jobctl)
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
    counts = jobctl.json("backup", "reconcile", "--dry-run")
    assert counts == expected | {"done": None}
    assert "give --yes" in jobctl.fails("backup", "reconcile", code=2)
    result = jobctl.json("backup", "reconcile", "--yes")["done"]
    assert result["republished"] == FEW
    with jobctl.started("scheduler"), jobctl.worker():
        assert "stop them first" in jobctl.fails("backup", "reconcile", "--dry-run")
        for job_id in (*waiting, *unknown):
            jobctl.until_state(job_id, "succeeded")
        jobctl.until_state(dead, "succeeded")
        (follower,) = jobctl.json("jobs", "list", "--parent", dead)
        jobctl.until_state(follower["job_id"], "dead")
    assert jobctl.json("backup", "reconcile", "--dry-run")["lost"] == 0


def test_copied_files_are_restored_to_their_paths_in_a_new_directory(tmp_path: Path) -> None:
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
    """Return the sections about backing up PostgreSQL and about restoring everything."""
    by_title = dict(section.split("\n", 1) for section in page.split("\n## "))
    return by_title["PostgreSQL"], by_title["Restore everything, on new machines"]


def copy_files(section: str, directory: Path) -> None:
    """Run the mkdir and cp commands of a section, as printed."""
    assert run_printed(r"mkdir|cp", section, directory, {}) >= 2


def run_printed(names: str, section: str, directory: Path, environment: dict[str, str]) -> int:
    """Run the commands of these names in a section, as printed; return how many there are."""
    commands = re.findall(rf"^(?:{names}) .*$", section, flags=re.MULTILINE)
    for command in commands:
        subprocess.run(command, shell=True, cwd=directory, check=True, env=os.environ | environment)
    return len(commands)


@contextmanager
def running_system(jobctl: CommandLine) -> Iterator[None]:
    """Run scheduler, workers and API of one machine."""
    with ExitStack() as running:
        running.enter_context(jobctl.started("scheduler"))
        running.enter_context(jobctl.started("worker", "all"))
        running.enter_context(jobctl.started("api"))
        with Client(jobctl.environment["JOBS_API_URL"], retries=API_RETRIES) as client:
            client.ready()
        yield


def use_machine(jobctl: CommandLine, directory: Path, ledger: str) -> None:
    """Let the command line work as on another machine, with its own directory and database."""
    directory.mkdir()
    port = str(free_port())
    jobctl.environment |= {
        "JOBS_DATA_DIR": str(directory / ".switchyard"),
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
    """Follow the printed commands, with another broker, server and directory."""
    backing_up, restoring = sections((ROOT / "docs" / "backup.md").read_text())
    old, new = tmp_path / "old", tmp_path / "new"
    papers = []
    for number in range(2):
        papers.append(tmp_path / f"paper-{number}.pdf")
        papers[-1].write_bytes(sample(number).content)

    use_machine(bare, old, empty_postgres_url)
    bare.ok("db", "upgrade")
    bare.ok("topology", "apply")
    with running_system(bare):
        document_ids = bare.ok("documents", "upload", *map(str, papers), "--wait").split()[::2]
        first_page = bare.json("documents", "result", document_ids[0], "--text")["pages"][0]["text"]
    waiting = bare.publish_all({"n": n} for n in range(FEW))
    (old / "backup").mkdir()
    backup_variables = {"LEDGER": ledger_variable(empty_postgres_url)}
    assert run_printed("pg_dump", backing_up, old, backup_variables) == 1
    assert run_printed(r"cp -a \.switchyard/files", backing_up, old, {}) == 1
    published_after_backup = bare.publish(n=FEW)

    new_url = postgres_server.create_database()
    use_machine(bare, new, new_url)
    (old / "backup").rename(new / "backup")
    (old / "ledger.dump").rename(new / "ledger.dump")
    restore_variables = {"LEDGER": ledger_variable(new_url)}
    assert run_printed("mkdir|pg_restore|cp -a", restoring, new, restore_variables) == 3
    with fresh_vhost(broker310.node, broker310.version, "classic") as broker:
        use_broker(bare, broker)
        for printed in re.findall("^jobctl ([^#\n]*)", restoring, flags=re.MULTILINE)[:3]:
            bare.ok(*printed.split())
        # No process runs yet.
        checks = json.loads(bare.run("doctor", "--json").stdout)
        assert {check["name"] for check in checks if check["status"] == "wrong"} <= PROCESS_CHECKS
        with running_system(bare):
            for job_id in waiting:
                bare.ok("jobs", "watch", job_id)
            words = " ".join(first_page.split()[:8])
            assert (
                bare.json("documents", "result", document_ids[0], "--text")["pages"][0]["text"]
                == first_page
            )
            assert bare.json("search", words) == []
            (backfill_command,) = re.findall(
                "^jobctl (backfill [^\n]*)", restoring, flags=re.MULTILINE
            )
            bare.ok(*backfill_command.split(), "--watch")
            found_ids = {hit["document_id"] for hit in bare.json("search", words)}
            assert document_ids[0] in found_ids
        assert "no job" in bare.fails("jobs", "show", published_after_backup)


def ledger_variable(url: str) -> str:
    """Return the value of $LEDGER in the page's commands."""
    return url.replace("+asyncpg", "")


def test_a_bad_republish_command_is_refused(jobctl: CommandLine) -> None:
    assert "choose one of hot" in jobctl.fails("jobs", "republish", "--lane", "nope", code=2)
    publish_old_jobs(jobctl)
    assert "give --yes" in jobctl.fails("jobs", "republish", code=2)

"""Each outage is caused for real: the doctor names it, and following its remedy ends it."""

import asyncio
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from switchyard.broker.wire.connection import connected
from switchyard.cli.system.free_ports import free_port
from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.engine.ledger import Ledger
from tests.acceptance.conftest import JOBS_MODULE, CommandLine
from tests.acceptance.doctor import MAX_WAIT, commands, findings, until_found, until_gone
from tests.support.brokers import TestBroker
from tests.support.small_disk import SIZE_MIB, small_disk
from tests.support.small_disk import fill as fill_disk

__all__ = ["small_disk"]


def publish_jobs(jobctl: CommandLine, count: int, key: str = "hot.work") -> None:
    lines = "".join(json.dumps({"n": n}) + "\n" for n in range(count))
    jobctl.run("publish", key, "--payload", "-", stdin=lines)


# --- the broker -----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("alarm", "finding"),
    [
        (("set_vm_memory_high_watermark", "0.0001"), "alarm-memory"),
        pytest.param(("set_disk_free_limit", "1000000GB"), "alarm-disk", marks=pytest.mark.long),
    ],
)
def test_an_alarm_of_the_broker_is_found(
    jobctl: CommandLine,
    own_node: Callable[..., LocalNode],
    alarm: tuple[str, ...],
    finding: str,
) -> None:
    node = own_node()
    jobctl.environment |= {
        "JOBS_AMQP_URL": node.amqp_url,
        "JOBS_MANAGEMENT_URL": node.management_url,
    }
    jobctl.ok("topology", "apply")
    node.rabbitmqctl(*alarm)
    checks = until_found(jobctl, finding)

    command = next(words for words in commands(checks[finding], "rabbitmqctl") if alarm[0] in words)
    node.rabbitmqctl(*command[1:])
    until_gone(jobctl, finding)


def test_a_wrong_password_is_found(jobctl: CommandLine, broker310: TestBroker) -> None:
    password = broker310.node.password
    correct_url = jobctl.environment["JOBS_AMQP_URL"]
    jobctl.environment["JOBS_AMQP_URL"] = correct_url.replace(password, "wrong")
    jobctl.environment["JOBS_RABBITMQCTL"] = "docker compose exec rabbitmq rabbitmqctl"
    remedy = findings(jobctl)["broker-refuses"]["remedy"]
    assert "JOBS_AMQP_URL" in remedy
    assert "`docker compose exec rabbitmq rabbitmqctl change_password " in remedy
    jobctl.environment["JOBS_AMQP_URL"] = correct_url
    assert "broker-refuses" not in findings(jobctl)


def test_the_wrong_profile_is_found(jobctl: CommandLine, broker43_quorum: TestBroker) -> None:
    jobctl.environment |= {
        "JOBS_AMQP_URL": broker43_quorum.amqp_url,
        "JOBS_MANAGEMENT_URL": broker43_quorum.management_url,
        "JOBS_PROFILE": "quorum",
    }
    jobctl.ok("topology", "apply")
    jobctl.environment["JOBS_PROFILE"] = "classic"
    check = findings(jobctl)["profile-wrong"]
    assert commands(check, "jobctl") == [["jobctl", "topology", "migrate", "--to", "classic"]]
    assert "`jobctl topology migrate --to classic`" in jobctl.fails("up")
    ((_, setting),) = commands(check, "export")
    name, _, value = setting.partition("=")
    jobctl.environment[name] = value
    checks = findings(jobctl)
    assert not {"profile-wrong", "topology-other", "topology-missing"} & checks.keys()


async def test_a_deleted_queue_and_a_deleted_policy_are_found(
    jobctl: CommandLine, broker310: TestBroker
) -> None:
    await broker310.management.delete("/queues/{vhost}/hot.tester")
    await broker310.management.delete("/policies/{vhost}/jobs.lane.hot")
    check = findings(jobctl)["topology-missing"]
    assert "hot.tester" in check["detail"]
    assert "policy jobs.lane.hot is missing" in check["detail"]
    ((_, *command),) = commands(check, "jobctl")
    jobctl.ok(*command)
    until_gone(jobctl, "topology-missing")


@pytest.mark.parametrize("deleted_path", ["hot.tester", "hot.tester/contents"])
async def test_jobs_of_an_emptied_or_deleted_queue_are_found(
    jobctl: CommandLine, broker310: TestBroker, deleted_path: str
) -> None:
    publish_jobs(jobctl, 3)
    with closing(sqlite3.connect(jobctl.ledger_file)) as database, database:
        database.execute("UPDATE jobs SET updated_at = updated_at - 100")
    assert "jobs-missing" not in findings(jobctl)
    await broker310.management.delete(f"/queues/{{vhost}}/{deleted_path}")
    if deleted_path == "hot.tester":
        # They can't be published again before the queue exists.
        assert "jobs-missing" not in findings(jobctl)
        jobctl.ok("topology", "apply")
    check = until_found(jobctl, "jobs-missing")["jobs-missing"]
    assert "0 of 3 jobs of hot.tester" in check["detail"]
    ((_, *command),) = commands(check, "jobctl")
    jobctl.ok(*command, "--yes")
    with jobctl.worker(), jobctl.started("scheduler"):
        for job in json.loads(jobctl.ok("jobs", "list", "--json")):
            jobctl.until_state(job["job_id"], "succeeded")
        until_gone(jobctl, "jobs-missing", "queue-unworked")


async def test_jobs_of_a_deleted_retry_queue_are_found(
    jobctl: CommandLine, broker310: TestBroker
) -> None:
    jobctl.environment["JOBS_RETRY_DELAYS"] = "300"
    jobctl.ok("topology", "apply")
    with jobctl.worker() as worker:
        job_id = jobctl.publish("hot.unlucky")
        jobctl.until_state(job_id, "retrying")
        worker.terminate()  # not killed: it acknowledges the job before it ends
        worker.wait(MAX_WAIT)
    with closing(sqlite3.connect(jobctl.ledger_file)) as database, database:
        database.execute("UPDATE jobs SET updated_at = updated_at - 100")
    assert "jobs-missing" not in findings(jobctl)
    await broker310.management.delete("/queues/{vhost}/jobs.retry.300s")
    checks = until_found(jobctl, "jobs-missing")
    assert "0 of 1 job of hot.tester" in checks["jobs-missing"]["detail"]
    for _, *command in (
        *commands(checks["topology-missing"], "jobctl"),
        *commands(checks["jobs-missing"], "jobctl"),
    ):
        jobctl.ok(*command, *(["--yes"] if "republish" in command else []))
    with jobctl.started("scheduler"), jobctl.worker():
        jobctl.until_state(job_id, "succeeded")
        until_gone(jobctl, "jobs-missing")


async def test_jobs_that_wait_elsewhere_on_the_broker_are_not_missing(jobctl: CommandLine) -> None:
    """One waits in a retry queue, another is a dead letter that is not indexed yet."""
    jobctl.environment["JOBS_RETRY_DELAYS"] = "300"
    await asyncio.to_thread(jobctl.ok, "topology", "apply")
    await asyncio.to_thread(publish_jobs, jobctl, 2)
    with closing(sqlite3.connect(jobctl.ledger_file)) as database, database:
        database.execute("UPDATE jobs SET updated_at = updated_at - 100")
    async with connected(jobctl.environment["JOBS_AMQP_URL"], "moves jobs") as connection:
        channel = await connection.channel()
        queue = await channel.get_queue("hot.tester", ensure=False)
        retry_queue = await channel.get_queue("jobs.retry.300s", ensure=False)
        for name in (retry_queue.name, "jobs.dead"):
            message = await queue.get()
            await channel.default_exchange.publish(message, name)
            await message.ack()
        assert "jobs-missing" not in await asyncio.to_thread(findings, jobctl)
        await retry_queue.purge()
        assert "jobs-missing" in await asyncio.to_thread(findings, jobctl)


# --- lanes and workers ----------------------------------------------------------------------------


@pytest.mark.long  # until the worker counts as frozen, and a thousand jobs have run
def test_a_full_lane_whose_only_worker_is_frozen_is_found(jobctl: CommandLine) -> None:
    with jobctl.worker() as frozen:
        os.killpg(frozen.pid, signal.SIGSTOP)
        publish_jobs(jobctl, 1_010)
        checks = until_found(jobctl, "lane-full", "queue-frozen", "workers-silent")
        assert ["jobctl", "worker", "tester"] in commands(checks["queue-frozen"], "jobctl")
        resume, kill = commands(checks["workers-silent"], "kill")
        assert resume == ["kill", "-CONT", str(frozen.pid)]
        assert kill == ["kill", "-9", str(frozen.pid)]
        subprocess.run(kill, check=True)
        frozen.wait()
        (_, *worker) = commands(findings(jobctl)["queue-unworked"], "jobctl")[0]
        with jobctl.started(*worker):
            until_gone(
                jobctl,
                "lane-full",
                "lane-filling",
                "queue-frozen",
                "queue-unworked",
                "workers-silent",
            )


async def test_a_worker_without_consumers_and_a_stalled_queue_are_found(
    jobctl: CommandLine,
) -> None:
    """A defect of ours would look so; here a foreign consumer takes one job and no more."""
    url = jobctl.environment["JOBS_AMQP_URL"]
    async with connected(url, "takes nothing") as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=1)
        queue = await channel.get_queue("hot.tester", ensure=False)
        await queue.consume(_hold)
        await asyncio.to_thread(publish_jobs, jobctl, 2)
        with closing(sqlite3.connect(jobctl.ledger_file)) as database, database:
            database.execute("UPDATE jobs SET queued_at = queued_at - 100")
            for worker, age in (("idle", 60), ("just started", 0)):
                database.execute(
                    "INSERT INTO workers (worker_id, kinds, lanes, host, pid, concurrency, "
                    "started_at, beat, beat_at) VALUES (?, '[\"tester\"]', '[\"hot\"]', 'here', "
                    "1, 4, unixepoch() - ?, 1, unixepoch() + 3600)",
                    (worker, age),
                )
        expected = ("consumer-lost", "queue-stalled")
        checks = await asyncio.to_thread(until_found, jobctl, *expected)
    for name in expected:  # the process of that id may be another one
        assert "knows whether process 1 on here is still the worker" in checks[name]["remedy"]
        assert not commands(checks[name], "kill")
    assert "just started" not in checks["consumer-lost"]["detail"]
    assert "hot.tester" in checks["queue-stalled"]["detail"]
    with jobctl.worker():
        await asyncio.to_thread(until_gone, jobctl, "queue-stalled")


async def _hold(message: object) -> None:
    """Do not acknowledge or return the message."""


def test_a_ledger_that_all_users_can_read_is_found(jobctl: CommandLine) -> None:
    path = jobctl.ledger_file
    closed_folders = [folder for folder in path.parents if not folder.stat().st_mode & 0o001]
    try:
        for folder in closed_folders:
            folder.chmod(folder.stat().st_mode | 0o001)
        path.chmod(0o644)
        (_, *options), *_ = commands(findings(jobctl)["files-readable"], "chmod")
        subprocess.run(["chmod", *options], check=True)
        assert "files-readable" not in findings(jobctl)
    finally:
        for folder in closed_folders:
            folder.chmod(folder.stat().st_mode & ~0o001)


@pytest.mark.long
def test_many_jobs_that_died_just_now_are_found(jobctl: CommandLine) -> None:
    with jobctl.worker(), jobctl.started("scheduler"):
        lines = "".join(json.dumps({"n": n, "fail": True}) + "\n" for n in range(20))
        jobctl.run("publish", "hot.work", "--payload", "-", stdin=lines)
        checks = until_found(jobctl, "dead-growing")
    assert "jobctl dead groups" in checks["dead-growing"]["remedy"]
    assert "wait for somebody" in checks["dead-growing"]["detail"]
    assert "20 of them of type work with " in checks["dead-growing"]["detail"]
    (command,) = commands(checks["dead-growing"], "jobctl")[1:]
    assert command[-1] != "ID"
    assert "dead-waiting" not in checks  # the same letters are reported once


def test_dead_letters_that_a_restored_ledger_does_not_list_are_found(
    jobctl: CommandLine, dead_ids: list[str]
) -> None:
    assert len(jobctl.json("dead", "list")) == len(dead_ids)
    with closing(sqlite3.connect(jobctl.ledger_file)) as ledger, ledger:
        ledger.execute("DELETE FROM dead_letters WHERE id <> ?", dead_ids[:1])
    warning = jobctl.run("dead", "list").stderr
    assert "jobs.dead has 2 messages more than the ledger lists" in warning
    check = findings(jobctl)["dead-unlisted"]
    assert "2 messages more" in check["detail"]
    assert commands(check, "jobctl") == [["jobctl", "dead", "index"]]
    index_counts = {"messages": 3, "letters": 3, "dropped": 0}
    assert jobctl.json("dead", "index") == index_counts
    assert {letter["id"] for letter in jobctl.json("dead", "list")} == set(dead_ids)
    assert "dead-unlisted" not in findings(jobctl)


@pytest.mark.long
def test_the_doctor_does_not_advise_to_remove_jobs_of_a_missing_module(jobctl: CommandLine) -> None:
    job_id = jobctl.publish()
    jobctl.environment["JOBS_MODULES"] = "no_such_module"
    checks = findings(jobctl)
    assert "JOBS_MODULES" in checks["module-missing"]["remedy"]
    check = checks["types-unknown"]
    assert "1 job waits in hot.tester" in check["detail"]
    assert "delete" not in check["remedy"]
    assert "hot.tester" not in checks.get("leftover", {}).get("remedy", "")
    jobctl.environment["JOBS_MODULES"] = JOBS_MODULE
    (_, *worker) = commands(check, "jobctl")[0]
    with jobctl.started(*worker):
        jobctl.until_state(job_id, "succeeded")
    assert not {"module-missing", "types-unknown"} & findings(jobctl).keys()


@pytest.mark.long
def test_an_empty_leftover_queue_is_removed_by_the_printed_command(
    jobctl: CommandLine, broker310: TestBroker
) -> None:
    jobctl.environment["JOBS_MODULES"] = ""
    for command in commands(findings(jobctl)["leftover"], "rabbitmqctl"):
        broker310.node.rabbitmqctl(*command[1:])
    until_gone(jobctl, "leftover")


@pytest.mark.long
def test_a_job_type_that_times_out_is_found(jobctl: CommandLine) -> None:
    jobctl.environment |= {
        "JOBS_MODULES": f"{JOBS_MODULE},tests.acceptance.brief_jobs",
        "BRIEF_TIMEOUT": "0.2",
    }
    jobctl.ok("topology", "apply")
    with jobctl.worker():
        job_id = jobctl.publish("hot.brief", seconds=1)
        jobctl.until_state(job_id, "dead")
    check = findings(jobctl)["type-times-out"]
    assert "1 job of brief ran into the time limit of 0.2 s" in check["detail"]
    jobctl.environment["BRIEF_TIMEOUT"] = "30"
    with jobctl.worker():
        for _, *command in commands(check, "jobctl"):
            jobctl.ok(*command)
        jobctl.until_state(job_id, "succeeded")
        assert "type-times-out" not in findings(jobctl)


# --- the ledger, the host -------------------------------------------------------------------------


def test_a_locked_ledger_is_found_within_seconds(jobctl: CommandLine) -> None:
    file = jobctl.ledger_file
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    check = findings(jobctl)["ledger-locked"]
    assert time.monotonic() - began < 10
    assert f"process {os.getpid()} (" in check["remedy"]
    assert f"`kill {os.getpid()}` only where it hangs" in check["remedy"]
    connection.close()
    until_gone(jobctl, "ledger-locked")


def test_a_ledger_that_can_not_be_reached_is_found(jobctl: CommandLine) -> None:
    publish_jobs(jobctl, 1)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # not listening: refused
        port = bound.getsockname()[1]
        url = f"postgresql+asyncpg://u:p@127.0.0.1:{port}/jobs"
        jobctl.environment["JOBS_DATABASE_URL"] = url
        checks = findings(jobctl)
        assert "JOBS_DATABASE_URL" in checks["ledger-away"]["remedy"]
        assert "queue-unworked" not in checks, (
            "workers wait for the ledger, and so would another one"
        )
    del jobctl.environment["JOBS_DATABASE_URL"]
    checks = findings(jobctl)
    assert "ledger-away" not in checks
    assert "queue-unworked" in checks


def test_a_full_disk_is_found(jobctl: CommandLine, small_disk: Path) -> None:
    jobctl.environment["JOBS_STORAGE_URL"] = small_disk.as_uri()
    assert not {"disk-full", "disk-low"} & findings(jobctl).keys()
    (small_disk / "large").write_bytes(b"\0" * (SIZE_MIB - 8) * 1024 * 1024)
    check = findings(jobctl)["disk-full"]
    assert str(small_disk) in check["detail"]
    for command in re.findall(r"`([^`]+)`", check["remedy"]):
        completed = subprocess.run(command, shell=True, check=True, capture_output=True, text=True)
        assert str(small_disk) in completed.stdout
    (small_disk / "large").unlink()
    until_gone(jobctl, "disk-full")


def test_a_full_disk_is_listed_before_the_outages_that_it_causes(
    jobctl: CommandLine, small_disk: Path
) -> None:
    (small_disk / "data" / "files").mkdir(parents=True)
    jobctl.environment |= {
        "JOBS_STORAGE_URL": (small_disk / "data" / "files").as_uri(),
        "JOBS_INDEX_URL": str(small_disk / "data" / "index"),
        "JOBS_AMQP_URL": f"amqp://guest:guest@127.0.0.1:{free_port()}/",
    }
    fill_disk(small_disk)
    checks = [
        check for check in json.loads(jobctl.run("doctor", "--json").stdout) if check["finding"]
    ]
    finding_names = [check["finding"] for check in checks]
    assert finding_names[:3] == ["disk-full", "broker-away", "storage-away"]
    assert finding_names.count("disk-full") == 1, "both folders are on one disk"
    disk, broker, storage = checks[:3]
    assert disk["detail"].endswith(f" at {small_disk / 'data'}")
    first_step = "first make room, as reported above of the disk"
    assert broker["remedy"].startswith(first_step)
    assert broker["remedy"].endswith(
        "then start the broker, or correct host and port in JOBS_AMQP_URL"
    )
    assert storage["remedy"].startswith(first_step)


@pytest.mark.long
def test_a_clock_that_is_two_hours_ahead_is_found(jobctl: CommandLine) -> None:
    def find_skewed(**environment: str) -> dict[str, Any]:
        jobctl.environment |= environment
        completed = jobctl.run_skewed(7200, "doctor", "--json")
        checks = json.loads(completed.stdout)
        return {check["finding"]: check for check in checks if check["finding"]}

    assert "2 h ahead of the ledger's" in find_skewed()["clock-ledger"]["detail"]
    assert "clock-broker" not in find_skewed()
    assert not {"clock-ledger", "clock-broker"} & findings(jobctl).keys()
    # Without a ledger, this host's clock is compared with the broker's.
    without_ledger = find_skewed(JOBS_DATABASE_URL="mysql://nowhere/")
    assert "2 h behind" in without_ledger["clock-broker"]["detail"]


# --- jobs ---------------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_job_that_runs_on_after_its_cancel_is_found(jobctl: CommandLine) -> None:
    with jobctl.worker():
        job_id = jobctl.publish(seconds=50)
        jobctl.until_state(job_id, "running")
        url = f"sqlite+aiosqlite:///{jobctl.environment['JOBS_DATA_DIR']}/ledger.db"
        async with await Ledger.open(url) as ledger:  # without a command to its worker
            await ledger.jobs.cancel(job_id, time.time() - 40)
        check = findings(jobctl)["cancel-unheeded"]
        assert f"work {job_id} on" in check["detail"]
        assert "cancel asked" in jobctl.ok("jobs", "show", job_id)
        (command,) = commands(check, "jobctl")
        jobctl.ok(*command[1:])
        assert jobctl.state(job_id) == "cancelled"
        until_gone(jobctl, "cancel-unheeded")


# --- the last line --------------------------------------------------------------------------------


@pytest.mark.long
def test_the_doctor_does_not_say_that_all_is_well_beside_a_warning(jobctl: CommandLine) -> None:
    jobctl.ok("topology", "apply")  # marks the broker as this ledger's
    with jobctl.started("scheduler"), jobctl.worker():
        jobctl.until_state(jobctl.publish(fail=True), "dead")
        deadline = time.monotonic() + MAX_WAIT
        while set(findings(jobctl)) != {"dead-waiting"}:
            assert time.monotonic() < deadline, findings(jobctl)
        output = jobctl.ok("doctor")
        assert "Nothing is wrong; worth a look: dead letters." in output
        assert "Everything is as it must be" not in output

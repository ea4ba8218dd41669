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


def fill(jobctl: CommandLine, number: int, key: str = "hot.work") -> None:
    lines = "".join(json.dumps({"n": n}) + "\n" for n in range(number))
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
def test_an_alarm(
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
    found = until_found(jobctl, finding)

    ours = next(each for each in commands(found[finding], "rabbitmqctl") if alarm[0] in each)
    node.rabbitmqctl(*ours[1:])
    until_gone(jobctl, finding)


def test_a_wrong_password(jobctl: CommandLine, broker310: TestBroker) -> None:
    password = broker310.node.password
    right = jobctl.environment["JOBS_AMQP_URL"]
    jobctl.environment["JOBS_AMQP_URL"] = right.replace(password, "wrong")
    jobctl.environment["JOBS_RABBITMQCTL"] = "docker compose exec rabbitmq rabbitmqctl"
    remedy = findings(jobctl)["broker-refuses"]["remedy"]
    assert "JOBS_AMQP_URL" in remedy
    assert "`docker compose exec rabbitmq rabbitmqctl change_password " in remedy
    jobctl.environment["JOBS_AMQP_URL"] = right
    assert "broker-refuses" not in findings(jobctl)


def test_the_wrong_profile(jobctl: CommandLine, broker43_quorum: TestBroker) -> None:
    jobctl.environment |= {
        "JOBS_AMQP_URL": broker43_quorum.amqp_url,
        "JOBS_MANAGEMENT_URL": broker43_quorum.management_url,
        "JOBS_PROFILE": "quorum",
    }
    jobctl.ok("topology", "apply")
    jobctl.environment["JOBS_PROFILE"] = "classic"
    wrong = findings(jobctl)["profile-wrong"]
    assert commands(wrong, "jobctl") == [["jobctl", "topology", "migrate", "--to", "classic"]]
    assert "`jobctl topology migrate --to classic`" in jobctl.fails("up")
    ((_, setting),) = commands(wrong, "export")
    name, _, value = setting.partition("=")
    jobctl.environment[name] = value
    found = findings(jobctl)
    assert not {"profile-wrong", "topology-other", "topology-missing"} & found.keys()


async def test_a_deleted_queue_and_a_deleted_policy(
    jobctl: CommandLine, broker310: TestBroker
) -> None:
    await broker310.management.delete("/queues/{vhost}/hot.tester")
    await broker310.management.delete("/policies/{vhost}/jobs.lane.hot")
    found = findings(jobctl)["topology-missing"]
    assert "hot.tester" in found["detail"]
    assert "policy jobs.lane.hot is missing" in found["detail"]
    ((_, *command),) = commands(found, "jobctl")
    jobctl.ok(*command)
    until_gone(jobctl, "topology-missing")


@pytest.mark.parametrize("away", ["hot.tester", "hot.tester/contents"])
async def test_jobs_of_a_queue_that_somebody_emptied(
    jobctl: CommandLine, broker310: TestBroker, away: str
) -> None:
    fill(jobctl, 3)
    with closing(sqlite3.connect(jobctl.ledger_file)) as database, database:
        database.execute("UPDATE jobs SET updated_at = updated_at - 100")
    assert "jobs-missing" not in findings(jobctl)
    await broker310.management.delete(f"/queues/{{vhost}}/{away}")
    if away == "hot.tester":
        assert "jobs-missing" not in findings(jobctl)  # they have nowhere to go yet
        jobctl.ok("topology", "apply")
    found = until_found(jobctl, "jobs-missing")["jobs-missing"]
    assert "0 of 3 jobs of hot.tester" in found["detail"]
    ((_, *command),) = commands(found, "jobctl")
    jobctl.ok(*command, "--yes")
    with jobctl.worker(), jobctl.started("scheduler"):
        for job in json.loads(jobctl.ok("jobs", "list", "--json")):
            jobctl.until_state(job["job_id"], "succeeded")
        until_gone(jobctl, "jobs-missing", "queue-unworked")


async def test_jobs_that_waited_for_their_next_attempt_in_a_queue_that_somebody_deleted(
    jobctl: CommandLine, broker310: TestBroker
) -> None:
    jobctl.environment["JOBS_RETRY_DELAYS"] = "300"
    jobctl.ok("topology", "apply")
    with jobctl.worker() as worker:
        job_id = jobctl.publish("hot.unlucky")
        jobctl.until_state(job_id, "retrying")
        worker.terminate()  # in good order: killed, it might not have acknowledged the job yet
        worker.wait(MAX_WAIT)
    with closing(sqlite3.connect(jobctl.ledger_file)) as database, database:
        database.execute("UPDATE jobs SET updated_at = updated_at - 100")
    assert "jobs-missing" not in findings(jobctl)
    await broker310.management.delete("/queues/{vhost}/jobs.retry.300s")
    found = until_found(jobctl, "jobs-missing")
    assert "0 of 1 job of hot.tester" in found["jobs-missing"]["detail"]
    for _, *command in (
        *commands(found["topology-missing"], "jobctl"),
        *commands(found["jobs-missing"], "jobctl"),
    ):
        jobctl.ok(*command, *(["--yes"] if "republish" in command else []))
    with jobctl.started("scheduler"), jobctl.worker():
        jobctl.until_state(job_id, "succeeded")
        until_gone(jobctl, "jobs-missing")


async def test_jobs_that_wait_elsewhere_on_the_broker_are_not_missing(jobctl: CommandLine) -> None:
    """One was put off, the letter of another was not read yet."""
    jobctl.environment["JOBS_RETRY_DELAYS"] = "300"
    await asyncio.to_thread(jobctl.ok, "topology", "apply")
    await asyncio.to_thread(fill, jobctl, 2)
    with closing(sqlite3.connect(jobctl.ledger_file)) as database, database:
        database.execute("UPDATE jobs SET updated_at = updated_at - 100")
    async with connected(jobctl.environment["JOBS_AMQP_URL"], "moves jobs") as connection:
        channel = await connection.channel()
        queue = await channel.get_queue("hot.tester", ensure=False)
        put_off = await channel.get_queue("jobs.retry.300s", ensure=False)
        for name in (put_off.name, "jobs.dead"):
            message = await queue.get()
            await channel.default_exchange.publish(message, name)
            await message.ack()
        assert "jobs-missing" not in await asyncio.to_thread(findings, jobctl)
        await put_off.purge()
        assert "jobs-missing" in await asyncio.to_thread(findings, jobctl)


# --- lanes and workers ----------------------------------------------------------------------------


@pytest.mark.long  # until the frozen one is taken for that, and a thousand jobs have run
def test_a_full_lane_whose_only_worker_is_frozen(jobctl: CommandLine) -> None:
    with jobctl.worker() as frozen:
        os.killpg(frozen.pid, signal.SIGSTOP)
        fill(jobctl, 1_010)
        found = until_found(jobctl, "lane-full", "queue-frozen", "workers-silent")
        assert ["jobctl", "worker", "tester"] in commands(found["queue-frozen"], "jobctl")
        go_on, kill = commands(found["workers-silent"], "kill")
        assert go_on == ["kill", "-CONT", str(frozen.pid)]
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


async def test_a_worker_without_consumers_and_a_queue_that_nobody_takes_from(
    jobctl: CommandLine,
) -> None:
    """What a defect of ours would look like; here a foreign consumer takes one job and no more."""
    url = jobctl.environment["JOBS_AMQP_URL"]
    async with connected(url, "takes nothing") as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=1)
        queue = await channel.get_queue("hot.tester", ensure=False)
        await queue.consume(_keep)
        await asyncio.to_thread(fill, jobctl, 2)
        with closing(sqlite3.connect(jobctl.ledger_file)) as database, database:
            database.execute("UPDATE jobs SET queued_at = queued_at - 100")
            for worker, age in (("idle", 60), ("just started", 0)):
                database.execute(
                    "INSERT INTO workers (worker_id, kinds, lanes, host, pid, concurrency, "
                    "started_at, beat, beat_at) VALUES (?, '[\"tester\"]', '[\"hot\"]', 'here', "
                    "1, 4, unixepoch() - ?, 1, unixepoch() + 3600)",
                    (worker, age),
                )
        wanted = ("consumer-lost", "queue-stalled")
        found = await asyncio.to_thread(until_found, jobctl, *wanted)
    for name in wanted:  # it may be anybody's process
        assert "knows whether process 1 on here is still the worker" in found[name]["remedy"]
        assert not commands(found[name], "kill")
    assert "just started" not in found["consumer-lost"]["detail"]
    assert "hot.tester" in found["queue-stalled"]["detail"]
    with jobctl.worker():
        await asyncio.to_thread(until_gone, jobctl, "queue-stalled")


async def _keep(message: object) -> None:
    """Neither acknowledged nor given back."""


def test_a_ledger_that_everybody_can_read(jobctl: CommandLine) -> None:
    path = jobctl.ledger_file
    closed = [each for each in path.parents if not each.stat().st_mode & 0o001]
    try:
        for each in closed:
            each.chmod(each.stat().st_mode | 0o001)
        path.chmod(0o644)
        (_, *options), *_ = commands(findings(jobctl)["files-readable"], "chmod")
        subprocess.run(["chmod", *options], check=True)
        assert "files-readable" not in findings(jobctl)
    finally:
        for each in closed:
            each.chmod(each.stat().st_mode & ~0o001)


@pytest.mark.long
def test_many_jobs_that_died_just_now(jobctl: CommandLine) -> None:
    with jobctl.worker(), jobctl.started("scheduler"):
        lines = "".join(json.dumps({"n": n, "fail": True}) + "\n" for n in range(20))
        jobctl.run("publish", "hot.work", "--payload", "-", stdin=lines)
        found = until_found(jobctl, "dead-growing")
    assert "jobctl dead groups" in found["dead-growing"]["remedy"]
    assert "wait for somebody" in found["dead-growing"]["detail"]
    assert "20 of them of type work with " in found["dead-growing"]["detail"]
    (look,) = commands(found["dead-growing"], "jobctl")[1:]
    assert look[-1] != "ID"
    assert "dead-waiting" not in found  # the same letters are reported once


def test_a_ledger_that_was_set_back_while_the_broker_stayed(
    jobctl: CommandLine, dead_ids: list[str]
) -> None:
    assert len(jobctl.json("dead", "list")) == len(dead_ids)
    with closing(sqlite3.connect(jobctl.ledger_file)) as ledger, ledger:
        ledger.execute("DELETE FROM dead_letters WHERE id <> ?", dead_ids[:1])
    told = jobctl.run("dead", "list").stderr
    assert "jobs.dead has 2 messages more than the ledger lists" in told
    found = findings(jobctl)["dead-unlisted"]
    assert "2 messages more" in found["detail"]
    assert commands(found, "jobctl") == [["jobctl", "dead", "index"]]
    index = {"messages": 3, "letters": 3, "dropped": 0}
    assert jobctl.json("dead", "index") == index
    assert {letter["id"] for letter in jobctl.json("dead", "list")} == set(dead_ids)
    assert "dead-unlisted" not in findings(jobctl)


@pytest.mark.long
def test_jobs_of_a_module_that_is_missing_are_not_to_be_removed(jobctl: CommandLine) -> None:
    job_id = jobctl.publish()
    jobctl.environment["JOBS_MODULES"] = "no_such_module"
    found = findings(jobctl)
    assert "JOBS_MODULES" in found["module-missing"]["remedy"]
    told = found["types-unknown"]
    assert "1 job waits in hot.tester" in told["detail"]
    assert "delete" not in told["remedy"]
    assert "hot.tester" not in found.get("leftover", {}).get("remedy", "")
    jobctl.environment["JOBS_MODULES"] = JOBS_MODULE
    (_, *worker) = commands(told, "jobctl")[0]
    with jobctl.started(*worker):
        jobctl.until_state(job_id, "succeeded")
    assert not {"module-missing", "types-unknown"} & findings(jobctl).keys()


@pytest.mark.long
def test_an_empty_leftover_is_removed_by_the_command_that_is_printed(
    jobctl: CommandLine, broker310: TestBroker
) -> None:
    jobctl.environment["JOBS_MODULES"] = ""
    for command in commands(findings(jobctl)["leftover"], "rabbitmqctl"):
        broker310.node.rabbitmqctl(*command[1:])
    until_gone(jobctl, "leftover")


@pytest.mark.long
def test_a_job_type_that_times_out(jobctl: CommandLine) -> None:
    jobctl.environment |= {
        "JOBS_MODULES": f"{JOBS_MODULE},tests.acceptance.brief_jobs",
        "BRIEF_TIMEOUT": "0.2",
    }
    jobctl.ok("topology", "apply")
    with jobctl.worker():
        job_id = jobctl.publish("hot.brief", seconds=1)
        jobctl.until_state(job_id, "dead")
    told = findings(jobctl)["type-times-out"]
    assert "1 job of brief ran into the time limit of 0.2 s" in told["detail"]
    jobctl.environment["BRIEF_TIMEOUT"] = "30"
    with jobctl.worker():
        for _, *command in commands(told, "jobctl"):
            jobctl.ok(*command)
        jobctl.until_state(job_id, "succeeded")
        assert "type-times-out" not in findings(jobctl)


# --- the ledger, the host -------------------------------------------------------------------------


def test_a_locked_ledger_is_told_within_seconds(jobctl: CommandLine) -> None:
    file = jobctl.ledger_file
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    told = findings(jobctl)["ledger-locked"]
    assert time.monotonic() - began < 10
    assert f"process {os.getpid()} (" in told["remedy"]
    assert f"`kill {os.getpid()}` only where it hangs" in told["remedy"]
    holder.close()
    until_gone(jobctl, "ledger-locked")


def test_a_ledger_that_is_away(jobctl: CommandLine) -> None:
    fill(jobctl, 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening: refused
        port = taken.getsockname()[1]
        url = f"postgresql+asyncpg://u:p@127.0.0.1:{port}/jobs"
        jobctl.environment["JOBS_DATABASE_URL"] = url
        found = findings(jobctl)
        assert "JOBS_DATABASE_URL" in found["ledger-away"]["remedy"]
        assert "queue-unworked" not in found, "workers wait for the ledger, a further one would too"
    del jobctl.environment["JOBS_DATABASE_URL"]
    found = findings(jobctl)
    assert "ledger-away" not in found
    assert "queue-unworked" in found


def test_a_disk_that_is_full(jobctl: CommandLine, small_disk: Path) -> None:
    jobctl.environment["JOBS_STORAGE_URL"] = small_disk.as_uri()
    assert not {"disk-full", "disk-low"} & findings(jobctl).keys()
    (small_disk / "large").write_bytes(b"\0" * (SIZE_MIB - 8) * 1024 * 1024)
    told = findings(jobctl)["disk-full"]
    assert str(small_disk) in told["detail"]
    for command in re.findall(r"`([^`]+)`", told["remedy"]):
        shown = subprocess.run(command, shell=True, check=True, capture_output=True, text=True)
        assert str(small_disk) in shown.stdout
    (small_disk / "large").unlink()
    until_gone(jobctl, "disk-full")


def test_a_full_disk_comes_before_what_it_has_stopped(
    jobctl: CommandLine, small_disk: Path
) -> None:
    (small_disk / "data" / "files").mkdir(parents=True)
    jobctl.environment |= {
        "JOBS_STORAGE_URL": (small_disk / "data" / "files").as_uri(),
        "JOBS_INDEX_URL": str(small_disk / "data" / "index"),
        "JOBS_AMQP_URL": f"amqp://guest:guest@127.0.0.1:{free_port()}/",
    }
    fill_disk(small_disk)
    checks = [each for each in json.loads(jobctl.run("doctor", "--json").stdout) if each["finding"]]
    names = [each["finding"] for each in checks]
    assert names[:3] == ["disk-full", "broker-away", "storage-away"]
    assert names.count("disk-full") == 1, "it is one disk"
    full, broker, storage = checks[:3]
    assert full["detail"].endswith(f" at {small_disk / 'data'}")
    first = "first make room, as reported above of the disk"
    assert broker["remedy"].startswith(first)
    assert broker["remedy"].endswith(
        "then start the broker, or correct host and port in JOBS_AMQP_URL"
    )
    assert storage["remedy"].startswith(first)


@pytest.mark.long
def test_a_clock_that_is_two_hours_ahead(jobctl: CommandLine) -> None:
    def found(**environment: str) -> dict[str, Any]:
        jobctl.environment |= environment
        done = jobctl.run_skewed(7200, "doctor", "--json")
        checks = json.loads(done.stdout)
        return {check["finding"]: check for check in checks if check["finding"]}

    assert "2 h ahead of the ledger's" in found()["clock-ledger"]["detail"]
    assert "clock-broker" not in found()
    assert not {"clock-ledger", "clock-broker"} & findings(jobctl).keys()
    # Without a ledger, it is the broker's clock that this host's is held against.
    without = found(JOBS_DATABASE_URL="mysql://nowhere/")
    assert "2 h behind" in without["clock-broker"]["detail"]


# --- jobs ---------------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_job_that_runs_on_although_it_was_called_off(jobctl: CommandLine) -> None:
    with jobctl.worker():
        job_id = jobctl.publish(seconds=50)
        jobctl.until_state(job_id, "running")
        url = f"sqlite+aiosqlite:///{jobctl.environment['JOBS_DATA_DIR']}/ledger.db"
        async with await Ledger.open(url) as ledger:  # its worker hears nothing of it
            await ledger.jobs.cancel(job_id, time.time() - 40)
        found = findings(jobctl)["cancel-unheeded"]
        assert f"work {job_id} on" in found["detail"]
        assert "cancel asked" in jobctl.ok("jobs", "show", job_id)
        (told,) = commands(found, "jobctl")
        jobctl.ok(*told[1:])
        assert jobctl.state(job_id) == "cancelled"
        until_gone(jobctl, "cancel-unheeded")


# --- the last line --------------------------------------------------------------------------------


@pytest.mark.long
def test_no_all_clear_stands_beside_a_warning(jobctl: CommandLine) -> None:
    jobctl.ok("topology", "apply")  # marks the broker as this ledger's
    with jobctl.started("scheduler"), jobctl.worker():
        jobctl.until_state(jobctl.publish(fail=True), "dead")
        deadline = time.monotonic() + MAX_WAIT
        while set(findings(jobctl)) != {"dead-waiting"}:
            assert time.monotonic() < deadline, findings(jobctl)
        told = jobctl.ok("doctor")
        assert "Nothing is wrong; worth a look: dead letters." in told
        assert "Everything is as it must be" not in told

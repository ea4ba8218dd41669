"""The alert rules in a real Prometheus, which scrapes real processes: quiet where nothing is wrong,
and each fires when what it is about is caused."""

import asyncio
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from pydantic import SecretStr
from sqlalchemy import Connection, text

from switchyard.cli.system.free_ports import free_port
from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.common.settings import Settings
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.records.states import State
from switchyard.services.engine.schedules.entry import ScheduleEntry
from switchyard.services.engine.schedules.service import Schedules
from tests.support.api_server import api_process, environment_of
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.missing import skip_or_fail
from tests.support.system import System, lanes_with, open_system
from tests.support.tcp_proxy import TcpProxy

RULES = Path(__file__).parents[2] / "charts/switchyard/files/rules.yaml"
MAX_WAIT = 90.0
"""Seconds: the rule on hot jobs that wait is about thirty."""


class Prometheus:
    """A server of its own, with the rules as they are but for how long each has to hold, and, where
    that is said, how long the times are over which they look."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def firing(self) -> set[str]:
        alerts = (await self._client.get("/api/v1/alerts")).json()["data"]["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    async def wait_for(self, *names: str) -> None:
        """Return when each of them has fired; what is about a short time may have ended by then."""
        left = set(names)

        async def all_fire() -> bool:
            left.difference_update(await self.firing())
            return not left

        try:
            await eventually(all_fire, MAX_WAIT)
        except AssertionError:
            raise AssertionError(f"{left} do not fire") from None

    async def scraped(self, series: str) -> None:
        """Return once there is such a series."""

        async def is_there() -> bool:
            answer = await self._client.get("/api/v1/query", params={"query": series})
            return bool(answer.json()["data"]["result"])

        await eventually(is_there, MAX_WAIT, series)

    async def up(self) -> list[str]:
        answer = await self._client.get("/api/v1/query", params={"query": "up == 1"})
        return sorted(each["metric"]["instance"] for each in answer.json()["data"]["result"])


@asynccontextmanager
async def prometheus(
    directory: Path, targets: dict[str, list[str]], *, window: str | None = None
) -> AsyncIterator[Prometheus]:
    if shutil.which("prometheus") is None:
        skip_or_fail("prometheus is missing: `make test-deps`")
    rules: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        rule["for"] = "1s"
        if window is not None:
            rule["expr"] = re.sub(r"\[\w+\]", f"[{window}]", rule["expr"])
    (directory / "rules.yaml").write_text(yaml.safe_dump(rules))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": each}]}
            for name, each in targets.items()
        ],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
            made = Prometheus(client)

            async def answers() -> bool:
                assert process.poll() is None, (directory / "prometheus.log").read_text()
                try:
                    await made.firing()
                except (httpx.HTTPError, ValueError):  # it loads, and says so in words
                    return False
                return True

            await eventually(answers)
            yield made
    finally:
        process.kill()
        process.wait(10)


class Jobctl:
    """`jobctl` in a process of its own that shows its metrics."""

    def __init__(self, settings: Settings, log: Path, *arguments: str) -> None:
        self.target = f"127.0.0.1:{free_port()}"
        port = self.target.rpartition(":")[2]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "switchyard.cli.main", *arguments, "--metrics-port", port],
                env=environment_of(settings) | {"PYTHONPATH": os.getcwd()},
                stdout=output,
                stderr=output,
            )

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(30)


async def change(system: System, statement: str, **values: Any) -> None:
    """Let time have gone by."""

    def work(connection: Connection) -> None:
        connection.execute(text(statement), values)

    await system.ledger.core.database.write(work)


@pytest.mark.long
@pytest.mark.timeout(420)
async def test_what_goes_wrong_makes_its_alert_fire_and_nothing_else_does(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_system(broker310, sqlite_url, data_dir=tmp_path / "data") as system,
        api_process(system.settings, tmp_path / "api.log") as api,
    ):
        worker = Jobctl(system.settings, tmp_path / "worker.log", "worker", "llm")
        scheduler = Jobctl(system.settings, tmp_path / "scheduler.log", "scheduler")
        targets = {
            "switchyard-api": [api.url.removeprefix("http://")],
            "switchyard-processes": [worker.target, scheduler.target],
        }
        try:
            async with prometheus(tmp_path, targets) as server:
                await eventually(lambda: _all_up(server, 3), 60, "three targets that are up")
                await eventually(lambda: _none_fires(server), 60, "quiet")

                await system.publish("hot.received", {"n": 1})  # nobody works it
                for _ in range(30):
                    await system.publish("hot.scripted", {"steps": ["permanent"]})
                await _bulk(system, "redrive-1", BulkState.HALTED)
                await _bulk(system, "other-2", BulkState.RUNNING)  # whose kind nobody runs
                past = time.time() - 3600
                await change(
                    system,
                    "UPDATE bulk_operations SET updated_at = :past WHERE id = 'other-2'",
                    past=past,
                )
                await server.wait_for("SwitchyardQueueWithoutConsumer", "SwitchyardBulkHalted")
                await server.wait_for("SwitchyardDeadLettersGrow", "SwitchyardBulkStalled")
                await server.wait_for("SwitchyardHotJobsWait")
                assert not {"SwitchyardDown", "SwitchyardOutboxStuck"} & await server.firing()

                worker.end()
                scheduler.end()
                job = await system.jobs.prepare(JobRequest("hot.noop", {"n": 1}))
                await system.ledger.jobs.record(replace(job, now=past))
                # It was due an hour ago, and its last job was refused.
                entry = {"name": "tidy", "cron": "0 3 * * *", "job": "hot.noop"}
                book = Schedules(system.ledger, system.registry)
                await book.add(ScheduleEntry.from_fields(entry), remote=False, created_by="a test")
                await change(system, "UPDATE schedules SET fire_at = :past", past=past)
                await change(
                    system,
                    "INSERT INTO schedule_firings (schedule, due_at, outcome, noted_at, times) "
                    "SELECT name, :past, 'refused', :past, 1 FROM schedules",
                    past=past,
                )
                await server.wait_for("SwitchyardWorkerSilent", "SwitchyardNoActiveScheduler")
                await server.wait_for("SwitchyardScheduleLate", "SwitchyardScheduleRefused")
                await server.wait_for("SwitchyardOutboxStuck")
                assert "SwitchyardDown" not in await server.firing()
                api.kill()
                await server.wait_for("SwitchyardDown")
        finally:
            worker.end()
            scheduler.end()


@pytest.mark.long
@pytest.mark.timeout(420)
async def test_the_alerts_about_rates_and_what_is_away_fire_when_that_is_caused(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    lanes = lanes_with(max_length={"backfill": 10})
    async with (
        TcpProxy("127.0.0.1", urlsplit(broker310.amqp_url).port or 0) as way,
        open_system(broker310, sqlite_url, data_dir=tmp_path / "data", lanes=lanes) as system,
        api_process(
            system.settings.model_copy(update={"amqp_url": SecretStr(way.url(broker310.amqp_url))}),
            tmp_path / "api.log",
            JOBS_MANAGEMENT_URL=broker310.management_url,
        ) as api,
    ):
        worker = Jobctl(system.settings, tmp_path / "worker.log", "worker", "llm")
        targets = {
            "switchyard-api": [api.url.removeprefix("http://")],
            "switchyard-processes": [worker.target],
        }
        try:
            async with (
                prometheus(tmp_path, targets, window="20s") as server,
                httpx.AsyncClient(base_url=api.url, trust_env=False, timeout=30) as client,
            ):
                await eventually(lambda: _all_up(server, 2), 60, "two targets that are up")
                # An increase is seen of what has been there before.
                first = await system.publish("hot.scripted", {"steps": ["permanent"]})
                await system.wait_for_state(first, State.DEAD)
                await server.scraped('switchyard_job_attempts_total{outcome="dead"}')

                worker.process.send_signal(signal.SIGSTOP)
                for _ in range(30):
                    await system.publish("hot.scripted", {"steps": ["permanent"]})
                await system.publish("hot.crunched", {"do": "die"}, max_attempts=1)
                await _queue_jobs(client, 9)
                await server.wait_for("SwitchyardQueueNearlyFull")
                await asyncio.sleep(6)  # a hot job waits
                worker.process.send_signal(signal.SIGCONT)
                await server.wait_for(
                    "SwitchyardHotWaitSlow", "SwitchyardJobsFail", "SwitchyardJobsCrash"
                )

                async with _again_and_again(lambda: _queue_jobs(client, 20)):
                    await server.wait_for("SwitchyardPublishesRefused")
                async with _again_and_again(lambda: _lock(sqlite_url, 2.0)):
                    await server.wait_for("SwitchyardLedgerSlow")
                away = {"SwitchyardPartAway", "SwitchyardWorkerNotConsuming"}
                assert not away & await server.firing()
                await broker310.management.delete(f"/queues/{broker310.vhost}/hot.llm")
                way.refuse()
                way.cut()
                await server.wait_for(*away)
        finally:
            worker.process.send_signal(signal.SIGCONT)
            worker.end()


@pytest.mark.long
async def test_a_broker_that_blocks_publishers_makes_its_alert_fire(
    own_node: Callable[..., LocalNode], sqlite_url: str, tmp_path: Path
) -> None:
    node = await asyncio.to_thread(own_node)
    broker = TestBroker("3.10", "classic", "/", node)
    async with (
        open_system(broker, sqlite_url, data_dir=tmp_path / "data") as system,
        api_process(system.settings, tmp_path / "api.log") as api,
        prometheus(
            tmp_path, {"switchyard-api": [api.url.removeprefix("http://")]}, window="20s"
        ) as server,
        httpx.AsyncClient(base_url=api.url, trust_env=False, timeout=30) as client,
    ):
        await _queue_jobs(client, 1)
        await server.scraped('switchyard_publishes_total{outcome="accepted"}')
        assert "SwitchyardBrokerBlocked" not in await server.firing()
        await asyncio.to_thread(node.rabbitmqctl, "set_vm_memory_high_watermark", "0.0001")
        async with _again_and_again(lambda: _queue_jobs(client, 1)):
            await server.wait_for("SwitchyardBrokerBlocked")


async def _queue_jobs(client: httpx.AsyncClient, number: int) -> None:
    """At once, so that no depth is known that would refuse them before the broker does."""
    job = {"routing_key": "backfill.received", "payload": {"n": 1}}
    await asyncio.gather(*(client.post("/jobs", json=job) for _ in range(number)))


async def _lock(url: str, seconds: float) -> None:
    with closing(
        sqlite3.connect(url.partition(":///")[2], timeout=30, check_same_thread=False)
    ) as other:
        other.isolation_level = None
        await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
        await asyncio.sleep(seconds)
        other.execute("ROLLBACK")
    await asyncio.sleep(0.2)


@asynccontextmanager
async def _again_and_again(cause: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    async def go_on() -> None:
        while True:
            await cause()

    task = asyncio.create_task(go_on())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _bulk(system: System, operation_id: str, state: BulkState) -> None:
    await system.ledger.bulk.create_bulk(
        operation_id, kind=operation_id.partition("-")[0], title="t", spec={}, created_by="me"
    )
    await system.ledger.bulk.move_bulk(operation_id, state, among=list(BulkState))


async def _all_up(server: Prometheus, number: int) -> bool:
    return len(await server.up()) == number


async def _none_fires(server: Prometheus) -> bool:
    return not await server.firing()


def test_every_alert_is_caused_here() -> None:
    source = Path(__file__).read_text()
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    assert [each["alert"] for each in group["rules"] if f'"{each["alert"]}"' not in source] == []

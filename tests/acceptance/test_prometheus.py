"""The alert rules in a real Prometheus, which scrapes real processes: none fires while nothing is
wrong, and each fires when its cause is produced."""

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
"""Seconds within which an alert must fire: the one about waiting hot jobs takes about 30."""


class PrometheusServer:
    """A Prometheus server with our rules. Each fires after a second, and with `window` they look at
    that range of time."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def firing_alerts(self) -> set[str]:
        alerts = (await self._client.get("/api/v1/alerts")).json()["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    async def wait_for_alerts(self, *names: str) -> None:
        """Wait until each of these alerts has fired; some may have ended by then."""
        missing = set(names)

        async def all_fire() -> bool:
            missing.difference_update(await self.firing_alerts())
            return not missing

        try:
            await eventually(all_fire, MAX_WAIT)
        except AssertionError:
            raise AssertionError(f"{missing} do not fire") from None

    async def wait_for_series(self, series: str) -> None:
        """Wait until the server has scraped the series."""

        async def is_there() -> bool:
            response = await self._client.get("/api/v1/query", params={"query": series})
            return bool(response.json()["data"]["result"])

        await eventually(is_there, MAX_WAIT, series)

    async def instances_up(self) -> list[str]:
        response = await self._client.get("/api/v1/query", params={"query": "up == 1"})
        return sorted(series["metric"]["instance"] for series in response.json()["data"]["result"])


@asynccontextmanager
async def prometheus(
    directory: Path, targets: dict[str, list[str]], *, window: str | None = None
) -> AsyncIterator[PrometheusServer]:
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
            {"job_name": name, "static_configs": [{"targets": addresses}]}
            for name, addresses in targets.items()
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
            server = PrometheusServer(client)

            async def is_ready() -> bool:
                assert process.poll() is None, (directory / "prometheus.log").read_text()
                try:
                    await server.firing_alerts()
                except (httpx.HTTPError, ValueError):  # it is still loading
                    return False
                return True

            await eventually(is_ready)
            yield server
    finally:
        process.kill()
        process.wait(10)


class MetricsProcess:
    """A `jobctl` process with a port for its metrics."""

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


async def write_ledger(system: System, statement: str, **values: Any) -> None:
    """Run a statement on the ledger, such as one that backdates rows."""

    def execute(connection: Connection) -> None:
        connection.execute(text(statement), values)

    await system.ledger.core.database.write(execute)


@pytest.mark.long
@pytest.mark.timeout(420)
async def test_each_failure_makes_its_own_alert_fire_and_no_other(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_system(broker310, sqlite_url, data_dir=tmp_path / "data") as system,
        api_process(system.settings, tmp_path / "api.log") as api,
    ):
        worker = MetricsProcess(system.settings, tmp_path / "worker.log", "worker", "llm")
        scheduler = MetricsProcess(system.settings, tmp_path / "scheduler.log", "scheduler")
        targets = {
            "switchyard-api": [api.url.removeprefix("http://")],
            "switchyard-processes": [worker.target, scheduler.target],
        }
        try:
            async with prometheus(tmp_path, targets) as server:
                await eventually(lambda: are_all_up(server, 3), 60, "three targets that are up")
                await eventually(lambda: is_none_firing(server), 60, "no firing alert")

                await system.publish("hot.received", {"n": 1})  # it has no worker
                for _ in range(30):
                    await system.publish("hot.scripted", {"steps": ["permanent"]})
                await _make_bulk_operation(system, "redrive-1", BulkState.HALTED)
                # No process runs operations of this kind.
                await _make_bulk_operation(system, "other-2", BulkState.RUNNING)
                past = time.time() - 3600
                await write_ledger(
                    system,
                    "UPDATE bulk_operations SET updated_at = :past WHERE id = 'other-2'",
                    past=past,
                )
                await server.wait_for_alerts(
                    "SwitchyardQueueWithoutConsumer", "SwitchyardBulkHalted"
                )
                await server.wait_for_alerts("SwitchyardDeadLettersGrow", "SwitchyardBulkStalled")
                await server.wait_for_alerts("SwitchyardHotJobsWait")
                assert (
                    not {"SwitchyardDown", "SwitchyardOutboxStuck"} & await server.firing_alerts()
                )

                worker.end()
                scheduler.end()
                job = await system.jobs.prepare(JobRequest("hot.noop", {"n": 1}))
                await system.ledger.jobs.record(replace(job, now=past))
                # It was due an hour ago, and its last job was refused.
                entry = {"name": "tidy", "cron": "0 3 * * *", "job": "hot.noop"}
                book = Schedules(system.ledger, system.registry)
                await book.add(ScheduleEntry.from_fields(entry), remote=False, created_by="a test")
                await write_ledger(system, "UPDATE schedules SET fire_at = :past", past=past)
                await write_ledger(
                    system,
                    "INSERT INTO schedule_firings (schedule, due_at, outcome, noted_at, times) "
                    "SELECT name, :past, 'refused', :past, 1 FROM schedules",
                    past=past,
                )
                await server.wait_for_alerts(
                    "SwitchyardWorkerSilent", "SwitchyardNoActiveScheduler"
                )
                await server.wait_for_alerts("SwitchyardScheduleLate", "SwitchyardScheduleRefused")
                await server.wait_for_alerts("SwitchyardOutboxStuck")
                assert "SwitchyardDown" not in await server.firing_alerts()
                api.kill()
                await server.wait_for_alerts("SwitchyardDown")
        finally:
            worker.end()
            scheduler.end()


@pytest.mark.long
@pytest.mark.timeout(420)
async def test_alerts_about_rates_and_missing_services_fire_when_caused(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    lanes = lanes_with(max_length={"backfill": 10})
    async with (
        TcpProxy("127.0.0.1", urlsplit(broker310.amqp_url).port or 0) as proxy,
        open_system(broker310, sqlite_url, data_dir=tmp_path / "data", lanes=lanes) as system,
        api_process(
            system.settings.model_copy(
                update={"amqp_url": SecretStr(proxy.url(broker310.amqp_url))}
            ),
            tmp_path / "api.log",
            JOBS_MANAGEMENT_URL=broker310.management_url,
        ) as api,
    ):
        worker = MetricsProcess(system.settings, tmp_path / "worker.log", "worker", "llm")
        targets = {
            "switchyard-api": [api.url.removeprefix("http://")],
            "switchyard-processes": [worker.target],
        }
        try:
            async with (
                prometheus(tmp_path, targets, window="20s") as server,
                httpx.AsyncClient(base_url=api.url, trust_env=False, timeout=30) as client,
            ):
                await eventually(lambda: are_all_up(server, 2), 60, "two targets that are up")
                # Prometheus sees an increase only of a series that it has scraped before.
                first_id = await system.publish("hot.scripted", {"steps": ["permanent"]})
                await system.wait_for_state(first_id, State.DEAD)
                await server.wait_for_series('switchyard_job_attempts_total{outcome="dead"}')

                worker.process.send_signal(signal.SIGSTOP)
                for _ in range(30):
                    await system.publish("hot.scripted", {"steps": ["permanent"]})
                await system.publish("hot.crunched", {"do": "die"}, max_attempts=1)
                await _post_jobs(client, 9)
                await server.wait_for_alerts("SwitchyardQueueNearlyFull")
                await asyncio.sleep(6)  # a hot job waits
                worker.process.send_signal(signal.SIGCONT)
                await server.wait_for_alerts(
                    "SwitchyardHotWaitSlow", "SwitchyardJobsFail", "SwitchyardJobsCrash"
                )

                async with _repeating(lambda: _post_jobs(client, 20)):
                    await server.wait_for_alerts("SwitchyardPublishesRefused")
                async with _repeating(lambda: _lock_ledger(sqlite_url, 2.0)):
                    await server.wait_for_alerts("SwitchyardLedgerSlow")
                outage_alerts = {"SwitchyardPartAway", "SwitchyardWorkerNotConsuming"}
                assert not outage_alerts & await server.firing_alerts()
                await broker310.management.delete(f"/queues/{broker310.vhost}/hot.llm")
                proxy.refuse()
                proxy.cut()
                await server.wait_for_alerts(*outage_alerts)
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
        await _post_jobs(client, 1)
        await server.wait_for_series('switchyard_publishes_total{outcome="accepted"}')
        assert "SwitchyardBrokerBlocked" not in await server.firing_alerts()
        await asyncio.to_thread(node.rabbitmqctl, "set_vm_memory_high_watermark", "0.0001")
        async with _repeating(lambda: _post_jobs(client, 1)):
            await server.wait_for_alerts("SwitchyardBrokerBlocked")


async def _post_jobs(client: httpx.AsyncClient, number: int) -> None:
    """Post jobs all at once: the API knows no queue depth yet by which it would refuse them."""
    job = {"routing_key": "backfill.received", "payload": {"n": 1}}
    await asyncio.gather(*(client.post("/jobs", json=job) for _ in range(number)))


async def _lock_ledger(url: str, seconds: float) -> None:
    with closing(
        sqlite3.connect(url.partition(":///")[2], timeout=30, check_same_thread=False)
    ) as connection:
        connection.isolation_level = None
        await asyncio.to_thread(connection.execute, "BEGIN IMMEDIATE")
        await asyncio.sleep(seconds)
        connection.execute("ROLLBACK")
    await asyncio.sleep(0.2)


@asynccontextmanager
async def _repeating(cause: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    async def repeat() -> None:
        while True:
            await cause()

    task = asyncio.create_task(repeat())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _make_bulk_operation(system: System, operation_id: str, state: BulkState) -> None:
    await system.ledger.bulk.create_bulk(
        operation_id, kind=operation_id.partition("-")[0], title="t", spec={}, created_by="me"
    )
    await system.ledger.bulk.move_bulk(operation_id, state, among=list(BulkState))


async def are_all_up(server: PrometheusServer, number: int) -> bool:
    return len(await server.instances_up()) == number


async def is_none_firing(server: PrometheusServer) -> bool:
    return not await server.firing_alerts()


def test_every_alert_is_fired_in_this_file() -> None:
    source = Path(__file__).read_text()
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    assert [rule["alert"] for rule in group["rules"] if f'"{rule["alert"]}"' not in source] == []

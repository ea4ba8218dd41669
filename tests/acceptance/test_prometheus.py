"""The alert rules in a real Prometheus, which scrapes real processes: quiet where nothing is wrong,
and each fires when what it is about is caused."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from sqlalchemy import Connection, text

from switchyard.cli.system.ports import free_port
from switchyard.services.publishing.preparing import JobRequest
from switchyard.services.records import BulkState
from switchyard.services.settings import Settings
from tests.support.api_server import api_process, environment_of
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.missing import skip_or_fail
from tests.support.system import System, open_system

RULES = Path(__file__).parents[2] / "charts/switchyard/files/rules.yaml"
PATIENCE = 90.0
"""Seconds: the rule on hot jobs that wait is about thirty."""


class Prometheus:
    """A server of its own, with the rules as they are but for how long each has to hold."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def firing(self) -> set[str]:
        alerts = (await self._client.get("/api/v1/alerts")).json()["data"]["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    async def wait_for(self, *names: str) -> None:
        async def all_fire() -> bool:
            return set(names) <= await self.firing()

        try:
            await eventually(all_fire, PATIENCE)
        except AssertionError:
            raise AssertionError(f"{set(names) - await self.firing()} do not fire") from None

    async def up(self) -> list[str]:
        answer = await self._client.get("/api/v1/query", params={"query": "up == 1"})
        return sorted(each["metric"]["instance"] for each in answer.json()["data"]["result"])


@asynccontextmanager
async def prometheus(directory: Path, targets: dict[str, list[str]]) -> AsyncIterator[Prometheus]:
    if shutil.which("prometheus") is None:
        skip_or_fail("prometheus is missing: `make test-deps`")
    rules: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        rule["for"] = "1s"
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

            await eventually(answers, 30)
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

    await system.ledger._database.write(work)


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
                job = system.jobs.prepare(JobRequest("hot.noop", {"n": 1}))
                await system.ledger.record(replace(job, now=past))
                await server.wait_for("SwitchyardWorkerSilent", "SwitchyardNoActiveScheduler")
                await server.wait_for("SwitchyardOutboxStuck")
                assert "SwitchyardDown" not in await server.firing()
                api.kill()
                await server.wait_for("SwitchyardDown")
        finally:
            worker.end()
            scheduler.end()


async def _bulk(system: System, operation_id: str, state: BulkState) -> None:
    await system.ledger.create_bulk(
        operation_id, kind=operation_id.partition("-")[0], title="t", spec={}, created_by="me"
    )
    await system.ledger.move_bulk(operation_id, state, among=list(BulkState))


async def _all_up(server: Prometheus, number: int) -> bool:
    return len(await server.up()) == number


async def _none_fires(server: Prometheus) -> bool:
    return not await server.firing()

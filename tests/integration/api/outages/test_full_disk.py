"""A full disk, and an alarm of the broker: what the API answers, and what its health says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from switchyard.cli.system.rabbitmq_node import LocalNode
from tests.integration.api.background_api import MODULES
from tests.integration.api.outages.answers import NOOP, alarm
from tests.support.api_server import problem, serving
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.small_disk import fill, small_disk
from tests.support.system import open_system

__all__ = ["small_disk"]


async def test_a_full_disk_is_507_at_every_door_and_told_by_health(
    broker310: TestBroker, small_disk: Path
) -> None:
    ledger = f"sqlite+aiosqlite:///{small_disk / 'ledger.db'}"
    async with (
        open_system(broker310, ledger, data_dir=small_disk, modules=MODULES) as system,
        serving(system.settings, storage_url=(small_disk / "files").as_uri()) as api,
    ):
        file = {"file": ("a.txt", b"some text " * 500, "text/plain")}
        assert (await api.client.get("/health/ready")).status_code == 200
        large = fill(small_disk)
        health = await api.client.get("/health")
        assert health.status_code == 503
        assert health.json()["components"]["storage"]["state"] == "full"
        problem(await api.client.post("/documents", files=file), 507, "storage-full")
        problem(await api.client.post("/extract/text", files=file), 507, "storage-full")
        large_job = {"routing_key": "hot.noop", "payload": {"text": "x" * 100_000}}
        problem(await api.client.post("/jobs", json=large_job), 507, "storage-full")
        large.unlink()
        assert (await api.client.get("/health/ready")).status_code == 200
        assert (await api.client.post("/documents", files=file)).status_code == 202
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202


async def test_health_tells_that_the_disk_of_the_ledger_alone_is_full(
    broker310: TestBroker, small_disk: Path, tmp_path: Path
) -> None:
    ledger = f"sqlite+aiosqlite:///{small_disk / 'ledger.db'}"
    async with (
        open_system(broker310, ledger, data_dir=tmp_path, modules=MODULES) as system,
        serving(system.settings) as api,
    ):
        await eventually(api.state.broker.feed.is_listening.is_set, what="the event feed")
        assert (await api.client.get("/health")).status_code == 200
        large = fill(small_disk)
        health = await api.client.get("/health")
        assert health.status_code == 503
        states = {name: each["state"] for name, each in health.json()["components"].items()}
        assert states == {"ledger": "full", "storage": "ok", "broker": "ok", "events": "ok"}
        large.unlink()
        assert (await api.client.get("/health")).status_code == 200


@pytest.mark.long
async def test_health_tells_an_alarm_of_the_broker(
    own_node: Callable[..., LocalNode], sqlite_url: str, tmp_path: Path
) -> None:
    node = own_node()
    broker = TestBroker("3.10", "classic", "/", node)
    async with (
        open_system(broker, sqlite_url, data_dir=tmp_path, modules=MODULES) as system,
        serving(system.settings) as api,
    ):
        assert (await api.client.get("/health")).json()["status"] == "ok"
        async with alarm(node):

            async def is_told() -> bool:
                health = await api.client.get("/health")
                state = health.json()["components"]["broker"]["state"]
                return (health.status_code, state) == (503, "blocked")

            await eventually(is_told, what="the alarm")  # the node looks at its memory now and then
            assert (await api.client.get("/health/live")).status_code == 200

"""A full disk, and an alarm of the broker: how requests fail, and what `/health` says."""

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


async def test_a_full_disk_fails_every_upload_with_507_and_is_shown_by_health(
    broker310: TestBroker, small_disk: Path
) -> None:
    ledger = f"sqlite+aiosqlite:///{small_disk / 'ledger.db'}"
    async with (
        open_system(broker310, ledger, data_dir=small_disk, modules=MODULES) as system,
        serving(system.settings, storage_url=(small_disk / "files").as_uri()) as api,
    ):
        files = {"file": ("a.txt", b"some text " * 500, "text/plain")}
        assert (await api.client.get("/health/ready")).status_code == 200
        filler = fill(small_disk)
        health = await api.client.get("/health")
        assert health.status_code == 503
        assert health.json()["components"]["storage"]["state"] == "full"
        problem(await api.client.post("/documents", files=files), 507, "storage-full")
        problem(await api.client.post("/extract/text", files=files), 507, "storage-full")
        large_job = {"routing_key": "hot.noop", "payload": {"text": "x" * 100_000}}
        problem(await api.client.post("/jobs", json=large_job), 507, "storage-full")
        filler.unlink()
        assert (await api.client.get("/health/ready")).status_code == 200
        assert (await api.client.post("/documents", files=files)).status_code == 202
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202


async def test_health_shows_that_only_the_disk_of_the_ledger_is_full(
    broker310: TestBroker, small_disk: Path, tmp_path: Path
) -> None:
    ledger = f"sqlite+aiosqlite:///{small_disk / 'ledger.db'}"
    async with (
        open_system(broker310, ledger, data_dir=tmp_path, modules=MODULES) as system,
        serving(system.settings) as api,
    ):
        await eventually(api.state.broker.feed.is_listening.is_set, what="the event feed")
        assert (await api.client.get("/health")).status_code == 200
        filler = fill(small_disk)
        health = await api.client.get("/health")
        assert health.status_code == 503
        states = {name: each["state"] for name, each in health.json()["components"].items()}
        assert states == {"ledger": "full", "storage": "ok", "broker": "ok", "events": "ok"}
        filler.unlink()
        assert (await api.client.get("/health")).status_code == 200


@pytest.mark.long
async def test_health_shows_an_alarm_of_the_broker(
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

            async def shows_alarm() -> bool:
                health = await api.client.get("/health")
                state = health.json()["components"]["broker"]["state"]
                return (health.status_code, state) == (503, "blocked")

            # The node checks its memory at intervals.
            await eventually(shows_alarm, what="the alarm")
            assert (await api.client.get("/health/live")).status_code == 200

"""Backfills and redrives over HTTP: one implementation, and each kind lists its own only."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from tests.support.api_server import serving
from tests.support.ledgers import make_ledger

KINDS = {"backfill": "/backfills", "redrive": "/admin/dead/redrives"}


@asynccontextmanager
async def serve_operations(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the API without a broker, with two operations of each kind in its ledger."""
    settings = Settings(data_dir=tmp_path, amqp_url=None)
    await make_ledger(settings.ledger_url)
    async with await Ledger.open(settings.ledger_url) as ledger:
        for kind in KINDS:
            for number in "ab":
                await ledger.bulk.create_bulk(
                    f"{kind}-{number * 10}",
                    kind=kind,
                    title="all",
                    spec={"filter": {"job_type": number}, "change": {}},
                    created_by="test",
                    rate=5,
                )
        async with serving(settings) as api:
            yield api.client


@pytest.mark.parametrize("kind", KINDS)
async def test_an_operation_is_listed_paused_limited_and_resumed(kind: str, tmp_path: Path) -> None:
    path, operation_id = KINDS[kind], f"{kind}-{'a' * 10}"
    async with serve_operations(tmp_path) as client:
        page = (await client.get(path, params={"limit": 1})).json()
        assert [each["id"] for each in page[f"{kind}s"]] == [f"{kind}-{'b' * 10}"]
        page = (await client.get(path, params={"cursor": page["next_cursor"]})).json()
        assert [each["id"] for each in page[f"{kind}s"]] == [operation_id]
        paused = await client.post(f"{path}/{operation_id}/pause")
        assert (paused.status_code, paused.json()["state"]) == (200, "paused")
        listed = (await client.get(path, params={"state": "paused"})).json()[f"{kind}s"]
        assert [each["id"] for each in listed] == [operation_id]
        limited = await client.patch(f"{path}/{operation_id}", json={"rate": 7})
        assert (limited.json()["rate"], limited.json()["state"]) == (7, "paused")
        resumed = await client.post(f"{path}/{operation_id}/resume")
        assert resumed.json()["state"] == "waiting"
        cancelled = await client.post(f"{path}/{operation_id}/cancel")
        assert cancelled.json()["state"] == "cancelled"
        refused = await client.post(f"{path}/{operation_id}/resume")
        assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (
            409,
            "wrong-state",
        )


async def test_an_operation_of_another_kind_is_unknown(tmp_path: Path) -> None:
    async with serve_operations(tmp_path) as client:
        foreign_path = f"/backfills/redrive-{'a' * 10}"
        for answer in (
            await client.get(foreign_path),
            await client.post(f"{foreign_path}/pause"),
            await client.post(f"{foreign_path}/resume"),
            await client.patch(foreign_path, json={"rate": 1}),
        ):
            assert answer.status_code == 404
        assert (await client.get(f"/admin/dead/redrives/redrive-{'a' * 10}")).json()[
            "state"
        ] == "waiting"

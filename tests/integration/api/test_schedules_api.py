"""`/schedules`, by the clients and by plain HTTP requests."""

import asyncio
from typing import Any

import pytest

from switchyard.api.client import AsyncClient, Client, Conflict, Invalid, NotFound
from switchyard.services.engine.access.api_keys import Scope, create_key
from tests.support.api_server import RunningApi, problem, serving
from tests.support.system import System

DAILY = {"name": "daily", "cron": "0 6 * * *", "job": "hot.noop"}


async def test_a_schedules_life_by_the_client(api: RunningApi) -> None:
    async with AsyncClient(api.url) as client:
        added = await client.add_schedule(
            "daily", "0 6 * * *", "hot.noop", {"n": 7}, timezone="Europe/Berlin", jitter=60
        )
        assert (added.origin, added.payload, added.grace) == ("added", {"n": 7}, 3600)
        assert added.next_at.minute == 0
        with pytest.raises(Conflict, match="choose another name"):
            await client.add_schedule("daily", "0 6 * * *", "hot.noop")
        paused = await client.pause_schedule("daily")
        assert paused.paused_at is not None
        assert (await client.resume_schedule("daily")).paused_at is None
        firing = await client.run_schedule("daily")
        assert firing.outcome == "due"
        assert firing.job_id
        (listed_firing,) = (await client.schedule_history("daily", limit=5)).firings
        assert listed_firing.job_id == firing.job_id
        (listed,) = (await client.schedules()).schedules
        assert listed.last == listed_firing == (await client.schedule("daily")).last
        await client.remove_schedule("daily")
        with pytest.raises(NotFound):
            await client.schedule("daily")

    def use_blocking_client() -> None:
        with Client(api.url) as client:
            assert client.schedules().schedules == []
            with pytest.raises(Invalid, match="cron"):
                client.add_schedule("daily", "0 6 * *", "hot.noop")

    await asyncio.to_thread(use_blocking_client)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cron": "61 6 * * *"}, "cron"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"timezone": "../../etc/passwd"}, "timezone"),
        ({"job": "hot.nothing"}, "job"),
        ({"payload": {"n": "x"}}, "payload"),
        ({"job": "hot.ingest_document", "payload": {"path": "/etc/passwd"}}, "payload"),
        ({"grace": 1e9}, "grace"),
        ({"name": "Daily"}, "name"),
        ({"remote": False}, "remote"),
        ({"origin": "file"}, "origin"),
    ],
)
async def test_the_error_names_the_invalid_field(
    shared_api: RunningApi, changes: dict[str, Any], field: str
) -> None:
    answer = await shared_api.client.post("/schedules", json=DAILY | changes)
    locations = [error["location"] for error in problem(answer, 422, "invalid")["errors"]]
    assert [location[:2] for location in locations] == [["body", field]]
    assert (await shared_api.client.get("/schedules")).json()["schedules"] == []


async def test_a_schedule_from_http_is_recorded_as_remote(api: RunningApi, system: System) -> None:
    assert (await api.client.post("/schedules", json=DAILY)).status_code == 201
    (record,) = await system.ledger.schedules.schedules()
    assert record.remote
    assert record.created_by.startswith("api: ")


async def test_only_an_administrator_changes_schedules(system: System) -> None:
    keys = {
        scope: (await create_key(system.ledger, str(scope), [scope])).key
        for scope in (Scope.READ, Scope.PUBLISH, Scope.ADMIN)
    }
    async with serving(system.settings) as api:

        async def status(scope: Scope, method: str, path: str, **options: Any) -> int:
            headers = {"Authorization": f"Bearer {keys[scope]}"}
            answer = await api.client.request(method, path, headers=headers, **options)
            return answer.status_code

        assert await status(Scope.PUBLISH, "POST", "/schedules", json=DAILY) == 403
        assert await status(Scope.ADMIN, "POST", "/schedules", json=DAILY) == 201
        assert await status(Scope.READ, "GET", "/schedules/daily") == 200
        for change in ("pause", "resume", "run"):
            assert await status(Scope.PUBLISH, "POST", f"/schedules/daily/{change}") == 403
        assert await status(Scope.READ, "DELETE", "/schedules/daily") == 403
        assert await status(Scope.ADMIN, "DELETE", "/schedules/daily") == 204

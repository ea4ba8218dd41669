"""`jobctl api` and `jobctl keys`, run as commands."""

import asyncio
import json
import re
import signal
import socket
from pathlib import Path

import httpx
import pytest

from switchyard.api.client import AsyncClient, Invalid
from switchyard.services.engine.ledger import upgrade
from tests.support.api_server import api_process, environment_of, serving
from tests.support.commands import jobctl
from tests.support.redrives import bury_many, index
from tests.support.system import System


async def test_a_key_is_made_listed_and_revoked(system: System) -> None:
    environment = environment_of(system.settings)
    created = await jobctl("keys", "create", "archive", "--scope", "read", **environment)
    key = created.stdout.strip()
    assert re.fullmatch(r"swy_[\w-]{43}", key)
    listed = await jobctl("keys", "list", "--json", **environment)
    (key_record,) = json.loads(listed.stdout)
    assert (key_record["name"], key_record["scopes"], key_record["revoked_at"]) == (
        "archive",
        ["read"],
        None,
    )
    assert key not in listed.stdout
    assert (await jobctl("keys", "revoke", key_record["id"], **environment)).returncode == 0
    shown = await jobctl("keys", "list", **environment)
    assert "revoked" in shown.stdout
    unknown = await jobctl("keys", "revoke", "nobody", **environment)
    assert (unknown.returncode, "jobctl keys list" in unknown.stderr) == (1, True)
    wrong = await jobctl("keys", "create", "x", "--scope", "write", **environment)
    assert (wrong.returncode, "publish" in wrong.stderr) == (2, True)


async def test_the_first_characters_of_an_id_are_enough_for_api_and_commands(
    system: System,
) -> None:
    environment = environment_of(system.settings)
    ids = [f"4eed1ee8-{number:04}-4000-8000-000000000000" for number in range(3)]
    for job_id in ids[:2]:
        await system.publish("hot.noop", {"n": 3}, job_id=job_id)
    await bury_many(system, ids[2:])
    await index(system)
    async with serving(system.settings) as api, AsyncClient(api.url) as client:
        assert (await client.job("4eed1ee8-0001")).job_id == ids[1]
        assert (await client.dead_letter("4eed1ee8-0002")).id == ids[2]
        with pytest.raises(Invalid, match="several ids begin with 4eed1ee8: 4eed1ee8-0000-4"):
            await client.cancel("4eed1ee8")
        assert (await client.cancel("4eed1ee8-0000")).job_id == ids[0]
    for command in ("show", "watch", "cancel", "release"):
        several = await jobctl("jobs", command, "4eed1ee8", **environment)
        assert (several.returncode, "several ids begin" in several.stderr) == (1, True)
    shown = await jobctl("jobs", "show", "4eed1ee8-0001", "--json", **environment)
    assert json.loads(shown.stdout)["job_id"] == ids[1]
    letter = await jobctl("dead", "show", "4eed1ee8", "--json", **environment)
    assert json.loads(letter.stdout)["id"] == ids[2]
    cancelled = await jobctl("jobs", "cancel", "4eed1ee8-0001", **environment)
    assert f"{ids[1]} cancelled" in cancelled.stdout
    purged = await jobctl("dead", "purge", "4eed1ee8-0002", "--yes", **environment)
    assert (purged.returncode, purged.stdout.strip()) == (0, "1 purged")


async def test_the_api_serves_until_sigterm_also_with_an_open_stream(
    system: System, tmp_path: Path
) -> None:
    async with (
        api_process(system.settings, tmp_path / "log") as api,
        httpx.AsyncClient(base_url=api.url, trust_env=False, timeout=10) as client,
    ):
        assert (await client.get("/health/ready")).is_success
        async with client.stream("GET", "/events") as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            api.process.send_signal(signal.SIGTERM)
            assert [line async for line in lines if line] == []
        assert await asyncio.to_thread(api.process.wait, 8) == 0
    logged = (tmp_path / "log").read_text()
    requests = [json.loads(line) for line in logged.splitlines() if '"request"' in line]
    assert {each["path"] for each in requests} >= {"/health/ready", "/events"}
    assert "Traceback" not in logged


async def test_beyond_loopback_without_a_key_is_a_clear_error(system: System) -> None:
    environment = environment_of(system.settings)
    result = await jobctl("api", "--host", "0.0.0.0", "--port", "0", **environment)
    assert result.returncode == 1
    assert "jobctl keys create" in result.stderr
    assert "Traceback" not in result.stderr


async def test_a_port_that_is_taken_is_a_clear_error(system: System) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = await jobctl("api", "--port", port, **environment_of(system.settings))
    assert result.returncode == 1
    assert f"127.0.0.1:{port}" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("has_ledger", [True, False])
async def test_wrong_settings_are_a_clear_error(tmp_path: Path, has_ledger: bool) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'ledger.db'}"
    if has_ledger:
        await upgrade(url)
    keys = {"JOBS_API_KEYS": "short"} if has_ledger else {}
    result = await jobctl("api", "--port", "0", JOBS_DATABASE_URL=url, **keys)
    assert result.returncode == 1
    expected_text = "JOBS_API_KEYS" if has_ledger else "jobctl db upgrade"
    assert expected_text in result.stderr
    assert "Traceback" not in result.stderr

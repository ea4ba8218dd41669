"""A secret of a payload is in no page, answer, command or log; its handler gets it, also after
somebody has edited the dead letter."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from switchyard.services.common.errors import PermanentError
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.engine.jobs.secret_fields import CHANGED, HIDDEN, Secret
from switchyard.services.engine.records.states import State
from switchyard.services.engine.redrive.handler import RedriveHandler
from switchyard.services.engine.schedules.entry import ScheduleEntry
from switchyard.services.engine.schedules.service import Schedules
from tests.integration.api.background_api import MODULES
from tests.support.api_server import RunningApi, environment_of, serving, until_connected
from tests.support.brokers import TestBroker
from tests.support.commands import jobctl
from tests.support.system import System, open_system

TOKEN = "geheim-4711"
OTHER_TOKEN = "geheim-4712"


class Login(BaseModel):
    user: str
    password: Annotated[str, Secret()]


class Delivery(BaseModel):
    to: str
    login: Login


@job("deliver_secretly", worker="llm", lanes=("hot",))
async def deliver(payload: Delivery, ctx: JobContext) -> Outcome:
    if payload.to == "nowhere":
        raise PermanentError(f"nobody lives there, 401 for https://a/?key={payload.login.password}")
    return Done({"right": payload.login.password == TOKEN})


@pytest.fixture
async def system(broker310: TestBroker, sqlite_url: str, tmp_path: Path) -> AsyncIterator[System]:
    async with open_system(
        broker310, sqlite_url, modules=(*MODULES, __name__), data_dir=tmp_path / "data"
    ) as opened:
        yield opened


@pytest.fixture
async def api(system: System) -> AsyncIterator[RunningApi]:
    async with serving(system.settings) as running:
        await until_connected(running)
        yield running


def delivery(password: str) -> dict:
    return {"to": "nowhere", "login": {"user": "me", "password": password}}


async def test_a_secret_is_shown_nowhere_and_survives_an_edit(
    system: System, api: RunningApi, caplog: pytest.LogCaptureFixture
) -> None:
    await system.start_worker("llm")
    body = {"routing_key": "hot.deliver_secretly", "payload": delivery(TOKEN)}
    job_id = (await api.client.post("/jobs", json=body)).json()["job_id"]
    await system.wait_for_state(job_id, State.DEAD)
    await system.wait_for_letter(job_id)
    entry = {"name": "nightly", "cron": "0 6 * * *", "job": "hot.deliver_secretly"}
    nightly = ScheduleEntry.from_fields(entry | {"payload": delivery(TOKEN)})
    schedules = Schedules(system.ledger, system.registry)
    await schedules.add(nightly, remote=False, created_by="a test")

    environment = environment_of(system.settings)
    texts = {
        " ".join(command): (await jobctl(*command, **environment)).stdout
        for command in (
            ("dead", "show", job_id),
            ("jobs", "show", job_id),
            ("schedules", "list", "--json"),
            ("dead", "redrive", job_id, "--dry-run", "--set", "payload.to=here"),
        )
    }
    for path in (
        f"/jobs/{job_id}",
        f"/admin/dead/{job_id}",
        "/schedules/nightly",
        f"/dashboard/jobs/{job_id}",
        f"/dashboard/dead/letters/{job_id}",
        f"/dashboard/dead/letters/{job_id}/edit",
        "/dashboard/schedules/nightly",
    ):
        texts[path] = (await api.client.get(path)).text
    for shown_in, text in texts.items():
        assert "geheim" not in text, shown_in
        assert "nowhere" in text, shown_in
        assert HIDDEN in text, shown_in
    assert "geheim" not in caplog.text

    merge = {"to": "elsewhere", "login": {"password": OTHER_TOKEN}}
    redrive: dict[str, Any] = {"filter": {"ids": [job_id]}, "change": {"merge": merge}}
    rerun: dict[str, Any] = {"action": "rerun", **redrive}
    for path, request in (("/admin/dead/redrives", redrive), ("/jobs/actions", rerun)):
        preview = await api.client.post(path, json=request | {"dry_run": True})
        assert preview.status_code == 200, preview.text
        assert "geheim" not in preview.text
    started = await api.client.post("/jobs/actions", json=rerun | {"rate": 0.001})
    assert started.status_code == 202, started.text
    action = started.headers["location"]
    command = ("jobs", "actions", "show", action.rpartition("/")[2])
    shown = [started.text, (await jobctl(*command, **environment)).stdout]
    shown += [(await api.client.get(path)).text for path in (action, f"/dashboard{action}")]
    for text in shown:
        assert "geheim" not in text
        assert "rerun" in text
    await api.client.post(f"{action}/cancel")

    refused = await api.client.post("/jobs", json=body | {"payload": delivery(HIDDEN)})
    assert refused.status_code == 422
    assert "give its value" in refused.text

    token = re.search(
        r'name="csrf" value="([^"]+)"', texts[f"/dashboard/dead/letters/{job_id}/edit"]
    )
    assert token is not None
    edit = f"/dashboard/dead/letters/{job_id}"
    login = json.dumps({"user": "me", "password": HIDDEN})
    form = {"csrf": token[1], "f.to": "here", "f.login": login}
    comparison = (await api.client.post(f"{edit}/edit", data=form)).text
    assert "geheim" not in comparison
    assert "here" in comparison
    changed_form = form | {"f.login": json.dumps({"user": "me", "password": OTHER_TOKEN})}
    changed_page = (await api.client.post(f"{edit}/edit", data=changed_form)).text
    assert CHANGED in changed_page.partition("<form")[0]
    edited_payload = json.dumps({"to": "here", "login": {"user": "me", "password": HIDDEN}})
    sent = await api.client.post(
        f"{edit}/retry", data={"csrf": token[1], "payload": edited_payload}
    )
    assert sent.status_code == 303
    handler = RedriveHandler(system.settings, system.registry, system.ledger, lanes=system.lanes)
    runner = BulkRunner(system.ledger, [handler])
    running = asyncio.create_task(runner.run())
    try:
        finished = await system.wait_for_state(job_id, State.SUCCEEDED)
    finally:
        runner.stop()
        await asyncio.wait_for(running, 20)
    assert finished.result == {"right": True}
    for path in (sent.headers["location"], f"/admin/dead/{job_id}", edit):
        assert "geheim" not in (await api.client.get(path)).text, path

"""The dashboard while the ledger is read-only, locked or unreachable: it shows what it can, and
says what to do."""

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.engine.access.api_keys import Scope, create_key
from tests.integration.api.background_api import MODULES
from tests.integration.dashboard.test_signing_in import sign_in
from tests.integration.dashboard.test_views import _add_schedule
from tests.support.api_server import RunningApi, serving, until_connected
from tests.support.brokers import TestBroker
from tests.support.browser import Browser
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.redrives import bury
from tests.support.system import System, open_system

pytestmark = pytest.mark.chaos
VIEWS = (
    *("", "/jobs", "/jobs/{job}", "/jobs/new", "/jobs/new?type=noop", "/jobs/act?type=noop"),
    *("/jobs/actions", "/dead", "/dead/groups/{group}", "/dead/letters/dead-1", "/backfills"),
    *("/dead/letters/dead-1/edit", "/backfills/new?source=documents", "/workers", "/schedules"),
    *("/schedules/nightly", "/limits", "/documents"),
)
ACTIONS: tuple[tuple[str, dict[str, str]], ...] = (
    ("/jobs/{job}/cancel", {}),
    ("/jobs/{job}/copy", {}),
    ("/jobs/act?type=noop", {"action": "cancel"}),
    ("/pauses", {"scope": "lane", "target": "hot", "from": "overview"}),
    ("/schedules/nightly/pause", {}),
    ("/schedules/nightly/run", {}),
    ("/dead/purges", {"letter": "dead-1"}),
)


async def test_a_read_only_ledger_is_shown_and_actions_are_refused_with_a_remedy(
    broker310: TestBroker, postgres_server: PostgresServer
) -> None:
    url = postgres_server.create_ledger()
    database = url.rpartition("/")[2]
    connections = f"FROM pg_stat_activity WHERE datname = '{database}'"
    async with (
        open_system(broker310, url, modules=MODULES) as system,
        serving(system.settings) as api,
    ):
        await until_connected(api)
        job_id = await system.publish("hot.noop")
        await bury(system, "dead-1", "hot.noop", {"n": 1})
        await _add_schedule(system)
        (group,) = await system.ledger.dead_letters.dead_groups(limit=1)
        key = await create_key(system.ledger, "somebody", [Scope.ADMIN])
        await sign_in(api, key.key)
        postgres_server.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
        postgres_server.execute(f"SELECT pg_terminate_backend(pid) {connections}")
        api.client.cookies.clear()
        page = await sign_in(api, key.key)  # a new session works, too

        async def shows_finding() -> bool:
            return "ledger-read-only" in (await api.client.get("/dashboard")).text

        await eventually(shows_finding, what="the finding")
        for path in VIEWS:
            path = path.format(job=job_id, group=group.fingerprint)
            answer = await api.client.get(f"/dashboard{path}")
            assert answer.status_code == 200, (path, answer.text)
        csrf = re.findall(r'name="csrf" value="(\w+)"', page)[0]
        for path, fields in ACTIONS:
            path = path.format(job=job_id)
            refused = await api.client.post(f"/dashboard{path}", data={**fields, "csrf": csrf})
            assert refused.status_code == 503, (path, refused.text)
            assert "Nothing was done: the ledger can be read, but takes no writes." in refused.text
            assert "<code>jobctl doctor</code>" in refused.text
        answer = await api.client.post("/dashboard/logout", data={"csrf": csrf})
        assert answer.status_code == 303
        assert "Sign in" in (await api.client.get("/dashboard", follow_redirects=True)).text


@contextmanager
def open_second_connection(settings: Settings) -> Iterator[sqlite3.Connection]:
    """Yield a further connection to the ledger's file; `BEGIN IMMEDIATE` there locks the ledger."""
    file = settings.ledger_url.partition(":///")[2]
    with closing(
        sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    ) as connection:
        yield connection


async def test_an_action_on_a_locked_ledger_does_nothing(system: System, api: RunningApi) -> None:
    job_id = await system.publish("hot.noop")
    await bury(system, "dead-1", "hot.noop", {"n": 1})
    await _add_schedule(system)
    csrf = re.findall(r'name="csrf" value="(\w+)"', (await api.client.get("/dashboard")).text)[0]
    with open_second_connection(system.settings) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for path, fields in ACTIONS:
            path = path.format(job=job_id)
            refused = await api.client.post(f"/dashboard{path}", data={**fields, "csrf": csrf})
            assert refused.status_code == 503, (path, refused.text)
            assert "Nothing was done: another process holds the ledger" in refused.text, path


async def test_an_action_that_is_interrupted_by_a_lock_is_reported_as_partly_done(
    system: System, api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bury(system, "dead-1", "hot.noop", {"n": 1})
    csrf = re.findall(r'name="csrf" value="(\w+)"', (await api.client.get("/dashboard")).text)[0]
    database = api.state.ledger.core.database
    write = database.write
    with open_second_connection(system.settings) as connection:

        async def write_and_lock(body: Any) -> Any:
            result = await write(body)
            connection.execute("BEGIN IMMEDIATE")
            return result

        monkeypatch.setattr(database, "write", write_and_lock)
        fields = {"letter": "dead-1", "limit": "1", "csrf": csrf}
        refused = await api.client.post("/dashboard/dead/redrives", data=fields)
    assert refused.status_code == 503, refused.text
    assert "A part of it may be done, the rest was not: another process holds" in refused.text
    assert "Look before you repeat it." in refused.text
    assert "Nothing was done" not in refused.text


async def test_an_open_page_says_that_it_is_not_up_to_date_while_the_ledger_is_unreachable(
    broker310: TestBroker, postgres_server: PostgresServer, browser: Browser
) -> None:
    url = postgres_server.create_ledger()
    async with (
        open_system(broker310, url, modules=MODULES) as system,
        serving(system.settings) as api,
    ):
        await until_connected(api)

        def look() -> None:
            browser.open(f"{api.url}/dashboard/jobs")
            browser.find("[data-live-state=on]")
            assert not browser.find("[data-trouble]").is_displayed()

        def look_again() -> None:
            browser.await_text("The ledger can't be used now.", "[data-trouble]")
            browser.await_text("not up to date", "[data-live-state]")
            browser.open(f"{api.url}/dashboard/jobs")
            browser.await_text("jobctl doctor", "[data-why]")

        def look_back() -> None:
            browser.click("[data-why] ~ .actions a.primary")
            browser.find("[data-live-state=on]")

        await asyncio.to_thread(look)
        await asyncio.to_thread(postgres_server.stop)
        try:
            await asyncio.to_thread(look_again)
        finally:
            await asyncio.to_thread(postgres_server.start)

        async def is_back() -> bool:
            return (await api.client.get("/dashboard/jobs")).status_code == 200

        await eventually(is_back, what="the ledger")
        await asyncio.to_thread(look_back)

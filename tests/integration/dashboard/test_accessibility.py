"""Every view, with content, is checked by the rules of axe-core in both themes."""

import asyncio
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Any

import pytest

from switchyard.services.engine.access.api_keys import Scope, create_key
from switchyard.services.engine.records.pauses import NewPause, PauseScope
from switchyard.services.engine.schedules.entry import ScheduleEntry
from switchyard.services.engine.schedules.service import Schedules
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.records.llm_servers import LlmMinute
from tests.integration.dashboard.test_documents_view import wait_for_documents
from tests.support.api_server import RunningApi, serving, until_connected
from tests.support.browser import MIDDLE, NARROW, WIDE, Browser
from tests.support.pdfs import scan, slips
from tests.support.redrives import bury
from tests.support.system import System

SCRIPT = files(pytest.importorskip("axe_core_python")) / "axe.min.js"
AXE_SCRIPT = SCRIPT.read_text()
RUN_AXE = """
const [rules, done] = arguments;
const options = {resultTypes: ["violations"]};
if (rules) options.runOnly = {type: "rule", values: rules};
axe.run(options).then(
  (found) => done(found.violations.filter((each) => ["critical", "serious"].includes(each.impact))
    .map((each) => `${each.id}: ${each.nodes.slice(0, 3).map((node) => node.html).join(" ")}`)),
  (error) => done([String(error)]));
"""
COLOUR_RULES = ["color-contrast"]
"""The rules whose findings depend on the theme."""


async def _fill_views(system: System, api: RunningApi) -> list[tuple[str, str]]:
    """Make content for each view. Return the views' paths, and a selector of the button that leads
    to the view from there, or an empty one."""
    sent = await api.client.post("/documents", files={"file": ("a.md", b"# Tides\n\nThey rise.")})
    document_id = sent.json()["document_id"]
    picture = scan(slips(["The tide rises."]))
    sent = await api.client.post("/documents", files={"file": ("a.pdf", picture)})
    scanned = f"documents/{sent.json()['document_id']}/pages/1?q=rises"
    await bury(system, "dead-1", "hot.noop", {"n": 1, "text": "x"})
    group = (await system.ledger.dead_letters.dead_groups(limit=1))[0].fingerprint
    pause = NewPause(PauseScope.LANE, "backfill", "a test", "a reason", 3600)
    await system.ledger.pauses.pause(pause)
    llm, now = LlmLedger(system.ledger), system.ledger.clock.time()
    await llm.slots.take_llm_slot(
        "default", "slot", "a test", ttl=60, is_hot=True, first_limit=4, max_limit=4
    )
    paused = {"paused_until": now + 500, "pause_reason": "no answer"}
    await llm.slots.end_llm_slot("default", "slot", lambda state, *_: replace(state, **paused))
    await llm.history.add_minute([LlmMinute(now - now % 60, "default", 4, 3)], now)
    entry = {"name": "nightly", "cron": "0 3 * * *", "job": "hot.noop"}
    schedules = Schedules(system.ledger, system.registry)
    await schedules.add(ScheduleEntry.from_fields(entry), remote=False, created_by="a test")
    plan = {"source": "documents", "job_type": "noop", "options": {}}
    await wait_for_documents(system, api, 2)
    redrive = await api.client.post("/admin/dead/redrives", json={"all": True})
    redrive_id = redrive.headers["Location"].rpartition("/")[2]
    backfill = (await api.client.post("/backfills", json=plan)).json()["id"]
    action_request = {"action": "rerun", "filter": {"job_type": "ingest_document"}}
    started = await api.client.post("/jobs/actions", json=action_request)
    action = started.headers["Location"].rpartition("/")[2]
    document = f"documents/{document_id}"
    paths = [
        *("", "jobs", "jobs/dead-1", "dead", f"dead/groups/{group}", "dead/letters/dead-1"),
        *("dead/letters/dead-1/edit", "backfills", f"backfills/{backfill}"),
        *("backfills/new?source=arxiv", "workers", "schedules", "schedules/nightly", "limits"),
        *("llm", "documents", document, f"{document}/pages/1?q=rise", scanned),
        *("documents/search?q=tides", "jobs/nobody"),
        *("jobs/new", "jobs/new?type=scripted", "jobs/new?like=dead-1"),
        *("jobs/act?type=ingest_document", "jobs/actions", f"jobs/actions/{action}"),
        *("jobs?state=dead", "jobs?type=nobodys", f"dead/redrives/{redrive_id}"),
    ]
    buttons = {
        f"dead/groups/{group}": ".redrive button.primary",
        "dead/letters/dead-1/edit": ".form button.primary",
    }
    pages = [(name, "") for name in paths] + list(buttons.items())
    return [(f"/dashboard/{name}".rstrip("/"), button) for name, button in pages]


@pytest.mark.long
@pytest.mark.timeout(300)  # thirty pages, each examined twice
async def test_no_view_has_a_serious_problem_in_any_theme_or_width(
    system: System, browser: Browser
) -> None:
    await system.start_worker("ingest", "llm", "embed", "link", "ocr")
    problems: dict[str, Any] = {}

    def examine(name: str) -> None:
        browser.run(AXE_SCRIPT)
        for theme, rules in (("light", None), ("dark", COLOUR_RULES)):
            browser.prefer(theme)
            if violations := browser.driver.execute_async_script(RUN_AXE, rules):
                problems[f"{name}, {theme}"] = violations
        browser.prefer("light")
        for size in (NARROW, MIDDLE):
            browser.resize(*size)
            if browser.run("return document.documentElement.scrollWidth > innerWidth"):
                problems[f"{name} is wider than {size[0]}"] = True
        browser.resize(*WIDE)

    def examine_all(url: str, pages: list[tuple[str, str]]) -> None:
        for path, button in pages:
            browser.open(f"{url}{path}")
            browser.find("main")
            if button:
                browser.click(button)
                browser.await_text("?", "h1")  # the page asks for confirmation
            if "pages/1" in path:
                browser.find(".page-picture" if path.endswith("=rises") else ".page-text")
            examine(f"{path} {button}")

    def is_asked_for_a_key(url: str) -> bool:
        browser.open(f"{url}/dashboard")
        return bool(browser.all("#key"))

    changes = {"llm_base_url": "http://127.0.0.1:9/v1", "llm_model": "a-model"}
    async with serving(system.settings, **changes) as api:
        await until_connected(api)
        await asyncio.to_thread(examine_all, api.url, await _fill_views(system, api))
        await create_key(system.ledger, "somebody", [Scope.ADMIN])
        needs_key = partial(is_asked_for_a_key, api.url)
        await asyncio.to_thread(browser.wait, needs_key, "the page to sign in")
        await asyncio.to_thread(examine, "the page to sign in")
    assert problems == {}

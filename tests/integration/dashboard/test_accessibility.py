"""Every view by the rules of axe-core, light and dark, with something to show in each."""

import asyncio
from importlib.resources import files
from typing import Any

import pytest

from switchyard.services.engine.records.pauses import NewPause, PauseScope
from switchyard.services.engine.schedules.entry import ScheduleEntry
from switchyard.services.engine.schedules.service import Schedules
from tests.integration.dashboard.test_documents_view import completed
from tests.support.api_server import RunningApi
from tests.support.browser import MIDDLE, NARROW, WIDE, Browser
from tests.support.redrives import bury
from tests.support.system import System

SCRIPT = files(pytest.importorskip("axe_core_python")) / "axe.min.js"
AXE = SCRIPT.read_text()
RUN = """
const [rules, done] = arguments;
const options = {resultTypes: ["violations"]};
if (rules) options.runOnly = {type: "rule", values: rules};
axe.run(options).then(
  (found) => done(found.violations.filter((each) => ["critical", "serious"].includes(each.impact))
    .map((each) => `${each.id}: ${each.nodes.slice(0, 3).map((node) => node.html).join(" ")}`)),
  (error) => done([String(error)]));
"""
COLOURS = ["color-contrast"]
"""The rule for which a theme matters."""


async def _filled(system: System, api: RunningApi) -> list[str]:
    """Put something into each view; the paths of all of them."""
    sent = await api.client.post("/documents", files={"file": ("a.md", b"# Tides\n\nThey rise.")})
    document_id = sent.json()["document_id"]
    await bury(system, "dead-1", "hot.noop", {"n": 1, "text": "x"})
    group = (await system.ledger.dead_letters.dead_groups(limit=1))[0].fingerprint
    pause = NewPause(PauseScope.LANE, "backfill", "a test", "a reason", 3600)
    await system.ledger.pauses.pause(pause)
    entry = {"name": "nightly", "cron": "0 3 * * *", "job": "hot.noop"}
    schedules = Schedules(system.ledger, system.registry)
    await schedules.add(ScheduleEntry.from_fields(entry), remote=False, created_by="a test")
    plan = {"source": "documents", "job_type": "noop", "options": {}}
    await completed(system, api, 1)
    backfill = (await api.client.post("/backfills", json=plan)).json()["id"]
    order = {"action": "rerun", "filter": {"job_type": "ingest_document"}}
    started = await api.client.post("/jobs/actions", json=order)
    action = started.headers["Location"].rpartition("/")[2]
    document = f"documents/{document_id}"
    names = [
        *("", "jobs", "jobs/dead-1", "dead", f"dead/groups/{group}", "dead/letters/dead-1"),
        *("dead/letters/dead-1/edit", "backfills", f"backfills/{backfill}"),
        *("backfills/new?source=arxiv", "workers", "schedules", "schedules/nightly", "limits"),
        *("llm", "documents", document, f"{document}/pages/1?q=rise"),
        *("documents/search?q=tides", "login", "jobs/nobody"),
        *("jobs/new", "jobs/new?type=scripted", "jobs/new?like=dead-1"),
        *("jobs/act?type=ingest_document", "jobs/actions", f"jobs/actions/{action}"),
    ]
    return [f"/dashboard/{name}".rstrip("/") for name in names]


@pytest.mark.long
@pytest.mark.timeout(300)  # twenty pages, each examined twice
async def test_no_view_has_a_serious_finding_light_dark_or_narrow(
    system: System, api: RunningApi, browser: Browser
) -> None:
    await system.start_worker("ingest", "llm", "embed", "link")
    paths = await _filled(system, api)

    def examine() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in paths:
            browser.open(f"{api.url}{path}")
            browser.find("main")
            browser.run(AXE)
            for theme, rules in (("light", None), ("dark", COLOURS)):
                browser.prefer(theme)
                if wrong := browser.driver.execute_async_script(RUN, rules):
                    found[f"{path}, {theme}"] = wrong
            browser.prefer("light")
            for size in (NARROW, MIDDLE):
                browser.resize(*size)
                if browser.run("return document.documentElement.scrollWidth > innerWidth"):
                    found[f"{path} is wider than {size[0]}"] = True
            browser.resize(*WIDE)
        return found

    assert await asyncio.to_thread(examine) == {}

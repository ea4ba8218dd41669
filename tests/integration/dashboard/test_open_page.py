"""The memory of an open page, and of its API, does not grow with the number of changes."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.common import resident_memory
from switchyard.api.dashboard.jobs import PAGE_SIZE
from tests.support.api_server import ApiProcess, api_process
from tests.support.browser import Browser
from tests.support.eventually import eventually
from tests.support.made import message, new_job
from tests.support.system import System

WARM_UP_CHANGES = 100
"""Changes until all caches have their final size."""
CHANGES = 500
"""Changes in which nothing may grow. A page that changes all the time has 1,800 in an hour, as it
is read every two seconds; a leak shows in fewer."""
MAX_GROWTH_MB = 4.0
"""MB by which the API's process may grow meanwhile: 8 kB for each change, which is sent as 20 to 60
kB. A thousand changes were measured to add 2.5 MB, as memory becomes fragmented."""
READS_ALL_THE_TIME = """
import runpy
from switchyard.api.dashboard import live

live.REST, live.SECONDS_FOR_EACH = 0, 0.0
live.Feeds.__init__.__kwdefaults__["interval"] = 0.01
runpy.run_module("switchyard.cli.main", run_name="__main__")
"""
"""`jobctl api` which reads its open pages again at once, instead of every two seconds."""
COUNT_UPDATES = """
window.updates = 0;
new MutationObserver(() => { window.updates += 1; })
  .observe(document.querySelector("[data-region]"),
    {subtree: true, childList: true, characterData: true, attributes: true});
"""


def page_memory(browser: Browser) -> dict[str, float]:
    """Return the page's heap size in bytes, nodes and listeners after a garbage collection."""
    browser.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    metrics = browser.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    values = {each["name"]: each["value"] for each in metrics}
    return {name: values[name] for name in ("JSHeapUsedSize", "Nodes", "JSEventListeners")}


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_hundreds_of_changes_do_not_grow_the_browser_and_the_process(
    system: System, browser: Browser, tmp_path: Path
) -> None:
    numbers = iter(range(1_000_000))

    async def change(number: int) -> None:
        """Record jobs until the page has shown `number` more changes."""
        updates_before = await asyncio.to_thread(browser.run, "return window.updates")

        async def has_arrived() -> bool:
            for _ in range(5):
                await system.ledger.jobs.record(new_job(message(f"job-{next(numbers)}")))
                await asyncio.sleep(0)
            now = await asyncio.to_thread(browser.run, "return window.updates")
            return bool(now >= updates_before + number)

        await eventually(has_arrived, timeout=600, what=f"{number} changes")

    for _ in range(PAGE_SIZE):  # fill the page first: further rows would add nodes
        await system.ledger.jobs.record(new_job(message(f"job-{next(numbers)}")))
    async with api_process(system.settings, tmp_path / "log", code=READS_ALL_THE_TIME) as api:

        def measure() -> dict[str, float]:
            return {**page_memory(browser), "process": resident_memory(of=api.process.pid)}

        await _open(browser, api)
        await change(WARM_UP_CHANGES)
        before = await asyncio.to_thread(measure)
        await change(CHANGES)
        after: dict[str, float] = {}

        async def is_settled() -> bool:
            """Measure again: a page that is drawing a change holds its old and new nodes."""
            after.update(await asyncio.to_thread(measure))
            return after["Nodes"] < before["Nodes"] * 1.1 + 200

        await eventually(is_settled, what=f"a page with no more nodes than {before}")
    before_and_after = f"{before} → {after}"
    print(before_and_after)
    assert after["JSHeapUsedSize"] < before["JSHeapUsedSize"] * 1.1 + 500_000, before_and_after
    assert after["JSEventListeners"] <= before["JSEventListeners"], before_and_after
    assert after["process"] < before["process"] + MAX_GROWTH_MB, before_and_after


async def _open(browser: Browser, api: ApiProcess) -> None:
    """Open the page, and count what changes on it from now on."""

    def begin() -> None:
        browser.driver.execute_cdp_cmd("Performance.enable", {})
        browser.open(f"{api.url}/dashboard/jobs")
        browser.await_text("live", "[data-live-text]")
        browser.run(COUNT_UPDATES)

    await asyncio.to_thread(begin)

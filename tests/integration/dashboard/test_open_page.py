"""A page that stays open costs nothing more after many changes."""

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

WARM, UPDATES = 100, 500
"""Changes until all that is kept has its size, and those in which nothing may grow. Not their
seconds but their number counts: an hour of a page that changes all the time, which is read every
two seconds, has 1,800, and what each leaves behind shows in fewer."""
MAX_GROWTH_MB = 4.0
"""MB that the API's process may have grown by these, 8 kB for each: a change is sent as 20 to 60
kB. A thousand changes were measured to add 2.5 MB, as memory is used in other places."""
READS_ALL_THE_TIME = """
import runpy
from switchyard.api.dashboard import live

live.REST, live.SECONDS_FOR_EACH = 0, 0.0
live.Feeds.__init__.__kwdefaults__["interval"] = 0.01
runpy.run_module("switchyard.cli.main", run_name="__main__")
"""
"""`jobctl api` whose pages are read again at once, and not every two seconds."""
COUNT = """
window.updates = 0;
new MutationObserver(() => { window.updates += 1; })
  .observe(document.querySelector("[data-region]"),
    {subtree: true, childList: true, characterData: true, attributes: true});
"""


def kept_by(browser: Browser) -> dict[str, float]:
    """What the page holds after a collection of garbage."""
    browser.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    metrics = browser.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    values = {each["name"]: each["value"] for each in metrics}
    return {name: values[name] for name in ("JSHeapUsedSize", "Nodes", "JSEventListeners")}


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_hundreds_of_changes_leave_nothing_in_the_browser_and_the_process(
    system: System, browser: Browser, tmp_path: Path
) -> None:
    names = iter(range(1_000_000))

    async def change(number: int) -> None:
        """Have so many more changes arrive at the page."""
        seen = await asyncio.to_thread(browser.run, "return window.updates")

        async def has_come() -> bool:
            for _ in range(5):
                await system.ledger.jobs.record(new_job(message(f"job-{next(names)}")))
                await asyncio.sleep(0)
            now = await asyncio.to_thread(browser.run, "return window.updates")
            return bool(now >= seen + number)

        await eventually(has_come, timeout=600, what=f"{number} changes")

    for _ in range(PAGE_SIZE):  # a page that is not full yet gets rows, and they are nodes
        await system.ledger.jobs.record(new_job(message(f"job-{next(names)}")))
    async with api_process(system.settings, tmp_path / "log", code=READS_ALL_THE_TIME) as api:

        def look() -> dict[str, float]:
            return {**kept_by(browser), "process": resident_memory(of=api.process.pid)}

        await _open(browser, api)
        await change(WARM)
        before = await asyncio.to_thread(look)
        await change(UPDATES)
        after: dict[str, float] = {}

        async def is_settled() -> bool:
            """Look at a page that has drawn its last change: until then, it holds old and new."""
            after.update(await asyncio.to_thread(look))
            return after["Nodes"] < before["Nodes"] * 1.1 + 200

        await eventually(is_settled, what=f"a page with no more nodes than {before}")
    told = f"{before} → {after}"
    print(told)
    assert after["JSHeapUsedSize"] < before["JSHeapUsedSize"] * 1.1 + 500_000, told
    assert after["JSEventListeners"] <= before["JSEventListeners"], told
    assert after["process"] < before["process"] + MAX_GROWTH_MB, told


async def _open(browser: Browser, api: ApiProcess) -> None:
    """Open the page, and count what changes on it from now on."""

    def begin() -> None:
        browser.driver.execute_cdp_cmd("Performance.enable", {})
        browser.open(f"{api.url}/dashboard/jobs")
        browser.await_text("live", "[data-live-text]")
        browser.run(COUNT)

    await asyncio.to_thread(begin)

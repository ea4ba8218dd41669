import asyncio

from tests.support.api_server import RunningApi
from tests.support.browser import Browser
from tests.support.made import letter
from tests.support.system import System

INJECTION = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


async def test_the_overview_shows_findings_lanes_and_dead_and_stays_up_to_date(
    system: System, api: RunningApi, browser: Browser
) -> None:
    await system.start_worker("llm")
    await system.ledger.lane_history.add_minute(
        ["hot"], {"hot": 3}, hot="hot", now=system.ledger.clock.time()
    )

    def look() -> None:
        browser.open(f"{api.url}/dashboard")
        browser.await_text("scheduler-none", "[data-region=live_findings]")
        browser.await_text("jobctl scheduler", "[data-region=live_findings]")
        assert [each.text for each in browser.all(".lanes tbody th")] == [
            "hot",
            "vlm_ocr",
            "maintenance",
            "backfill",
        ]
        assert "No job is dead." in browser.text("[data-region=live_dead]")

    await asyncio.to_thread(look)
    await system.ledger.dead_letters.index_dead(
        [
            letter(
                lane="hot",
                job_type=INJECTION,
                error_type=INJECTION,
                error_message=INJECTION,
                fingerprint="of-a-group",
            )
        ]
    )

    def look_again() -> None:
        browser.await_text(INJECTION[:60], "[data-region=live_dead]")  # without loading it again
        browser.await_text("live", "[data-live-state]")
        assert browser.driver.title == "Overview · Switchyard"
        assert not browser.all("main img, main script")
        assert browser.complaints() == []

    await asyncio.to_thread(look_again)


async def test_a_page_is_used_by_the_keyboard_alone(api: RunningApi, browser: Browser) -> None:
    def use() -> None:
        browser.open(f"{api.url}/dashboard")
        browser.find(".lanes [data-row]")
        browser.press("j")
        first = browser.run("return document.activeElement.matches('[data-row]')")
        assert first
        here = "return [...document.querySelectorAll('[data-row]')].indexOf(document.activeElement)"
        assert browser.run(here) == 0
        browser.press("j", "j", "k")
        assert browser.run(here) == 1
        browser.press("?")
        assert browser.find("dialog[open]").is_displayed()
        browser.press("\ue00c")  # Escape
        assert not browser.all("dialog[open]")
        browser.press("t")
        assert browser.run("return document.documentElement.dataset.theme") == "dark"
        browser.open(f"{api.url}/dashboard")
        assert browser.run("return document.documentElement.dataset.theme") == "dark"

    await asyncio.to_thread(use)


async def test_a_page_that_is_not_looked_at_is_not_read(api: RunningApi, browser: Browser) -> None:
    feeds = api.server.app.state.dashboard.feeds

    def look() -> None:
        browser.open(f"{api.url}/dashboard")
        browser.find("[data-live-state=on]")
        assert feeds.number == 1
        browser.driver.switch_to.new_window("tab")
        browser.open(f"{api.url}/dashboard")
        browser.find("[data-live-state=on]")
        assert feeds.number == 1  # one reading for both
        browser.driver.close()
        browser.driver.switch_to.window(browser.driver.window_handles[0])
        browser.open("about:blank")
        browser.wait(lambda: feeds.number == 0, "the end of the reading")

    await asyncio.to_thread(look)


async def test_the_pages_are_useful_without_scripts_and_small(api: RunningApi) -> None:
    page = await api.client.get("/dashboard")
    assert page.status_code == 200
    weight = len(page.content)
    for name in ("dashboard.css", "dashboard.js", "icon.svg"):
        weight += len((await api.client.get(f"/dashboard/static/{name}")).content)
    assert weight < 150_000
    assert "backfill" in page.text
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


async def test_the_api_shows_its_own_page_and_loads_nothing_from_elsewhere(
    api: RunningApi, browser: Browser
) -> None:
    def look() -> None:
        browser.open(f"{api.url}/docs")
        browser.await_text("/jobs/{job_id}")
        assert browser.find(".authorize").is_displayed()
        hosts = browser.run(
            "return performance.getEntriesByType('resource').map(e => new URL(e.name).host)"
        )
        assert set(hosts) <= {browser.run("return location.host")}
        assert browser.complaints() == []

    await asyncio.to_thread(look)

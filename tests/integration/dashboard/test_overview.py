import asyncio
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from switchyard.api.dashboard import live
from switchyard.api.dashboard.pages import DashboardPage, Renderer
from switchyard.api.dashboard.readings import DOCTOR_INTERVAL, NOTICED_INTERVAL
from switchyard.api.dashboard.remedies import actions_of
from switchyard.services.engine.monitoring.check import Finding, failure, ok, warning, worst_first
from switchyard.services.engine.records.pauses import NewPause, PauseScope
from switchyard.services.engine.records.states import State
from tests.integration.api.background_api import MODULES
from tests.support.api_server import RunningApi, serving, until_connected
from tests.support.brokers import TestBroker
from tests.support.browser import Browser
from tests.support.eventually import eventually
from tests.support.made import letter, message, new_job
from tests.support.system import System, open_system

REASONS = ("exhausted", "expired", "crashed")
CSS = "text/css; charset=utf-8"
INJECTION = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


async def test_the_overview_shows_findings_lanes_and_dead_letters_and_stays_up_to_date(
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
        browser.await_text(
            INJECTION[:60], "[data-region=live_dead]"
        )  # without loading the page again
        browser.await_text("live", "[data-live-state]")
        assert browser.driver.title == "Overview · Switchyard"
        assert not browser.all("main img, main script")
        assert browser.complaints() == []

    await asyncio.to_thread(look_again)


async def test_a_finding_is_checked_again_after_an_action(system: System, api: RunningApi) -> None:
    pause = NewPause(PauseScope.TYPE, "noop", "a test")
    recorded_pause = await system.ledger.pauses.pause(pause)

    async def is_shown() -> bool:
        return recorded_pause.id in (await api.client.get("/dashboard")).text

    await eventually(is_shown, what="the finding")
    page = (await api.client.get("/dashboard")).text
    csrf = re.findall(r'name="csrf" value="(\w+)"', page)[0]
    form = {"csrf": csrf, "from": "overview"}
    answer = await api.client.post(f"/dashboard/pauses/{recorded_pause.id}/resume", data=form)
    assert answer.status_code == 303

    async def is_gone() -> bool:
        return recorded_pause.id not in (await api.client.get("/dashboard")).text

    await eventually(is_gone, what="the end of the finding", timeout=DOCTOR_INTERVAL / 2)


async def test_a_change_on_the_page_triggers_the_checks_and_new_findings_come_first(
    system: System, api: RunningApi
) -> None:
    first = await system.ledger.pauses.pause(NewPause(PauseScope.TYPE, "noop", "a test"))

    async def is_shown(text: str) -> bool:
        return text in (await api.client.get("/dashboard")).text

    await eventually(partial(is_shown, first.id), what="the finding")
    assert not await is_shown(">new ")  # the finding is older than the first page
    await system.ledger.dead_letters.index_dead([letter(error_type="<b>")])
    await eventually(
        partial(is_shown, '<span class="tag">dead-waiting</span> <span class="of">new '),
        what="the new finding",
        timeout=NOTICED_INTERVAL + DOCTOR_INTERVAL / 2,
    )
    page = (await api.client.get("/dashboard")).text
    tags = re.findall(r'<span class="tag">([\w-]+)</span>', page)
    assert tags[0] == "dead-waiting", "what is new comes first"


async def test_a_finding_has_a_button_for_its_remedy_or_a_command_to_copy(
    system: System, api: RunningApi, browser: Browser
) -> None:
    pause = NewPause(PauseScope.TYPE, "noop", "a test", INJECTION)
    recorded_pause = await system.ledger.pauses.pause(pause)

    def resume() -> None:
        browser.open(f"{api.url}/dashboard")
        browser.await_text("scheduler-none", "[data-region=live_findings]")
        browser.click(".finding .copy")  # of a command without a page
        browser.find(".finding .copy.done")
        browser.await_text(INJECTION[:60], "[data-region=live_findings]")
        browser.click(f".finding form[action$='{recorded_pause.id}/resume'] button")
        browser.await_text("The type noop goes on.", ".notice")
        assert browser.complaints() == []

    await asyncio.to_thread(resume)
    assert (await system.ledger.pauses.active()).pauses == ()


async def test_the_count_of_retries_agrees_with_the_list_of_jobs(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    """A message stays in its retry queue although its job was cancelled meanwhile."""
    async with (
        open_system(
            broker310, sqlite_url, modules=MODULES, data_dir=tmp_path, retry_delays=(300.0,)
        ) as system,
        serving(system.settings) as api,
    ):
        await until_connected(api)
        await system.start_worker("llm")
        ids = [await system.publish("hot.scripted", {"steps": ["retry:300"]}) for _ in range(3)]
        for job_id in ids:
            await system.wait_for_state(job_id, State.RETRYING)
        await system.ledger.jobs.cancel(ids[0], system.ledger.clock.time())

        async def tile() -> str:
            page = (await api.client.get("/dashboard")).text
            return page.partition("Waiting for a retry")[2].partition("</div>")[0]

        async def shows_stale_message() -> bool:
            return "1 of them for no retry" in await tile()

        await eventually(shows_stale_message, what="the message of no retry")
        assert 'class="figure">2<' in await tile()
        assert "5 min 3" in await tile()
        listed = (await api.client.get("/dashboard/jobs?state=retrying")).text
        assert [each in listed for each in ids] == [False, True, True]


def test_commands_of_a_remedy_link_to_their_pages() -> None:
    for command, address, is_post in (
        ("resume pause-3fa9c01b22", "/dashboard/pauses/pause-3fa9c01b22/resume", True),
        ("resume pause-x", None, False),
        ("llm resume 'a b/c'", "/dashboard/llm/resume", True),
        ("jobs show abc-1", "/dashboard/jobs/abc-1", False),
        ("jobs cancel ID", None, False),
        ("llm spend", "/dashboard/llm", False),
        ("jobs list --state pending", "/dashboard/jobs?state=pending", False),
        ("dead groups", "/dashboard/dead", False),
        ("dead redrive --group ab12", "/dashboard/dead/groups/ab12", False),
        ("dead redrive --group ID", "/dashboard/dead", False),
        ("dead redrive --type x --yes", "/dashboard/dead?job_type=x", False),
        ("dead redrives show redrive-0123456789", "/dashboard/dead/redrives/redrive-0123456789", 0),
        ("backfill show backfill-0123456789", "/dashboard/backfills/backfill-0123456789", False),
        ("schedules run nightly", "/dashboard/schedules/nightly/run", True),
        ("db upgrade", None, False),
        ("jobs show 'unclosed", None, False),
    ):
        actions = actions_of(f"do it: `jobctl {command}`, then `make tea`")
        expected = [] if address is None else [(address, bool(is_post))]
        assert [(each.address, each.is_post) for each in actions] == expected, command
    remedy = ", ".join(f"`jobctl jobs show job-{n}`" for n in (1, 1, 2, 3, 4))
    assert [each.address[-5:] for each in actions_of(remedy)] == ["job-1", "job-2", "job-3"]


def test_the_worst_finding_comes_first() -> None:
    housekeeping = warning("keys", Finding.KEY_WEAK, "", "")
    paused = warning("pauses", Finding.PAUSED, "", "")
    late = failure("schedules", Finding.SCHEDULE_REFUSED, "", "")
    clock = failure("clock", Finding.CLOCK_BROKER, "", "")
    growing = failure("dead letters", Finding.DEAD_GROWING, "", "")
    full = failure("lanes", Finding.LANE_FULL, "", "")
    disk = failure("disk", Finding.DISK_FULL, "", "")
    findings = [housekeeping, late, ok("workers", ""), paused, clock, growing, full, disk]
    assert worst_first(findings) == [disk, growing, full, late, clock, paused, housekeeping]
    new_since = {paused: 200.0, clock: 100.0, housekeeping: 200.0}
    assert worst_first(findings, lambda each: new_since.get(each, 0.0)) == [
        *(disk, paused, housekeeping, clock),
        *(growing, full, late),
    ]


async def test_a_page_can_be_used_by_keyboard_alone(api: RunningApi, browser: Browser) -> None:
    def use() -> None:
        browser.open(f"{api.url}/dashboard")
        browser.find(".lanes [data-row]")
        browser.await_text("scheduler-none", "[data-region=live_findings]")  # these rows come later
        browser.press("j")
        first = browser.run("return document.activeElement.matches('[data-row]')")
        assert first
        index_of_focus = (
            "return [...document.querySelectorAll('[data-row]')].indexOf(document.activeElement)"
        )
        assert browser.run(index_of_focus) == 0
        browser.press("j", "j", "k")
        assert browser.run(index_of_focus) == 1
        browser.press("?")
        assert browser.find("dialog[open]").is_displayed()
        browser.press("\ue00c")  # Escape
        assert not browser.all("dialog[open]")
        browser.press("t")
        assert browser.run("return document.documentElement.dataset.theme") == "dark"
        browser.open(f"{api.url}/dashboard")
        assert browser.run("return document.documentElement.dataset.theme") == "dark"

    await asyncio.to_thread(use)


async def test_a_closed_page_is_not_read_any_more(api: RunningApi, browser: Browser) -> None:
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
    total_bytes = len(page.content)
    for name in ("dashboard.css", "dashboard.js", "icon.svg"):
        total_bytes += len((await api.client.get(f"/dashboard/static/{name}")).content)
    assert total_bytes < 150_000
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


async def test_the_dead_letters_of_a_lane_are_counted_whatever_their_reasons(
    system: System, api: RunningApi
) -> None:
    letters = [letter(f"dead-{reason}", lane="hot", reason=reason) for reason in REASONS]
    await system.ledger.dead_letters.index_dead(letters)
    page = (await api.client.get("/dashboard")).text
    assert "hot 3<" in page.partition('">Dead letters</a></p>')[2].partition("</div>")[0]


async def test_static_files_do_not_wait_for_pages(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = api.server.app
    busy = replace(app.state.dashboard, reading=asyncio.Semaphore(0))  # all readers are busy
    monkeypatch.setattr(app.state, "dashboard", busy)
    page = asyncio.create_task(api.client.get("/dashboard"))
    try:
        for name in ("/dashboard/static/dashboard.css", "/docs/swagger-ui.css"):
            file = await api.client.get(name)
            assert (file.status_code, file.headers["content-type"]) == (200, CSS)
        missing = await api.client.get("/dashboard/static/nothing.css")
        assert missing.status_code == 404
        assert not page.done()
    finally:
        page.cancel()


async def test_a_page_is_rendered_again_only_when_its_data_has_changed(
    system: System, api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.server.app.state.dashboard.feeds, "_interval", 0.01)
    monkeypatch.setattr(live, "REST", 0)
    monkeypatch.setattr(live, "SECONDS_FOR_EACH", 0.0)
    readings: list[DashboardPage] = []
    rendered: list[DashboardPage] = []
    build, render = DashboardPage.__init__, Renderer.regions

    def count_page(page: DashboardPage, *arguments: Any, **options: Any) -> None:
        readings.append(page)
        build(page, *arguments, **options)

    def count_rendering(renderer: Renderer, page: DashboardPage, frame: Any) -> dict[str, str]:
        rendered.append(page)
        return render(renderer, page, frame)

    monkeypatch.setattr(DashboardPage, "__init__", count_page)
    monkeypatch.setattr(Renderer, "regions", count_rendering)
    headers = {"accept": "text/event-stream"}
    async with api.client.stream("GET", "/dashboard/jobs", headers=headers) as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        await eventually(lambda: len(readings) > 5, what="the page's readings")
        assert len(rendered) == 1
        await system.ledger.jobs.record(new_job(message("job-1")))
        async for line in lines:
            if "job-1" in line:
                break
        assert len(rendered) <= 3  # the count of jobs may come before the job

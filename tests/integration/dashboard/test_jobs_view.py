import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from pydantic import SecretStr

from switchyard.api.dashboard import jobs
from switchyard.api.http.event_stream import MEDIA_TYPE
from switchyard.services.engine.ledger.job_reads import JobReads
from switchyard.services.engine.records.states import State
from tests.support.api_server import RunningApi, serving, until_connected
from tests.support.browser import Browser
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.made import NOW, claim, finish, letter, message, new_job
from tests.support.system import System

INJECTION = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


async def publish_noop(
    api: RunningApi,
    payload: dict[str, object],
    lane: str = "hot",
    source: str | None = INJECTION[:90],
) -> str:
    body = {"routing_key": f"{lane}.noop", "payload": payload, "source": source}
    answer = await api.client.post("/jobs", json=body)
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["job_id"]
    return job_id


async def test_a_job_is_found_cancelled_and_published_again(
    system: System, api: RunningApi, browser: Browser
) -> None:
    await publish_noop(api, {}, lane="backfill")
    job_id = await publish_noop(api, {INJECTION: INJECTION})

    def use() -> None:
        browser.open(f"{api.url}/dashboard/jobs?lane=hot")
        assert len(browser.all(".jobs tbody tr")) == 1
        assert INJECTION[:10] in browser.text(".jobs tbody")
        browser.find(".jobs tbody a").click()
        browser.await_text("queued", "[data-region=live_job]")
        assert INJECTION in json.loads(browser.text("#payload-title + pre"))
        browser.find("summary.bad").click()
        browser.find("details[open] button.bad").click()
        browser.await_text("Cancelled: it will not run.", ".notice")
        browser.await_text("cancelled", "#job-title")
        browser.find(".actions details summary").click()
        browser.find(".actions details[open] button").click()
        browser.await_text("Published again", ".notice")
        assert job_id not in browser.driver.current_url
        assert "owned" not in browser.driver.title
        assert not browser.all("main img, main script")
        assert browser.complaints() == []

    await asyncio.to_thread(use)
    page = await system.ledger.job_reads.list_jobs(limit=10)
    assert [(each.job_type, each.state) for each in page.items] == [
        ("noop", State.QUEUED),
        ("noop", State.CANCELLED),
        ("noop", State.QUEUED),
    ]
    copy = await system.ledger.job_reads.require(page.items[0].id)
    assert copy.payload == {INJECTION: INJECTION}


async def test_a_job_is_published_by_the_form_of_its_type_and_again_with_changes(
    system: System, api: RunningApi, browser: Browser
) -> None:
    await system.start_worker("llm")

    def publish() -> None:
        browser.open(f"{api.url}/dashboard/jobs")
        browser.click("a[href$='/jobs/new']")
        browser.find("#type").send_keys("scripted")
        browser.click("main form button")
        browser.find("[name='f.steps']").send_keys('["retry"')
        browser.find("[name=tags]").send_keys("team=search")
        browser.find("[name=lane]").send_keys("backfill")
        browser.click("main form button")
        browser.await_text("no JSON", "[role=alert]")
        assert browser.find("[name=lane]").get_attribute("value") == "backfill"
        browser.find("[name='f.steps']").clear()
        browser.find("[name='f.steps']").send_keys('["permanent"]')
        browser.click("main form button")
        browser.await_text("dead", "#job-title")
        browser.click("a[href*='/jobs/new?like=']")
        assert browser.find("[name=tags]").get_attribute("value") == "team=search"
        steps = browser.find("[name='f.steps']")
        assert json.loads(steps.get_attribute("value") or "") == ["permanent"]
        steps.clear()
        steps.send_keys('["done"]')
        browser.click("main form button")
        browser.await_text("succeeded", "#job-title")

    await asyncio.to_thread(publish)
    listed_jobs = (await system.ledger.job_reads.list_jobs(limit=10)).items
    assert [(each.state, each.lane, each.tags) for each in listed_jobs] == [
        (State.SUCCEEDED, "backfill", {"team": "search"}),
        (State.DEAD, "backfill", {"team": "search"}),
    ]


async def test_an_invalid_new_job_is_not_published(system: System, api: RunningApi) -> None:
    new = "/dashboard/jobs/new"
    page = (await api.client.get(new, params={"type": "noop"})).text
    token = page.partition('name="csrf" value="')[2].partition('"')[0]
    form = {"csrf": token, "lane": "hot", "f.n": "1"}
    for invalid, error in (
        ({"lane": "nowhere"}, "nowhere"),
        ({"priority": "-1"}, "from 0 to"),
        ({"priority": "11"}, "priority"),
        ({"tags": "no tag"}, "tag"),
        ({"f.n": "one"}, "n: "),
    ):
        sent = await api.client.post(new, params={"type": "noop"}, data=form | invalid)
        assert sent.status_code == 422, invalid
        assert error in sent.text.partition('role="alert"')[2][:500], invalid
    for unknown in ({"type": "nobodys"}, {"like": "0b0f6c1e"}):
        assert (await api.client.get(new, params=unknown)).status_code == 404, unknown
    assert (await system.ledger.job_reads.list_jobs(limit=1)).items == ()


async def test_a_list_stays_up_to_date_and_a_job_is_found_by_its_first_characters(
    system: System, api: RunningApi, browser: Browser
) -> None:
    await asyncio.to_thread(browser.open, f"{api.url}/dashboard/jobs")
    await asyncio.to_thread(browser.await_text, "No job was published yet.", "main")
    job_id = await publish_noop(api, {})
    await asyncio.to_thread(browser.await_text, job_id[:8], "[data-region=live_jobs]")
    redirect = await api.client.get("/dashboard/jobs", params={"id": job_id[:8]})
    assert (redirect.status_code, redirect.headers["location"]) == (
        303,
        f"/dashboard/jobs/{job_id}",
    )
    missing = await api.client.get("/dashboard/jobs", params={"id": "0b0f6c1e"})
    assert "No job has this id." in missing.text
    assert (await api.client.get("/dashboard/jobs/0b0f6c1e")).status_code == 404


async def test_a_running_job_shows_its_output_and_progress(
    system: System, api: RunningApi, browser: Browser
) -> None:
    await system.start_worker("llm")
    feed = api.state.broker.feed
    await eventually(feed.is_listening.is_set, what="events in the API")
    pieces = ["The tide 𝛑 ", INJECTION, "\u202e falls."]
    job_id = await system.publish("hot.telling", {"writes": pieces, "reports": 1})
    await journal.started(job_id)
    await asyncio.to_thread(browser.open, f"{api.url}/dashboard/jobs/{job_id}")
    await eventually(lambda: feed.subscribers == 1, what="the page's stream")
    assert not browser.find("[data-output]").is_displayed()
    journal.release(f"{job_id}/0")
    await asyncio.to_thread(browser.await_text, "The tide 𝛑", "[data-output] pre")
    journal.release(f"{job_id}/1", f"{job_id}/2")
    await asyncio.to_thread(browser.await_text, f"{INJECTION}\\u202e falls.", "[data-output] pre")
    assert "[…]" not in browser.text("[data-output]")
    await asyncio.to_thread(browser.await_text, "1 of 1", "[data-region=live_job]")
    journal.release(job_id)
    await asyncio.to_thread(browser.await_text, "succeeded", "#job-title")
    await eventually(lambda: feed.subscribers == 0, what="the end of the stream")
    assert "falls." in browser.text("section:has(#output-title) > pre")
    assert "owned" not in browser.driver.title
    assert browser.complaints() == []


async def test_an_open_job_is_read_again_when_its_run_has_changed(
    system: System, api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds = api.server.app.state.dashboard.feeds
    monkeypatch.setattr(feeds, "_interval", 0.05)
    calls: Counter[str] = Counter()
    for name in ("run_versions", "pipeline"):
        monkeypatch.setattr(JobReads, name, count_calls(getattr(JobReads, name), calls))
    ledger = system.ledger.jobs
    await ledger.record_many([new_job("root"), new_job(message("next", pipeline="root"))])
    page = api.client.stream("GET", "/dashboard/jobs/root", headers={"accept": MEDIA_TYPE})
    async with page as stream:
        lines = stream.aiter_lines()
        await eventually(lambda: calls["run_versions"] >= 5, what="looks at the run's head")
        assert calls["pipeline"] == 1
        await ledger.cancel("next", time.time())
        async for line in lines:
            if "live_run" in line and "cancelled" in line:
                break
        assert calls["pipeline"] == 2
        await ledger.cancel("root", time.time())
        async for line in lines:
            if "live_job" in line and "cancelled" in line:
                break
        seen = calls["run_versions"]
        await eventually(lambda: calls["run_versions"] >= seen + 5, what="more looks")
        assert calls["pipeline"] == 3


def count_calls(method: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
    """Wrap a method so that its calls are counted by its name."""

    def call(*args: Any, **kwargs: Any) -> Any:
        calls[method.__name__] += 1
        return method(*args, **kwargs)

    return call


async def test_the_counts_by_state_follow_the_filter(
    system: System, api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = system.ledger.jobs
    await ledger.record_many([new_job(message(f"job-{n}", source="s")) for n in range(3)])
    await ledger.record(new_job(message("other", source="other")))
    await ledger.cancel("job-0", time.time())

    async def counts(**filters: str) -> list[str]:
        page = (await api.client.get("/dashboard/jobs", params=filters)).text
        shown = page.partition('class="counts"')[2].partition("</p>")[0]
        return re.findall(r"\d+ [a-z]+|of the newest \d+", shown)

    assert await counts() == ["3 pending"]  # all open jobs
    assert await counts(lane="backfill") == []
    assert await counts(source="s") == ["2 pending", "1 cancelled"]
    assert await counts(source="s", state="cancelled") == ["2 pending", "1 cancelled"]
    assert await counts(source="nobody") == []
    monkeypatch.setattr(jobs, "MAX_COUNTED", 2)
    assert await counts(source="s", state="pending") == ["2 pending", "of the newest 2"]
    monkeypatch.setattr(jobs, "PAGE_SIZE", 2)
    assert await counts(source="s") == ["2 pending", "of the newest 2"]


async def test_a_filter_without_an_index_reads_a_bounded_number_of_jobs_at_a_time(
    system: System, api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "EXAMINED_JOBS", 4)
    ledger = system.ledger.jobs
    for number in range(10):
        source = "rare" if number in (1, 8) else "common"
        await ledger.record(new_job(message(f"job-{number}", source=source), now=NOW + number))

    async def page(address: str) -> tuple[list[str], str, str | None]:
        html = (await api.client.get(address)).text
        older = re.search(r'rel="next" href="([^"]+)"', html)
        listed = re.findall(r'href="/dashboard/jobs/(job-\d)"', html)
        return listed, html, older and unescape(older[1])

    pages = []
    address: str | None = "/dashboard/jobs?source=rare"
    while address:
        listed, html, address = await page(address)
        pages.append((listed, "has no index" in html))
    assert pages == [(["job-8"], True), ([], True), (["job-1"], False)]
    listed, html, older = await page("/dashboard/jobs?source=rare&everything=true")
    assert (listed, "has no index" in html, older) == (["job-8", "job-1"], False, None)
    for number in (2, 3, 4, 8, 9):
        await ledger.cancel(f"job-{number}", now=NOW + 20)
    listed, html, older = await page("/dashboard/jobs?source=rare&state=cancelled")
    assert (listed, "newest 4 cancelled jobs, back" in html) == (["job-8"], True)
    assert "among the newest 4 jobs" in html
    listed, html, _ = await page(str(older))
    assert (listed, "has no index" in html) == ([], False)  # job-2 was the only one left
    listed, html, _ = await page("/dashboard/jobs?source=common&state=pending")
    assert (listed, "newest 4 pending jobs" in html) == (["job-7", "job-6", "job-5"], True)
    monkeypatch.setattr(jobs, "PAGE_SIZE", 2)
    listed, html, _ = await page("/dashboard/jobs?source=common")
    assert (listed, "has no index" in html) == (["job-9", "job-7"], False)  # the page is full
    assert "among the newest 4 jobs" in html


async def test_the_duration_of_a_job_is_compared_with_others_of_its_type(
    system: System, api: RunningApi
) -> None:
    ledger = system.ledger.jobs

    async def run(name: str, seconds: float) -> None:
        await ledger.record(new_job(name))
        begun_claim = claim(name, f"claim-{name}")
        await ledger.claim(begun_claim)
        end = finish(claim_id=begun_claim.claim_id, job_id=name)
        await ledger.finish(replace(end, now=begun_claim.now + seconds))

    await ledger.record(new_job("open"))
    for number in range(1, 5):
        await run(f"job-{number}", number)
    assert "p99" not in (await api.client.get("/dashboard/jobs/open")).text  # too few
    await run("job-5", 5)
    assert "others p50 3 s, p99 5 s" in (await api.client.get("/dashboard/jobs/open")).text


async def test_a_dead_job_shows_its_error_with_the_traceback(
    system: System, api: RunningApi
) -> None:
    await system.start_worker("llm")
    script = {"routing_key": "hot.scripted", "payload": {"steps": ["bug"]}, "max_attempts": 1}
    job_id = (await api.client.post("/jobs", json=script)).json()["job_id"]

    async def page() -> str:
        return (await api.client.get(f"/dashboard/jobs/{job_id}")).text

    async def is_dead() -> bool:
        return "it failed" in await page()

    await eventually(is_dead, what="the end of the job")
    await system.ledger.dead_letters.index_dead([letter(job_id, traceback=f"at {INJECTION}")])
    shown = await page()
    assert "Failed attempts" in shown
    assert "at &lt;img src=x" in shown
    assert INJECTION not in shown


async def test_an_attempt_whose_worker_died_is_marked(system: System, api: RunningApi) -> None:
    await system.ledger.jobs.record(new_job())
    await system.ledger.jobs.claim(claim())
    await system.ledger.jobs.claim(claim(claim_id="claim-2", takeover_from="claim-1"))
    page = (await api.client.get("/dashboard/jobs/job-1")).text
    assert ">its worker died<" in page


async def test_a_key_without_the_scope_has_no_buttons(system: System) -> None:
    reader, publisher = "reader-of-32-characters-00000000", "publisher-of-32-characters-00000"
    keys = SecretStr(f"{reader}:read,{publisher}:publish")
    async with serving(system.settings, api_keys=keys) as api:
        await until_connected(api)
        api.client.headers["X-API-Key"] = publisher
        job_id = await publish_noop(api, {}, source=None)
        login = await api.client.post("/dashboard/login", data={"key": reader})
        assert login.status_code == 303
        page = await api.client.get(f"/dashboard/jobs/{job_id}")
        assert "/cancel" not in page.text
        assert "/jobs/new" not in page.text
        assert (await api.client.get("/dashboard/jobs/new")).status_code == 403
        token = page.text.partition('name="csrf" value="')[2].partition('"')[0]
        refused = await api.client.post(f"/dashboard/jobs/{job_id}/cancel", data={"csrf": token})
        assert refused.status_code == 403
        record = await system.ledger.job_reads.require(job_id)
        assert record.state is State.QUEUED


async def test_control_characters_are_escaped_on_pages(system: System, api: RunningApi) -> None:
    source = "nightly\x1b[2J\u202egnp"
    payload = {"text": f"{source}\x85"}
    await system.ledger.jobs.record(new_job(message("odd", payload=payload, source=source)))
    for path in ("jobs/odd", "jobs"):
        page = await api.client.get(f"/dashboard/{path}")
        assert page.status_code == 200
        assert not {"\x1b", "\x85", "\u202e"} & set(page.text), path
        assert "nightly\\x1b[2J\\u202egnp" in page.text

import asyncio
import re
from dataclasses import replace
from functools import partial

from switchyard.api.dashboard.workers import SHOWN_JOBS
from switchyard.services.engine.access.api_keys import Scope, create_key
from switchyard.services.engine.records.progress import ProgressRequest, ReportedProgress
from switchyard.services.engine.records.schedules import PUT_OFF, FiringOutcome
from switchyard.services.engine.records.states import State
from switchyard.services.engine.records.system import KeyLimits
from switchyard.services.engine.schedules.entry import ScheduleEntry
from switchyard.services.engine.schedules.service import Schedules
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.records.llm_servers import LlmMinute
from switchyard.services.llm.records.llm_spend import CallState, LlmCall, NoBudgetLeft, Requester
from tests.integration.dashboard.test_signing_in import sign_in
from tests.support.api_server import RunningApi, serving, until_connected
from tests.support.browser import Browser
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.made import claim, finish, new_job
from tests.support.system import System


def _tile(page: str, label: str) -> str:
    """Return the figure under a label."""
    figure = page.partition(label)[2].partition('class="figure">')[2].partition("</p>")[0]
    return re.sub("<[^>]+>", "", figure)


async def _add_schedule(system: System) -> None:
    entry = ScheduleEntry.from_fields(
        {"name": "nightly", "cron": "0 3 * * *", "job": "hot.noop", "payload": {"text": "<b>"}}
    )
    await Schedules(system.ledger, system.registry).add(entry, remote=False, created_by="a test")


async def test_workers_are_shown_with_their_running_jobs(system: System, api: RunningApi) -> None:
    worker = await system.start_worker("llm")
    job_id = await system.publish("hot.gated", {"n": 1})
    await system.wait_for_state(job_id, State.RUNNING)
    page = (await api.client.get("/dashboard/workers")).text
    assert worker.worker_id in page
    assert "gated" in page
    assert "1 of 4" in page
    assert "shutting down" not in page
    worker.worker.retire()

    async def page_says(pattern: str) -> bool:
        page = (await api.client.get("/dashboard/workers")).text
        return re.search(pattern, page) is not None

    await eventually(partial(page_says, "shutting down since"), what="that it shuts down")
    assert await page_says(r'data-label="Memory">[\d.]+ [MG]iB')
    journal.release(job_id)
    await worker.task
    assert not await page_says(worker.worker_id)


async def test_all_jobs_of_a_worker_are_counted_and_the_first_ones_shown(
    system: System, api: RunningApi
) -> None:
    await system.ledger.workers.register_worker(
        "worker-1", kinds=["llm"], lanes=["hot"], host="h", pid=7, concurrency=9
    )
    for number in range(SHOWN_JOBS + 2):
        await system.ledger.jobs.record(new_job(f"job-{number}"))
        begun_claim = claim(f"job-{number}", f"claim-{number}")
        await system.ledger.jobs.claim(begun_claim)
    progress = ProgressRequest(
        begun_claim.message, begun_claim.claim_id, begun_claim.now, ReportedProgress(0.5, "<b>half")
    )
    await system.ledger.progress.save(progress)
    page = (await api.client.get("/dashboard/workers")).text
    assert f"{SHOWN_JOBS + 2} of 9" in page
    assert "and 2 more" in page
    assert ", 50 %: &lt;b&gt;half" in page


async def test_a_schedule_is_paused_resumed_and_run_by_buttons(
    system: System, api: RunningApi, browser: Browser
) -> None:
    await _add_schedule(system)

    def click() -> None:
        browser.open(f"{api.url}/dashboard/schedules")
        browser.click("form[action$='nightly/pause'] button")
        browser.await_text("nightly is paused.")
        browser.click("form[action$='nightly/resume'] button")
        browser.await_text("nightly goes on.")
        browser.click("form[action$='nightly/run'] button")
        browser.await_text("nightly is fired")
        browser.await_text("due", "[data-region=live_history]")
        assert browser.complaints() == []

    await asyncio.to_thread(click)
    record = await Schedules(system.ledger, system.registry).get("nightly")
    assert record.paused_at is None
    assert len(await system.ledger.schedules.firings("nightly", 10)) == 1


async def test_a_schedule_whose_job_is_refused_says_why_and_leads_to_no_job(
    system: System, api: RunningApi
) -> None:
    await _add_schedule(system)
    firing = await Schedules(system.ledger, system.registry).run("nightly", "a test")
    page = (await api.client.get("/dashboard/schedules")).text
    assert "not taken yet" not in page
    now = system.ledger.clock.time()
    note = f"{PUT_OFF}no queue <b>"
    await system.ledger.schedules.settle_firing(firing, FiringOutcome.DUE, now, note)
    for path in ("/dashboard/schedules", "/dashboard/schedules/nightly"):
        page = (await api.client.get(path)).text
        assert "not taken yet" in page
        assert "was refused: no queue &lt;b&gt;" in page
        assert f"/dashboard/jobs/{firing.job_id}" not in page
    await system.ledger.schedules.settle_firing(firing, FiringOutcome.FIRED, now)
    page = (await api.client.get("/dashboard/schedules/nightly")).text
    assert "not taken yet" not in page
    assert f"/dashboard/jobs/{firing.job_id}" in page


async def test_an_action_beyond_the_scope_has_no_button_and_is_refused(
    system: System, api: RunningApi
) -> None:
    await _add_schedule(system)
    key = await create_key(system.ledger, "reader", [Scope.READ])
    page = await sign_in(api, key.key)
    assert "Schedules" in page
    assert "Workers" not in page.partition("<nav")[2].partition("</nav>")[0]
    assert (await api.client.get("/dashboard/workers")).status_code == 403
    page = (await api.client.get("/dashboard/schedules/nightly")).text
    assert "&lt;b&gt;" in page
    assert "Run now" not in page
    answer = await api.client.post("/dashboard/schedules/nightly/pause")
    assert answer.status_code == 403


async def test_limits_are_filtered_and_the_state_of_model_servers_is_shown(
    system: System, api: RunningApi
) -> None:
    assert "No limit was used" in (await api.client.get("/dashboard/limits")).text
    assert "No limit matches" in (await api.client.get("/dashboard/limits?name=x")).text
    assert "/dashboard/llm" not in (await api.client.get("/dashboard")).text
    changes = {"llm_base_url": "http://127.0.0.1:9/v1", "llm_model": "a-model"}
    async with serving(system.settings, **changes) as api_with_models:
        await until_connected(api_with_models)
        page = (await api_with_models.client.get("/dashboard/llm")).text
        assert "ready" in page
        assert "/dashboard/llm" in page
        assert "not recorded yet" in page
        assert "Pauses of the last day" not in page
        repositories, now = LlmLedger(system.ledger), system.ledger.clock.time()
        slots, history = repositories.slots, repositories.history
        await slots.take_llm_slot(
            "default", "slot", "a test", ttl=60, is_hot=True, first_limit=4, max_limit=4
        )
        paused = {"paused_until": now + 500, "pause_reason": "<b>no answer"}
        await slots.end_llm_slot("default", "slot", lambda state, *_: replace(state, **paused))
        await history.add_minute([LlmMinute(now - now % 60, "default", 4, 3)], now)
        await system.publish("backfill.noop")
        page = (await api_with_models.client.get("/dashboard/llm")).text
        assert "not recorded yet" not in page
        assert "UTC: 3 of 4 calls" in page
        assert "Pauses of the last day" in page
        assert page.count("&lt;b&gt;no answer") == 2  # the reason of the pause, and in the list
        page = (await api_with_models.client.get("/dashboard")).text
        assert re.search(r">0 <span class=\"of\">of 1 ready<", page)
        assert "&lt;b&gt;no answer; asked again" in page
        await slots.take_llm_slot(
            "default", "slot", "a test", ttl=60, is_hot=True, first_limit=4, max_limit=4
        )
        failed = {"paused_until": 0.0, "failures": 2}
        await slots.end_llm_slot("default", "slot", lambda state, *_: replace(state, **failed))
        page = (await api_with_models.client.get("/dashboard")).text
        assert re.search(r">0 <span class=\"of\">of 1 ready<", page)
        assert "&lt;b&gt;no answer; 2 calls in a row have failed" in page
        page = (await api_with_models.client.get("/dashboard/llm")).text
        row, *_ = re.findall(r'<th scope="row">default</th>(.*?)</tr>', page, re.DOTALL)
        assert "</span> fails</span>" in row, "as the overview says"
        assert "&lt;b&gt;no answer" in row
        assert "ready" not in row
        assert "jobs wait" not in page
        key = await create_key(
            system.ledger, "shop", [Scope.PUBLISH], KeyLimits(budget_per_day=2.0)
        )
        admin_key = await create_key(system.ledger, "me", [Scope.ADMIN])
        await sign_in(api_with_models, admin_key.key)
        requester = Requester(source=f"api:{key.id}")
        call = LlmCall("call", CallState.OPEN, requester, "default", "a-model", {}, 3.0)
        assert isinstance(
            await repositories.spending.reserve_llm_call(call, per_day=None), NoBudgetLeft
        )
        page = (await api_with_models.client.get("/dashboard/llm")).text
        assert _tile(page, f"Budget of the API key {key.id}") == "2.00 left of 2.00"
        assert "jobs wait</span> too little for the next call" in page

        for number in range(4):
            await system.ledger.jobs.record(new_job(f"job-{number}"))
            await system.ledger.jobs.claim(claim(f"job-{number}", f"claim-{number}"))
        retry = finish(State.RETRYING, "claim-0", job_id="job-0", error_type="LlmSaturated")
        await system.ledger.jobs.finish(retry)
        await slots.take_llm_slot(
            "default", "slot", "a test", ttl=60, is_hot=True, first_limit=4, max_limit=4
        )
        page = (await api_with_models.client.get("/dashboard/llm")).text
        assert _tile(page, "Waiting in workers") == "2 requests"  # the third makes a call
        assert _tile(page, "Put off") == "1 request"

        async def shows_waiting_request() -> bool:
            waiting = (await api_with_models.client.get("/dashboard/llm")).text
            return re.search(r"Waiting, backfill</p><p class=\"figure\">1 ", waiting) is not None

        await eventually(shows_waiting_request, what="the request that waits")

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.services.engine.access.api_keys import Scope, create_key
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.dead.purge import PurgeHandler
from switchyard.services.engine.records.requests import DeadLetterFilter
from switchyard.services.engine.records.states import DeadLetterState, State
from switchyard.services.engine.redrive.handler import RedriveHandler
from tests.integration.dashboard.test_signing_in import sign_in
from tests.support.api_server import RunningApi
from tests.support.browser import Browser
from tests.support.eventually import eventually
from tests.support.made import letter
from tests.support.redrives import bury, bury_all, names
from tests.support.system import System

INJECTION = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
GROUP = "ab12cd34ef"
DEAD = "/dashboard/dead"


@asynccontextmanager
async def run_bulk_operations(system: System) -> AsyncIterator[None]:
    """Run redrives and purges, as the scheduler does."""
    redrives = RedriveHandler(system.settings, system.registry, system.ledger, lanes=system.lanes)
    runner = BulkRunner(system.ledger, [redrives, PurgeHandler(system.settings, system.ledger)])
    task = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        runner.stop()
        await asyncio.wait_for(task, 20)


async def test_one_letter_of_a_group_is_redriven_and_the_others_purged_by_clicks(
    system: System, api: RunningApi, browser: Browser
) -> None:
    await bury_all(system, names(3, "a"), cause="disk full")
    await system.start_worker("llm")

    def redrive_one() -> None:
        browser.open(f"{api.url}{DEAD}")
        assert "disk full" in browser.text("[data-region=live_groups]")
        assert "\nfirst " in browser.text(".groups .when")
        browser.find(".groups a").click()
        browser.await_text("backfill", "[data-region=live_letters]")
        browser.find(".redrive input[name=why]").send_keys("the disk is empty")
        browser.find(".redrive button.primary").click()
        browser.await_text("Redrive 1 letter?")
        assert "backfill.scripted: 1" in browser.text()
        browser.find("button.primary").click()
        browser.await_address(f"{DEAD}/redrives/redrive-")
        browser.await_text("completed", "[data-region=live_redrive]")
        browser.await_text("the disk is empty", "[data-region=live_redrive]")
        assert browser.complaints() == []

    def purge_the_rest() -> None:
        browser.find(".eyebrow a:last-child").click()
        browser.await_text("redrive-", "[data-region=live_operations]")
        assert len(browser.all("[data-region=live_letters] tbody tr")) == 2
        browser.find("#purge summary").click()
        browser.find("#purge button.bad").click()
        browser.await_text("has begun", ".notice")
        browser.await_text("2 purged", "[data-region=live_operations]")
        browser.await_text("No job is dead.", "[data-region=live_groups]")

    async with run_bulk_operations(system):
        await asyncio.to_thread(redrive_one)
        await system.wait_until_all(["a-0000"], State.SUCCEEDED)
        await asyncio.to_thread(purge_the_rest)
    purged = await system.ledger.dead_letters.list_dead(DeadLetterFilter(state="purged"))
    assert sorted(each.id for each in purged.items) == ["a-0001", "a-0002"]


async def test_a_redrive_of_one_letter_is_halted_resumed_and_cancelled(
    system: System, api: RunningApi
) -> None:
    await bury_all(system, names(2, "b"), recorded=False)
    page = await api.client.get(f"{DEAD}/letters/b-0001")
    assert "/dashboard/jobs/b-0001" in page.text
    token = _token(page.text)
    fields = {"csrf": token, "letter": "b-0001", "rate": "5", "halt_percent": "20"}
    plan = await api.client.post(f"{DEAD}/redrives/plan", data=fields)
    assert "Redrive 1 letter?" in plan.text
    assert "when 20 % fail again" in plan.text
    started = await api.client.post(f"{DEAD}/redrives", data=fields)
    redrive_url = started.headers["location"]
    again = await api.client.post(f"{DEAD}/redrives", data=fields)
    assert (again.status_code, "takes some of the same letters" in again.text) == (409, True)
    for action, state, button in (
        ("halt", "paused", "Resume"),
        ("resume", "waiting", "Halt"),
        ("cancel", "cancelled", None),
    ):
        assert (await api.client.post(f"{redrive_url}/{action}", data=fields)).status_code == 303
        page_text = (await api.client.get(redrive_url)).text
        assert state in page_text
        assert (f">{button}</button>" in page_text) == (button is not None)
    ended = await api.client.post(f"{redrive_url}/resume", data=fields)
    assert (ended.status_code, "is over" in ended.text) == (409, True)
    for invalid in ({"limit": "0"}, {"canary": "many"}, {"halt_percent": "101"}, {"group": "x'"}):
        refused = await api.client.post(f"{DEAD}/redrives/plan", data={**fields, **invalid})
        assert refused.status_code == 422, invalid
    without_filter = await api.client.post(f"{DEAD}/purges", data={"csrf": token})
    assert without_filter.status_code == 422


async def test_fields_of_dead_letters_are_escaped_and_only_an_admin_may_act(
    system: System, api: RunningApi
) -> None:
    text_fields = dict.fromkeys(("job_type", "lane", "error_type", "error_message", "traceback"))
    await system.ledger.dead_letters.index_dead(
        [
            letter(
                "raw-1",
                **dict.fromkeys(text_fields, INJECTION),
                routing_key=INJECTION,
                worker=INJECTION,
                body=INJECTION.encode(),
                headers={INJECTION: INJECTION},
                fingerprint=GROUP,
            )
        ]
    )
    pages = (DEAD, f"{DEAD}/groups/{GROUP}", f"{DEAD}/letters/raw-1")
    for path in pages:
        page = await api.client.get(path)
        assert page.status_code == 200, path
        assert "&lt;img src=x" in page.text, path
        assert "<img" not in page.text, path
        assert "<script>" not in page.text, path
        assert "<form" in page.text, path
    assert "No dead letter is like that." in (await api.client.get(f"{DEAD}?lane=hot&reason=")).text
    assert (await api.client.get(f"{DEAD}/groups/0123456789")).status_code == 404

    key = await create_key(system.ledger, "reader", [Scope.READ])

    async def signed_in() -> bool:
        await api.client.post("/dashboard/login", data={"key": key.key})
        return "Sign out" in (await api.client.get(DEAD)).text

    await eventually(signed_in)
    for path in pages[:2]:
        page = await api.client.get(path)
        assert "&lt;img src=x" in page.text
        assert f"{DEAD}/redrives" not in page.text
        assert f"{DEAD}/purges" not in page.text
    assert (await api.client.get(pages[2])).status_code == 403
    fields = {"csrf": _token((await api.client.get(DEAD)).text), "group": GROUP}
    for path in ("redrives/plan", "redrives", "purges", "redrives/redrive-0000000000/cancel"):
        assert (await api.client.post(f"{DEAD}/{path}", data=fields)).status_code == 403, path
    letter_record = await system.ledger.dead_letters.get_dead("raw-1")
    assert letter_record is not None
    assert letter_record.state == DeadLetterState.WAITING


def _token(page: str) -> str:
    match = re.search(r'name="csrf" value="(\w+)"', page)
    assert match is not None
    return match.group(1)


async def test_a_letter_is_edited_compared_and_redriven_by_clicks(
    system: System, api: RunningApi, browser: Browser
) -> None:
    payload = {"n": "seven", "text": INJECTION, "more": {"x": [1.0, INJECTION]}}
    await bury(system, "wrong-1", "hot.noop", payload, reason=Reason.INVALID_PAYLOAD)
    await system.start_worker("llm")

    def edit() -> None:
        browser.open(f"{api.url}{DEAD}/letters/wrong-1")
        browser.click("a[href$='/edit']")
        assert browser.find("[name='f.text']").get_attribute("value") == INJECTION
        browser.click("form[action$='/edit'] button.primary")
        browser.await_text("integer", "[role=alert]")  # the job type refuses it
        number = browser.find("[name='f.n']")
        number.clear()
        number.send_keys("7")
        browser.click("form[action$='/edit'] button.primary")
        browser.await_text('+  "n": 7', ".diff")
        assert '-  "n": "seven"' in browser.text(".diff")
        browser.click("form[action$='/edit'] button")  # edit further
        assert browser.find("[name='f.n']").get_attribute("value") == "7"
        browser.click("form[action$='/edit'] button.primary")
        browser.find("input[name=why]").send_keys("a number, not a word")
        browser.click("form[action$='/retry'] button")
        browser.await_text("completed", "[data-region=live_redrive]")
        browser.await_text("a number, not a word", "[data-region=live_redrive]")
        assert browser.driver.title != "owned"
        assert not browser.all("main img, main script")
        refused = "the server responded with a status of 422"  # of the refused edit
        assert [each for each in browser.complaints() if refused not in each] == []

    async with run_bulk_operations(system):
        await asyncio.to_thread(edit)
        job = await system.wait_for_state("wrong-1", State.SUCCEEDED)
    assert job.payload == {**payload, "n": 7}


async def test_an_edit_that_the_job_type_refuses_is_not_sent(
    system: System, api: RunningApi
) -> None:
    await bury(system, "wrong-2", "hot.noop", {"n": 1})
    await system.ledger.dead_letters.index_dead([letter("raw-2", body=b"no job")])
    page = (await api.client.get(f"{DEAD}/letters/wrong-2/edit")).text
    await bury(system, "odd", "hot.noop", {"text": "a\u202eb"})
    edited = await api.client.get(f"{DEAD}/letters/odd/edit")
    assert 'name="f.text" value="a\u202eb"' in edited.text  # the form shows it unchanged
    form = {"csrf": _token(page)}
    for invalid in ('{"n": "x"}', "[1]", "{", "[" * 100_000):
        sent = await api.client.post(
            f"{DEAD}/letters/wrong-2/retry", data={**form, "payload": invalid}
        )
        assert sent.status_code == 422, invalid[:20]
    for path, status in (("raw-2/edit", 422), ("nobody/edit", 404)):
        assert (await api.client.get(f"{DEAD}/letters/{path}")).status_code == status, path
    key = await create_key(system.ledger, "reader", [Scope.READ])
    await sign_in(api, key.key)
    assert (await api.client.get(f"{DEAD}/letters/wrong-2/edit")).status_code == 403
    sent = await api.client.post(f"{DEAD}/letters/wrong-2/retry", data={**form, "payload": "{}"})
    assert sent.status_code == 403

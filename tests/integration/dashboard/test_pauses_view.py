import asyncio
import re

from switchyard.services.engine.access.api_keys import Scope, create_key
from tests.integration.dashboard.test_signing_in import sign_in
from tests.support.api_server import RunningApi
from tests.support.browser import Browser
from tests.support.system import System

INJECTION = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


async def test_a_lane_and_a_type_are_paused_with_reason_and_duration_and_resumed_by_clicks(
    system: System, api: RunningApi, browser: Browser
) -> None:
    job_id = await system.publish("hot.noop", {"n": 1})

    def pause_lane() -> None:
        browser.open(f"{api.url}/dashboard")
        browser.click("[popovertarget=pause-lane-vlm_ocr]")
        browser.click("#pause-lane-vlm_ocr [popovertargetaction=hide]")
        assert not any(each.is_displayed() for each in browser.all("#pause-lane-vlm_ocr"))
        browser.click("[popovertarget=pause-lane-vlm_ocr]")
        browser.find("#pause-lane-vlm_ocr input[name=reason]").send_keys(INJECTION)
        browser.find("#pause-lane-vlm_ocr input[name=for]").send_keys("2h")
        browser.click("#pause-lane-vlm_ocr button.primary")
        browser.await_text("The lane vlm_ocr is paused", ".notice")
        pause_text = browser.text(".lanes .paused")
        assert INJECTION in pause_text
        assert "Ends in 1 h 59 min." in pause_text or "Ends in 2 h." in pause_text

    def pause_type() -> None:
        browser.open(f"{api.url}/dashboard/workers")
        browser.await_text("lane vlm_ocr", ".pauses")
        browser.click("#pause-something summary")
        browser.find("#pause-something input[name=target]").send_keys("noop")
        browser.click("#pause-something button.primary")
        browser.await_text("type noop", ".pauses")
        browser.open(f"{api.url}/dashboard")
        browser.await_text("type noop", ".pauses")
        browser.open(f"{api.url}/dashboard/jobs/{job_id}")
        browser.await_text("type noop", "[data-region=live_job]")

    def resume_both() -> None:
        browser.open(f"{api.url}/dashboard/workers")
        browser.click(".pauses li form button")
        browser.await_text("The lane vlm_ocr goes on.", ".notice")
        browser.click(".pauses li form button")
        browser.await_text("The type noop goes on.", ".notice")
        browser.await_text("Nothing is paused.", "[data-region=live_pauses]")
        assert browser.driver.title == "Workers · Switchyard"
        assert not browser.all("main img, main script")
        assert browser.complaints() == []

    await asyncio.to_thread(pause_lane)
    active = (await system.ledger.pauses.active()).pauses
    assert [(str(each), each.reason) for each in active] == [("lane vlm_ocr", INJECTION)]
    await asyncio.to_thread(pause_type)
    await asyncio.to_thread(resume_both)
    assert (await system.ledger.pauses.active()).pauses == ()


async def test_an_invalid_pause_is_refused_and_a_reader_has_no_button(
    system: System, api: RunningApi
) -> None:
    token = re.search(r'name="csrf" value="(\w+)"', (await api.client.get("/dashboard")).text)
    assert token is not None
    form = {"csrf": token.group(1), "scope": "lane", "target": "hot"}
    for invalid_fields in (
        {"target": "nowhere"},
        {"scope": "planet"},
        {"for": "soon"},
        {"for": "400d"},
        {"target": " "},
        {"reason": "x" * 501},
        {"from": "https://elsewhere.example"},
    ):
        refused = await api.client.post("/dashboard/pauses", data={**form, **invalid_fields})
        assert refused.status_code == 422, invalid_fields
    unknown = await api.client.post("/dashboard/pauses/pause-0123456789/resume", data=form)
    assert unknown.status_code == 404
    key = await create_key(system.ledger, "reader", [Scope.READ])
    page = await sign_in(api, key.key)
    assert "pause-lane-hot" not in page
    assert (await api.client.post("/dashboard/pauses", data=form)).status_code == 403

import asyncio
import re
from dataclasses import dataclass

import pytest

from switchyard.services.engine.access.api_keys import NewKey, Scope, create_key
from tests.support.api_server import RunningApi
from tests.support.browser import Browser
from tests.support.eventually import eventually
from tests.support.system import System


@dataclass
class Keys:
    """One key of each scope."""

    admin: NewKey
    read: NewKey
    publish: NewKey


@pytest.fixture
async def keys(system: System) -> Keys:
    new_keys = [
        await create_key(system.ledger, each.value, [each])
        for each in (Scope.ADMIN, Scope.READ, Scope.PUBLISH)
    ]
    return Keys(*new_keys)


async def sign_in(api: RunningApi, key: str) -> str:
    """Sign in as the form does, and return the overview. Repeat it, as the API may take two seconds
    to notice that keys exist."""

    async def signed_in() -> str | None:
        answer = await api.client.post("/dashboard/login", data={"key": key})
        assert answer.status_code == 303
        page = (await api.client.get("/dashboard")).text
        return page if "Sign out" in page else None

    page: str = await eventually(signed_in, what="being signed in")
    return page


def _token(page: str) -> str:
    match = re.search(r'name="csrf" value="(\w+)"', page)
    assert match is not None
    return match.group(1)


async def test_signing_in_returns_to_the_page_and_signing_out_ends_the_session(
    keys: Keys, api: RunningApi, browser: Browser
) -> None:
    def sign_in() -> None:
        browser.open(f"{api.url}/dashboard?from=here")
        browser.await_address("/dashboard/login")
        browser.find("#key").send_keys("swy_of_nobody_at_all_1234567890\n")
        browser.await_text("unknown or revoked")
        browser.find("#key").send_keys(f"{keys.admin.key}\n")
        browser.find("[data-live-state=on]")
        assert browser.driver.current_url == f"{api.url}/dashboard?from=here"
        assert browser.run("return document.cookie") == ""
        cookie = browser.driver.get_cookie("switchyard_session")
        assert cookie is not None
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        browser.click(".tools form button")
        browser.await_text("Signed out.")
        browser.open("about:blank")
        browser.driver.execute_cdp_cmd(
            "Network.setCookie", {**_for_devtools(cookie), "url": f"{api.url}/dashboard"}
        )
        browser.open(f"{api.url}/dashboard")
        browser.await_address("/dashboard/login")  # the server has ended the session
        refused = [each for each in browser.complaints() if "Content Security" in each]
        assert refused == []

    await asyncio.to_thread(sign_in)


def _for_devtools(cookie: dict[str, object]) -> dict[str, object]:
    return {"name": cookie["name"], "value": cookie["value"], "path": "/dashboard"}


async def test_a_revoked_key_ends_its_pages_within_two_seconds(
    system: System, keys: Keys, api: RunningApi
) -> None:
    await sign_in(api, keys.admin.key)
    headers = {"accept": "text/event-stream"}
    async with api.client.stream("GET", "/dashboard", headers=headers) as stream:
        lines = stream.aiter_lines()
        assert await anext(lines) == "event: region"
        await system.ledger.api_keys.revoke_api_key(keys.admin.id, system.ledger.clock.time())
        async with asyncio.timeout(4):  # two seconds, and two for a busy machine
            async for _ in lines:
                continue
    again = await api.client.get("/dashboard")
    assert (again.status_code, again.headers["location"]) == (
        303,
        "/dashboard/login?next=%2Fdashboard",
    )


async def test_a_form_needs_its_token_and_the_same_origin(keys: Keys, api: RunningApi) -> None:
    token = _token(await sign_in(api, keys.admin.key))

    async def sign_out(headers: dict[str, str], **fields: str) -> int:
        answer = await api.client.post("/dashboard/logout", data=fields, headers=headers)
        return answer.status_code

    assert await sign_out({}) == 403
    assert await sign_out({}, csrf="0" * 64) == 403
    assert await sign_out({"origin": "http://elsewhere.example"}, csrf=token) == 403
    assert await sign_out({"origin": "null"}, csrf=token) == 403
    assert await sign_out({"sec-fetch-site": "cross-site"}, csrf=token) == 403
    assert await sign_out({"origin": api.url}, csrf=token) == 303
    other = await api.client.post(
        "/dashboard/login", data={"key": keys.admin.key}, headers={"origin": "http://e.example"}
    )
    assert other.status_code == 403


async def test_a_key_sees_what_its_scope_allows(keys: Keys, api: RunningApi) -> None:
    page = await sign_in(api, keys.read.key)

    async def hides_findings() -> bool:
        return "to read them" in (await api.client.get("/dashboard")).text

    await eventually(hides_findings, what="the findings")
    page = (await api.client.get("/dashboard")).text
    assert "scheduler-none" not in page  # only administrators see the doctor's findings
    await api.client.post("/dashboard/login", data={"key": keys.publish.key})
    answer = await api.client.get("/dashboard")
    assert answer.status_code == 403
    assert "this needs the scope read" in answer.text
    fields = {"csrf": _token(answer.text)}  # a key that may see nothing can still sign out
    assert (await api.client.post("/dashboard/logout", data=fields)).status_code == 303
    assert (await api.client.get("/dashboard")).headers["location"].startswith("/dashboard/login")


async def test_signing_in_redirects_to_pages_of_the_dashboard_alone(
    keys: Keys, api: RunningApi
) -> None:
    for address in ("https://elsewhere.example", "//elsewhere.example", "/dashboardx", "/jobs"):
        answer = await api.client.post(
            "/dashboard/login", data={"key": keys.admin.key, "next": address}
        )
        assert answer.headers["location"] == "/dashboard"


async def test_without_keys_only_this_machine_is_let_in(api: RunningApi) -> None:
    assert (await api.client.get("/dashboard")).status_code == 200
    answer = await api.client.get("/dashboard", headers={"host": "elsewhere.example"})
    assert answer.status_code == 403

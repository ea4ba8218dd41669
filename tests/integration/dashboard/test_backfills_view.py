import asyncio
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from switchyard.api.dashboard.schema_forms import fields_of, read_fields
from switchyard.api.http.problems import Problem
from switchyard.api.models.dead import LetterChange
from switchyard.services.engine.access.api_keys import Scope, create_key
from switchyard.services.engine.records.bulk import BulkState
from tests.integration.dashboard.test_signing_in import sign_in
from tests.support.api_server import RunningApi
from tests.support.backfills import BackfillUser
from tests.support.browser import Browser
from tests.support.system import System

INJECTION = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
BACKFILLS = "/dashboard/backfills"


async def test_a_backfill_is_planned_started_paused_changed_resumed_and_cancelled_by_clicks(
    system: System, api: RunningApi, browser: Browser, tmp_path: Path
) -> None:
    items = tmp_path / "items.jsonl"
    items.write_text("".join(json.dumps({"n": n, "text": INJECTION}) + "\n" for n in range(30)))

    def begin() -> None:
        browser.open(f"{api.url}{BACKFILLS}")
        assert "There was no backfill yet." in browser.text("[data-region=live_backfills]")
        browser.click(".heading a.primary")
        browser.click(".sources a[href='?source=file']")
        browser.find("#file").send_keys(str(items))
        browser.click("form[action*=inputs] button")
        browser.await_text("items.jsonl is stored.", ".notice")
        browser.find("input[name=job_type]").send_keys("noop")
        browser.find("input[name=rate]").send_keys("2")
        browser.find("input[name=reason]").send_keys(INJECTION)
        browser.click("form[action$='/plan'] button.primary")
        browser.await_text("30", ".tiles")
        assert INJECTION in json.loads(browser.text("section pre"))["text"]
        assert "Nothing was started." in browser.text()
        browser.click("form[action$=backfills] button.primary")
        browser.await_address(f"{BACKFILLS}/backfill-")
        assert INJECTION in browser.text(".facts")

    def change_and_cancel() -> None:
        browser.await_text("of 30", "[data-region=live_backfill]")
        browser.click("form[action$='/pause'] button")
        browser.await_text("paused", "#backfill-title")
        rate = browser.find("form[action$='/limits'] input[name=rate]")
        assert rate.get_attribute("value") == "2.0"
        rate.clear()
        weight = browser.find("form[action$='/limits'] input[name=weight]")
        assert weight.get_attribute("value") == "1"
        weight.clear()
        weight.send_keys("2.5")
        browser.click("form[action$='/limits'] button.primary")
        browser.await_text("Its limits are changed.", ".notice")
        weight = browser.find("form[action$='/limits'] input[name=weight]")
        assert weight.get_attribute("value") == "2.5"
        browser.await_text("no limit", "[data-region=live_backfill]")
        browser.click("form[action$='/resume'] button")
        browser.await_text("It goes on.", ".notice")
        browser.await_text("30 of 30", "[data-region=live_backfill] .figure")
        browser.click("details[id*='-end'] summary")
        browser.click("details[id*='-end'] button.bad")
        browser.await_text("It is cancelled, and 30 of its jobs.", ".notice")
        browser.await_text("cancelled", "#backfill-title")
        assert browser.driver.title != "owned"
        assert not browser.all("main img, main script")
        assert browser.complaints() == []

    await asyncio.to_thread(begin)
    async with BackfillUser(system).running():
        await asyncio.to_thread(change_and_cancel)
    (operation,) = (await system.ledger.bulk.list_bulk("backfill")).items
    assert (operation.state, operation.rate) == (BulkState.CANCELLED, None)
    assert operation.spec["weight"] == 2.5


async def test_the_error_that_ended_a_backfill_is_shown_as_a_failure(
    system: System, api: RunningApi, tmp_path: Path
) -> None:
    user = BackfillUser(system)
    backfill = await user.start("numbers", {"to": 3})
    path = f"{BACKFILLS}/{backfill.id}"
    for state, note, beginning in (
        (BulkState.RUNNING, "two of three", '<p class="card calm">'),
        (BulkState.FAILED, INJECTION, '<p class="notice bad">'),
    ):
        await system.ledger.bulk.move_bulk(backfill.id, state, among=list(BulkState), note=note)
        page = (await api.client.get(path)).text
        assert f"{beginning}{note}" in unescape(page)
        assert INJECTION not in page


async def test_an_invalid_plan_is_refused_and_a_reader_has_no_buttons(
    system: System, api: RunningApi
) -> None:
    page = (await api.client.get(f"{BACKFILLS}/new?source=arxiv")).text
    token = re.search(r'name="csrf" value="(\w+)"', page)
    assert token is not None
    assert 'name="f.query"' in page
    form = {"csrf": token.group(1), "source": "file", "f.key": "x", "job_type": "noop"}
    for invalid_fields in (
        {},
        {"source": "nowhere"},
        {"rate": "fast"},
        {"payload": "{"},
        {"payload": "[" * 100_000},
        {"weight": "0"},
        {"f.format": "tar"},
    ):
        refused = await api.client.post(f"{BACKFILLS}/plan", data={**form, **invalid_fields})
        assert refused.status_code == 422, invalid_fields
    assert (await api.client.get(f"{BACKFILLS}/new?source=nowhere")).status_code == 422
    assert (await api.client.get(f"{BACKFILLS}/backfill-0000000000")).status_code == 404
    key = await create_key(system.ledger, "reader", [Scope.READ])
    await sign_in(api, key.key)
    assert "New backfill" not in (await api.client.get(BACKFILLS)).text
    assert (await api.client.get(f"{BACKFILLS}/new")).status_code == 403
    assert (await api.client.post(f"{BACKFILLS}/plan", data=form)).status_code == 403


SCHEMA = {
    "properties": {
        "name": {"type": "string"},
        "text": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "n": {"type": "integer"},
        "share": {"type": "number"},
        "is_on": {"type": "boolean"},
        "kind": {"$ref": "#/$defs/Kind"},
        "parts": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name"],
    "$defs": {"Kind": {"enum": ["a", "b"], "type": "string"}},
}
PAYLOAD = {
    "name": "",
    "text": None,
    "n": 2**60,
    "share": 1.0,
    "is_on": False,
    "kind": "b",
    "parts": ["x\n", "\ud800"],
    "more": {"k": 1},
}


def test_an_unchanged_form_gives_the_same_payload() -> None:
    fields = fields_of(SCHEMA, PAYLOAD)
    assert [each.kind for each in fields] == [
        "line",
        "line",
        "number",
        "number",
        "choice",
        "choice",
        "json",
        "json",
    ]
    assert (
        read_fields(SCHEMA, PAYLOAD, {f"f.{each.name}": each.value for each in fields}) == PAYLOAD
    )
    changed = {f"f.{each.name}": each.value for each in fields} | {
        "f.name": "x",
        "f.n": "7",
        "f.share": "",
        "f.is_on": "true",
        "f.parts": "[]",
        "f.others": "",
    }
    assert read_fields(SCHEMA, PAYLOAD, changed) == {
        "name": "x",
        "text": None,
        "n": 7,
        "is_on": True,
        "kind": "b",
        "parts": [],
    }
    for name, text in (("n", "many"), ("kind", "c"), ("parts", "[" * 100_000), ("others", "1")):
        with pytest.raises(Problem):
            read_fields(SCHEMA, PAYLOAD, {f"f.{name}": text})
    unexpected_types = fields_of(SCHEMA, {"n": "seven", "text": "a\rb"})
    assert [each.kind for each in unexpected_types if each.name in ("n", "text")] == [
        "json",
        "json",
    ]


@pytest.mark.parametrize("text", ["1e999", "NaN", "-Infinity", '{"a": [1e999]}'])
def test_numbers_that_are_no_json_are_refused_in_a_field(text: str) -> None:
    schema = {"properties": {"n": {"type": "number"}, "o": {"type": "object"}}}
    for name in ("n", "o"):
        with pytest.raises(Problem, match="no numbers of JSON"):
            read_fields(schema, {}, {f"f.{name}": text})
    with pytest.raises(ValidationError, match="not JSON"):
        LetterChange(merge={"a": json.loads(text)})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": ["x"]}}, "required": 5},
        {"properties": {"a": {"anyOf": 5}}},
        {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": [1]}},
        {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": [1]},
        {"$ref": "#/$defs/x", "$defs": {"x": 5}},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
    ],
)
def test_an_invalid_schema_has_a_form_of_json_fields(schema: dict[str, Any]) -> None:
    assert [each.kind for each in fields_of(schema, {})] == ["json"]

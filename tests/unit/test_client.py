"""The API's client without a server: its imports, its event reader, and the calls it refuses."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from switchyard.api.client import (
    ApiUnavailable,
    AsyncClient,
    Client,
    Forbidden,
    Invalid,
    Unavailable,
    UnexpectedResponse,
)
from switchyard.api.client.call import in_path
from switchyard.api.client.calls import jobs, llm, service
from switchyard.api.client.client_base import DEFAULT_URL
from switchyard.api.client.errors import error_of
from switchyard.api.client.operations import Listing, Operations
from switchyard.api.client.sse import EventReader, ReconnectBackoff
from switchyard.services.common.settings import Settings

CALLS_PACKAGE = "switchyard.api.client.calls."
MODULES_PROGRAM = (
    "import json, sys; import switchyard.api.client; print(json.dumps(sorted(sys.modules)))"
)


def test_the_client_imports_the_module_of_a_call_with_its_first_use() -> None:
    program = (
        "import json, sys; from switchyard import Client; before = sorted(sys.modules)\n"
        "Client('http://127.0.0.1:9').ready; print(json.dumps([before, sorted(sys.modules)]))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    before, after = json.loads(result.stdout)
    assert not [name for name in before if name.startswith(CALLS_PACKAGE)]
    assert "switchyard.api.models.jobs" not in before
    assert [name for name in after if name.startswith(CALLS_PACKAGE)] == [CALLS_PACKAGE + "service"]


def test_the_client_imports_nothing_heavy() -> None:
    result = subprocess.run(
        [sys.executable, "-c", MODULES_PROGRAM], capture_output=True, text=True, check=True
    )
    modules = json.loads(result.stdout)
    heavy = (
        "aio_pika", "aiormq", "fastapi", "lancedb", "numpy", "obstore", "openai", "pika", "pyarrow",
        "pydantic_settings", "pymupdf", "sqlalchemy", "starlette", "structlog", "uvicorn",
    )  # fmt: skip
    assert [name for name in heavy if name in modules] == []


def test_the_clients_default_address_is_that_of_the_settings() -> None:
    """`jobctl` leaves the address to the client, and docs/settings.md documents the default."""
    assert Settings.model_fields["api_url"].default == DEFAULT_URL


def test_each_listing_has_its_single_pages_beside_it() -> None:
    listings = {name: each for name, each in vars(Operations).items() if isinstance(each, Listing)}
    assert listings
    for name, listing in listings.items():
        assert vars(Operations)[f"{name}_page"].operations == listing.operations


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["event: dead", 'data: {"n": 1}', "id: 5", ""], ("dead", {"n": 1}, "5")),
        (["id:5", "event:dead", 'data:{"n": 1}', ""], ("dead", {"n": 1}, "5")),
        ([": still here", "", "event: end", "data: {}", ""], ("end", {}, None)),
        (["data: {}", ""], ("message", {}, None)),
        ([": still here", ""], None),
        (["event: dead", 'data: {"n": 1}'], None),
    ],
)
def test_events_are_read_from_lines(lines: list[str], expected: tuple | None) -> None:
    reader = EventReader()
    events = [event for event in map(reader.feed, lines) if event is not None]
    assert [(each.name, each.data, each.id) for each in events] == ([expected] if expected else [])


def test_a_partial_event_does_not_change_the_last_id() -> None:
    reader = EventReader()
    for line in ("id: 1", "data: {}", "", "event: end", "data: {}", "", "id: 2", "data: {"):
        reader.feed(line)
    reader.drop_partial_event()
    assert reader.last_id == "1"
    assert reader.feed("") is None


def test_a_stream_is_reopened_with_growing_pauses_a_limited_number_of_times() -> None:
    backoff = ReconnectBackoff(max_failures=3)
    with pytest.raises(ApiUnavailable):
        backoff.pause(ApiUnavailable("never there"))
    backoff.restore()
    assert [backoff.pause(None) for _ in range(3)] == [0.2, 0.4, 0.8]
    with pytest.raises(ApiUnavailable, match="again and again"):
        backoff.pause(None)
    backoff.restore()
    busy = Unavailable("busy")
    busy.retry_after = 3
    assert backoff.pause(busy) == 3
    with pytest.raises(Forbidden):
        backoff.pause(Forbidden("the key was revoked"))


@pytest.mark.parametrize(
    ("status", "error"), [(403, Forbidden), (400, Invalid), (502, Unavailable)]
)
def test_an_error_page_of_a_proxy_becomes_the_error_of_its_status(
    status: int, error: type[Exception]
) -> None:
    answer = httpx.Response(
        status,
        text="<h1>Sorry</h1>",
        headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"},
        request=httpx.Request("GET", "http://api.example/jobs"),
    )
    api_error = error_of(answer)
    assert type(api_error) is error
    assert (api_error.status, api_error.kind, api_error.retry_after) == (status, None, None)
    assert str(api_error).startswith(f"api.example answered {status}")


@pytest.mark.parametrize("address", ["api.example:80", "ftp://api.example", "http://"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is not the address of an API"):
        Client(address)


@pytest.mark.parametrize("key", ["secret\nkey", "sekrét"])
def test_a_key_that_can_not_be_sent_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match="API key") as caught:
        Client("http://api.example", key)
    assert key not in str(caught.value)


def test_a_key_is_sent_without_the_line_end_of_its_file() -> None:
    with Client("http://api.example", "secret\r\n") as client:
        assert client._http.headers["Authorization"] == "Bearer secret"


def test_the_password_of_an_address_is_not_shown() -> None:
    with Client("http://somebody:secret@api.example") as client:
        assert repr(client) == "Client('http://api.example')"
        answer = httpx.Response(200, text="hello", request=httpx.Request("GET", client.base_url))
        with pytest.raises(UnexpectedResponse) as caught:
            client._result(service.live.call(), answer)
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="is not the address") as refused:
        Client("ftp://somebody:secret@api.example")
    assert "secret" not in str(refused.value)


def test_a_header_that_can_not_be_sent_is_named() -> None:
    with Client("http://api.example") as client, pytest.raises(ValueError, match="Idempotency-Key"):
        client.publish("hot.link_content", idempotency_key="Schlüssel")


def test_the_error_for_a_redirect_names_its_target() -> None:
    answer = httpx.Response(
        301,
        headers={"Location": "https://api.example/jobs"},
        request=httpx.Request("GET", "http://api.example/jobs"),
    )
    api_error = error_of(answer)
    assert type(api_error) is UnexpectedResponse
    assert "https://api.example/jobs" in str(api_error)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/html", "<h1>Log in</h1>"),
        ("text/event-stream", "data: {\n\n"),
        ("text/event-stream", "data: 1\n\n"),
    ],
)
async def test_a_response_that_is_no_event_stream_is_an_error(kind: str, body: str) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Type": kind}, text=body)

    transport = httpx.MockTransport(answer)
    with Client("http://api.example") as client:
        client._http = httpx.Client(base_url=client.base_url, transport=transport)
        with pytest.raises(UnexpectedResponse):
            next(client.events())
    async with AsyncClient("http://api.example") as client_async:
        client_async._http = httpx.AsyncClient(base_url=client.base_url, transport=transport)
        with pytest.raises(UnexpectedResponse):
            await anext(client_async.events())


TYPED_PROGRAM = """
import asyncio
from contextlib import aclosing, closing
from switchyard.api.client import AsyncClient, Client

with Client() as client, closing(client.events()) as events, closing(client.jobs()) as jobs:
    print(next(events).name, next(jobs).job_id)

async def main() -> None:
    async with AsyncClient() as client, asyncio.TaskGroup() as group:
        task = group.create_task(client.job("x"))
        async with aclosing(client.events()) as events, aclosing(client.documents()) as documents:
            print((await anext(events)).name, (await anext(documents)).title)
    print(task.result().job_id)
"""


@pytest.mark.long  # mypy reads pydantic, httpx and all of the client
def test_programs_that_close_streams_and_run_tasks_are_well_typed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TYPED_PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("since", ["1h", timedelta(hours=1), "2026-01-02T03:04:05Z"])
def test_times_are_taken_as_moments_and_as_durations(since: str | timedelta) -> None:
    parsed_since = datetime.fromisoformat(jobs.jobs_page.call(since=since).query["since"])
    expected = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    if since != "2026-01-02T03:04:05Z":
        expected = datetime.now(UTC) - timedelta(hours=1)
    assert abs(parsed_since - expected) < timedelta(minutes=1)
    run_at = datetime.fromisoformat(jobs.publish.call("hot.x", run_at="1h").json["run_at"])
    assert run_at > datetime.now(UTC) + timedelta(minutes=59)
    assert llm.llm_spend.call(since="2026-01-02").query["since"] == "2026-01-02"


@pytest.mark.parametrize("since", ["yesterday", "2026-01-02T03:04:05", 5, "9" * 99])
def test_an_invalid_time_is_refused_with_the_arguments_name_and_form(since: Any) -> None:
    for call in (jobs.jobs_page.call, llm.llm_spend.call):
        with pytest.raises(ValueError, match=r"since is .*: give a .* or a duration"):
            call(since=since)


@pytest.mark.parametrize("name", [".", "..", "../admin/keys", "a/b?c#d", "…"])
def test_an_id_can_not_lead_to_another_path(name: str) -> None:
    url = httpx.URL(f"http://host/jobs/{in_path(name)}/status")
    segments = url.raw_path.decode().split("/")
    assert segments[:2] + segments[3:] == ["", "jobs", "status"]
    assert url.path == f"/jobs/{name}/status"

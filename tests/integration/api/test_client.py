"""The Python client, sync and async, against the real service."""

import asyncio
import io
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from switchyard.api.client import (
    ApiUnavailable,
    AsyncClient,
    Client,
    Conflict,
    Event,
    Forbidden,
    Invalid,
    NotFound,
    RateLimited,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnexpectedResponse,
    UnsupportedMedia,
    WaitTimeout,
)
from switchyard.api.client.call import Call
from switchyard.api.client.operations import operations_of
from switchyard.services.engine.access.api_keys import Scope, create_key
from switchyard.services.engine.records.states import State
from switchyard.services.engine.wings import job_modules
from switchyard.services.pipeline.samples.articles import sample
from tests.support.api_server import RunningApi, serving
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System, open_system
from tests.support.tcp_proxy import TcpProxy


class Either:
    """One of the two clients: what is awaited here is the same for both."""

    def __init__(self, client: Client | AsyncClient) -> None:
        self.client = client

    async def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        method = getattr(self.client, name)
        if isinstance(self.client, AsyncClient):
            return await method(*args, **options)
        return await asyncio.to_thread(method, *args, **options)

    async def items(self, name: str, *args: Any, **options: Any) -> list[Any]:
        """All that it iterates over."""
        found: list[Any] = []
        await self.follow(found, name, *args, **options)
        return found

    async def follow(self, seen: list[Any], name: str, *args: Any, **options: Any) -> None:
        """Add to `seen` what it iterates over, as it comes."""
        iterator = getattr(self.client, name)(*args, **options)
        if isinstance(self.client, AsyncClient):
            async for item in iterator:
                seen += [item]
            return
        end = object()
        while (item := await asyncio.to_thread(next, iterator, end)) is not end:
            seen += [item]


KINDS: tuple[type[Any], ...] = (Client, AsyncClient)


@pytest.fixture(params=KINDS)
async def client(api: RunningApi, request: pytest.FixtureRequest) -> AsyncIterator[Either]:
    async with either(request.param, api.url) as made:
        yield made


class either:  # noqa: N801
    """A client of that class, closed at the end."""

    def __init__(self, kind: type[Client] | type[AsyncClient], url: str, **options: Any) -> None:
        self.client = kind(url, **options)

    async def __aenter__(self) -> Either:
        return Either(self.client)

    async def __aexit__(self, *_: object) -> None:
        await Either(self.client)("close")


@pytest.mark.parametrize("kind", KINDS)
async def test_every_operation_of_the_api_is_covered(
    shared_api: RunningApi, kind: type[Any]
) -> None:
    paths = (await shared_api.client.get("/openapi.json")).json()["paths"]
    known = {
        operation["operationId"]
        for path, item in paths.items()
        if not path.startswith("/v1/")  # OpenAI's own clients are for these
        for operation in item.values()
    }
    assert operations_of(kind) == known, "name each new operation in api/client/operations.py"


async def test_a_job_from_publish_to_its_end(system: System, client: Either) -> None:
    await system.start_worker()
    accepted = await client(
        "publish", "hot.noop", {"n": 7}, priority=3, idempotency_key="a-b", source="me"
    )
    assert (accepted.state, accepted.duplicate) == (State.QUEUED, False)
    job = await client("wait", accepted.job_id, timeout=20)
    assert (job.state, job.result, job.source, job.priority) == ("succeeded", {"n": 7}, "me", 3)
    assert (await client("job_status", job.job_id)).finished_at.tzinfo is not None
    again = await client("publish", "hot.noop", {"n": 7}, priority=3, idempotency_key="a-b")
    assert (again.job_id, again.duplicate) == (job.job_id, True)


async def test_listings_go_through_all_pages(system: System, client: Either) -> None:
    ids = {await system.publish("hot.noop", {"n": n}) for n in range(7)}
    await system.publish("backfill.noop")
    found = await client.items("jobs", lane="hot", limit=3)
    assert [len(found), {job.job_id for job in found}] == [7, ids]
    page = await client("jobs_page", lane="hot", limit=3)
    assert (len(page.jobs), page.next_cursor is None) == (3, False)


async def test_a_waiting_job_is_cancelled_and_one_that_goes_on_is_not_waited_for(
    system: System, client: Either
) -> None:
    waiting = await system.publish("hot.noop")
    with pytest.raises(WaitTimeout, match=f"{waiting} has not ended within 0.2 s"):
        await client("wait", waiting, timeout=0.2)
    cancelled = await client("cancel", waiting)
    assert (cancelled.state, cancelled.stopping) == (State.CANCELLED, False)
    assert (await client("wait", waiting, timeout=1)).state == State.CANCELLED


async def test_the_service_and_what_stands_behind_it(system: System, client: Either) -> None:
    worker = await system.start_worker()
    assert (await client("live")).status == "ok"
    assert (await client("ready")).components.keys() == {"broker", "events", "ledger", "storage"}
    assert (await client("health")).status == "ok"
    assert "hot" in [lane.lane for lane in (await client("backpressure")).lanes]
    assert "hot" in [lane.lane for lane in (await client("lanes")).lanes]
    assert worker.worker_id in [each.worker_id for each in (await client("workers")).workers]
    assert "noop" in [each.job_type for each in (await client("schemas")).job_types]
    assert (await client("schema", "noop"))["type"] == "object"
    assert (await client("asyncapi"))["asyncapi"].startswith("3.")
    kinds = (await client("problems")).problems
    assert (await client("problem", "lane-full")) in kinds
    assert await client.items("dead", lane="hot") == []
    with pytest.raises(NotFound):
        await client("dead_letter", "nothing")


async def test_a_component_that_is_away_is_an_answer(system: System, client: Either) -> None:
    files = Path(urlsplit(system.settings.files_url).path)
    files.mkdir(parents=True, exist_ok=True)
    (files / "health").write_text("in the way of the probe")
    for method in ("ready", "health"):
        found = await client(method)
        assert (found.status, found.components["storage"].state) == ("away", "away")


async def test_events_of_a_job_to_its_end(system: System, api: RunningApi, client: Either) -> None:
    await eventually(api.state.broker.feed.is_listening.is_set, what="the event feed")
    await system.start_worker()
    job_id = await system.publish("hot.gated")
    await journal.started(job_id)
    events: list[Event] = []
    following = asyncio.create_task(client.follow(events, "job_events", job_id))
    await eventually(lambda: events, what="how it stands, which comes first")
    journal.release(job_id)
    await asyncio.wait_for(following, 20)
    # That it was started may have been on its way when the stream began.
    told = [event.name for event in events if event.name != "started"]
    assert told == ["state", "succeeded", "end"]
    assert events[-1].data["state"] == "succeeded"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_that_is_cut_goes_on_after_the_last_event(
    system: System, api: RunningApi, kind: type[Any]
) -> None:
    feed = api.state.broker.feed
    await eventually(feed.is_listening.is_set, what="the event feed")
    await system.start_worker()
    port = int(api.url.rpartition(":")[2])
    async with (
        TcpProxy("127.0.0.1", port) as proxy,
        either(kind, proxy.url(api.url)) as client,
    ):
        seen: list[Event] = []
        following = asyncio.create_task(client.follow(seen, "events", lane="hot"))
        await eventually(lambda: feed.subscribers == 1, what="the stream")
        first = await system.publish("hot.noop")
        await eventually(lambda: _ended(seen, first), what="the first job's events")
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: feed.subscribers == 0, what="the end of the stream")
        missed = await system.publish("hot.noop")
        await system.wait_for_state(missed, State.SUCCEEDED)
        await proxy.accept()
        await eventually(lambda: _ended(seen, missed), what="what was missed")
        following.cancel()
        assert [event.id for event in seen] == list(dict.fromkeys(event.id for event in seen))


def _ended(seen: list[Event], job_id: str) -> bool:
    return any(each.name == "succeeded" and each.data["job_id"] == job_id for each in seen)


# --- documents ------------------------------------------------------------------------------------


async def test_a_document_is_sent_waited_for_and_found(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    """By either client; that which comes second sends what is there."""
    paper = tmp_path / "paper.pdf"
    paper.write_bytes(sample(0).content)
    async with (
        open_system(
            broker310, sqlite_url, modules=job_modules(), data_dir=tmp_path / "data"
        ) as system,
        serving(system.settings) as api,
    ):
        await system.start_worker("ingest", "llm", "embed", "link")
        for kind in KINDS:
            async with either(kind, api.url) as client:
                await _send_and_find(client, paper, duplicate=kind is not KINDS[0])


async def _send_and_find(client: Either, paper: Path, *, duplicate: bool) -> None:
    sent = await client("upload", paper, source="https://example.org/a", title="Mine")
    assert sent.duplicate is duplicate
    done = await client("wait_for_document", sent.document_id, timeout=60)
    assert (done.state, done.title, done.filename) == ("completed", "Mine", "paper.pdf")
    with paper.open("rb") as file:
        again = await client("upload", file)
    assert (again.duplicate, again.document_id) == (True, sent.document_id)
    listed = await client.items("documents", source="https://example.org/a", limit=1)
    assert [each.document_id for each in listed] == [sent.document_id]
    found = await client("document", sent.document_id)
    # What is beside its pipeline, as its classes, may come after it is complete.
    aside = {"completed_stages": done.completed_stages, "classes": done.classes}
    assert found.model_copy(update=aside) == done
    result = await client("document_result", sent.document_id, with_text=True)
    words = result["pages"][0]["text"][:100]
    hits = (await client("search", words, mode="keyword", limit=3)).hits
    assert sent.document_id in [hit.document_id for hit in hits]
    text = await client("text_of", str(paper), timeout=60)
    assert [page["text"] for page in text["pages"]]


async def test_a_file_is_read_as_it_is_sent(shared_api: RunningApi) -> None:
    class Watched(io.BytesIO):
        largest = 0

        def read(self, size: int | None = -1) -> bytes:
            assert size is not None
            assert size > 0, "it was read whole"
            self.largest = max(self.largest, size)
            return super().read(size)

    for kind in KINDS:
        file = Watched(sample(0).content * 20)
        async with either(kind, shared_api.url) as client:
            await client("upload", file, filename="many.pdf")
        assert 0 < file.largest <= 1024 * 1024


# --- errors ---------------------------------------------------------------------------------------


async def test_every_refusal_has_its_error(system: System, tmp_path: Path) -> None:
    reader = (await create_key(system.ledger, "reader", [Scope.READ])).key
    admin = (await create_key(system.ledger, "admin", [Scope.ADMIN])).key
    done = await system.publish("hot.noop")
    worker = await system.start_worker()
    await system.wait_for_state(done, State.SUCCEEDED)
    await worker.stop()
    page = tmp_path / "page.html"
    page.write_bytes(b"<!doctype html><title>a page</title>")
    async with serving(system.settings, api_max_body=2000) as api:
        for kind in KINDS:
            async with either(kind, api.url, api_key="swy_wrong") as client:
                with pytest.raises(Unauthorized):
                    await client("job", done)
            async with either(kind, api.url, api_key=reader) as client:
                with pytest.raises(Forbidden, match="publish"):
                    await client("publish", "hot.noop")
            async with either(kind, api.url, api_key=admin) as client:
                await _refused(client, done, page)


async def _refused(client: Either, done: str, page: Path) -> None:
    with pytest.raises(NotFound, match="there is no job 'nothing'") as missing:
        await client("job", "nothing")
    with pytest.raises(Conflict) as ended:
        await client("cancel", done)
    with pytest.raises(TooLarge):
        await client("publish", "hot.noop", {"pad": "x" * 3000})
    with pytest.raises(UnsupportedMedia):
        await client("upload", page)
    with pytest.raises(Invalid) as invalid:
        await client("publish", "hot.nonsense")
    error = missing.value
    assert (error.status, error.kind, error.title) == (404, "not-found", "Not found")
    assert error.request_id
    assert (ended.value.kind, ended.value.extra) == ("already-ended", {"state": "succeeded"})
    assert invalid.value.errors[0].location == ["body", "routing_key"]


@pytest.mark.parametrize("kind", KINDS)
async def test_only_what_may_be_done_twice_is_tried_again(system: System, kind: type[Any]) -> None:
    async with (
        serving(system.settings, api_rate_limit=0.7, api_rate_burst=1) as api,
        either(kind, api.url, retries=3) as client,
    ):
        assert (await client("jobs_page")).jobs == []
        with pytest.raises(RateLimited) as refused:
            await client("publish", "hot.noop")
        assert refused.value.retry_after
        assert await client("publish", "hot.noop", idempotency_key="one")  # turned away at first
        assert len((await client("jobs_page")).jobs) == 1


async def test_a_full_lane_is_unavailable(system: System) -> None:
    async with serving(system.settings, pressure_full_at=0.0) as api:
        for kind in KINDS:
            async with either(kind, api.url, max_retry_pause=1) as client:
                await client("backpressure")
                with pytest.raises(Unavailable) as full:
                    await client("publish", "hot.noop", idempotency_key="x")
            assert (full.value.kind, full.value.retry_after) == ("lane-full", 5)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_api_that_is_not_there(unused_tcp_port: int, kind: type[Any]) -> None:
    async with either(kind, f"http://127.0.0.1:{unused_tcp_port}", retries=1) as client:
        with pytest.raises(ApiUnavailable, match=f"127.0.0.1:{unused_tcp_port} can't be reached"):
            await client("live")
        with pytest.raises(ApiUnavailable):
            await client.items("events")


@pytest.mark.parametrize("kind", KINDS)
async def test_something_else_that_answers(broker310: TestBroker, kind: type[Any]) -> None:
    async with either(kind, broker310.management_url) as client:
        with pytest.raises(UnexpectedResponse, match="is it the API"):
            await client("send", Call("GET", "/", lambda body: _strict(body)))


def _strict(body: bytes) -> int:
    from pydantic import TypeAdapter

    return TypeAdapter(int).validate_json(body)


async def test_the_key_of_the_environment_is_sent_and_not_told(
    system: System,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = "a-key-that-nobody-else-knows"
    monkeypatch.setenv("JOBS_API_KEY", key)
    caplog.set_level(logging.DEBUG)
    async with serving(system.settings, api_keys=SecretStr(key)) as api:
        monkeypatch.setenv("JOBS_API_URL", api.url)
        for kind in KINDS:
            client = Either(kind())
            assert (await client("jobs_page")).jobs == []
            await client("close")
            assert key not in repr(client.client)
            assert api.url in repr(client.client)
    assert key not in caplog.text

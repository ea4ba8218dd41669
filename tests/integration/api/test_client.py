"""The Python clients, blocking and async, against the real service."""

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
    """Calls either client's methods in the same way: those of the blocking one run in a thread."""

    def __init__(self, client: Client | AsyncClient) -> None:
        self.client = client

    async def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        method = getattr(self.client, name)
        if isinstance(self.client, AsyncClient):
            return await method(*args, **options)
        return await asyncio.to_thread(method, *args, **options)

    async def items(self, name: str, *args: Any, **options: Any) -> list[Any]:
        """Return the items that the client's method yields."""
        items: list[Any] = []
        await self.follow(items, name, *args, **options)
        return items

    async def follow(self, received: list[Any], name: str, *args: Any, **options: Any) -> None:
        """Add the items that the client's method yields to `received`, as they come."""
        iterator = getattr(self.client, name)(*args, **options)
        if isinstance(self.client, AsyncClient):
            async for item in iterator:
                received += [item]
            return
        end = object()
        while (item := await asyncio.to_thread(next, iterator, end)) is not end:
            received += [item]


KINDS: tuple[type[Any], ...] = (Client, AsyncClient)


@pytest.fixture(params=KINDS)
async def client(api: RunningApi, request: pytest.FixtureRequest) -> AsyncIterator[Either]:
    async with open_client(request.param, api.url) as opened:
        yield opened


class open_client:  # noqa: N801
    """Opens a client of that class, and closes it at the end."""

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
    operations = {
        operation["operationId"]
        for path, item in paths.items()
        if not path.startswith("/v1/")  # OpenAI's own clients are for these
        for operation in item.values()
    }
    assert operations_of(kind) == operations, "name each new operation in api/client/operations.py"


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
    jobs = await client.items("jobs", lane="hot", limit=3)
    assert [len(jobs), {job.job_id for job in jobs}] == [7, ids]
    page = await client("jobs_page", lane="hot", limit=3)
    assert (len(page.jobs), page.next_cursor is None) == (3, False)


async def test_a_wait_times_out_and_a_waiting_job_is_cancelled(
    system: System, client: Either
) -> None:
    waiting = await system.publish("hot.noop")
    with pytest.raises(WaitTimeout, match=f"{waiting} has not ended within 0.2 s"):
        await client("wait", waiting, timeout=0.2)
    cancelled = await client("cancel", waiting)
    assert (cancelled.state, cancelled.stopping) == (State.CANCELLED, False)
    assert (await client("wait", waiting, timeout=1)).state == State.CANCELLED


async def test_the_state_of_the_service_and_of_its_components(
    system: System, client: Either
) -> None:
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


async def test_an_unavailable_component_is_reported_without_an_error(
    system: System, client: Either
) -> None:
    files = Path(urlsplit(system.settings.files_url).path)
    files.mkdir(parents=True, exist_ok=True)
    (files / "health").write_text("in the way of the probe")
    for method in ("ready", "health"):
        health = await client(method)
        assert (health.status, health.components["storage"].state) == ("away", "away")


async def test_events_of_a_job_to_its_end(system: System, api: RunningApi, client: Either) -> None:
    await eventually(api.state.broker.feed.is_listening.is_set, what="the event feed")
    await system.start_worker()
    job_id = await system.publish("hot.gated")
    await journal.started(job_id)
    events: list[Event] = []
    following = asyncio.create_task(client.follow(events, "job_events", job_id))
    await eventually(lambda: events, what="the job's state, which comes first")
    journal.release(job_id)
    await asyncio.wait_for(following, 20)
    # The event "started" may come after the stream has begun.
    names = [event.name for event in events if event.name != "started"]
    assert names == ["state", "succeeded", "end"]
    assert events[-1].data["state"] == "succeeded"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_that_is_cut_continues_after_the_last_event(
    system: System, api: RunningApi, kind: type[Any]
) -> None:
    feed = api.state.broker.feed
    await eventually(feed.is_listening.is_set, what="the event feed")
    await system.start_worker()
    port = int(api.url.rpartition(":")[2])
    async with (
        TcpProxy("127.0.0.1", port) as proxy,
        open_client(kind, proxy.url(api.url)) as client,
    ):
        received: list[Event] = []
        following = asyncio.create_task(client.follow(received, "events", lane="hot"))
        await eventually(lambda: feed.subscribers == 1, what="the stream")
        first = await system.publish("hot.noop")
        await eventually(lambda: _has_succeeded(received, first), what="the first job's events")
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: feed.subscribers == 0, what="the end of the stream")
        missed = await system.publish("hot.noop")
        await system.wait_for_state(missed, State.SUCCEEDED)
        await proxy.accept()
        await eventually(lambda: _has_succeeded(received, missed), what="what was missed")
        following.cancel()
        assert [event.id for event in received] == list(
            dict.fromkeys(event.id for event in received)
        )


def _has_succeeded(received: list[Event], job_id: str) -> bool:
    return any(each.name == "succeeded" and each.data["job_id"] == job_id for each in received)


# --- documents ------------------------------------------------------------------------------------


async def test_a_document_is_sent_waited_for_and_found(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    """By both clients: what the second one sends is a duplicate."""
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
            async with open_client(kind, api.url) as client:
                await _send_and_find(client, paper, is_duplicate=kind is not KINDS[0])


async def _send_and_find(client: Either, paper: Path, *, is_duplicate: bool) -> None:
    sent = await client("upload", paper, source="https://example.org/a", title="Mine")
    assert sent.duplicate is is_duplicate
    done = await client("wait_for_document", sent.document_id, timeout=60)
    assert (done.state, done.title, done.filename) == ("completed", "Mine", "paper.pdf")
    with paper.open("rb") as file:
        again = await client("upload", file)
    assert (again.duplicate, again.document_id) == (True, sent.document_id)
    listed = await client.items("documents", source="https://example.org/a", limit=1)
    assert [each.document_id for each in listed] == [sent.document_id]
    details = await client("document", sent.document_id)
    # Jobs beside its pipeline, such as its classification, may end after it is complete.
    from_other_jobs = {"completed_stages": done.completed_stages, "classes": done.classes}
    assert details.model_copy(update=from_other_jobs) == done
    result = await client("document_result", sent.document_id, with_text=True)
    words = result["pages"][0]["text"][:100]
    hits = (await client("search", words, mode="keyword", limit=3)).hits
    assert sent.document_id in [hit.document_id for hit in hits]
    text = await client("text_of", str(paper), timeout=60)
    assert [page["text"] for page in text["pages"]]


async def test_a_file_is_read_in_parts_while_it_is_sent(shared_api: RunningApi) -> None:
    class RecordingFile(io.BytesIO):
        largest_read = 0

        def read(self, size: int | None = -1) -> bytes:
            assert size is not None
            assert size > 0, "it was read whole"
            self.largest_read = max(self.largest_read, size)
            return super().read(size)

    for kind in KINDS:
        file = RecordingFile(sample(0).content * 20)
        async with open_client(kind, shared_api.url) as client:
            await client("upload", file, filename="many.pdf")
        assert 0 < file.largest_read <= 1024 * 1024


# --- errors ---------------------------------------------------------------------------------------


async def test_every_refusal_raises_its_own_error(system: System, tmp_path: Path) -> None:
    reader = (await create_key(system.ledger, "reader", [Scope.READ])).key
    admin = (await create_key(system.ledger, "admin", [Scope.ADMIN])).key
    ended_id = await system.publish("hot.noop")
    worker = await system.start_worker()
    await system.wait_for_state(ended_id, State.SUCCEEDED)
    await worker.stop()
    page = tmp_path / "page.html"
    page.write_bytes(b"<!doctype html><title>a page</title>")
    async with serving(system.settings, api_max_body=2000) as api:
        for kind in KINDS:
            async with open_client(kind, api.url, api_key="swy_wrong") as client:
                with pytest.raises(Unauthorized):
                    await client("job", ended_id)
            async with open_client(kind, api.url, api_key=reader) as client:
                with pytest.raises(Forbidden, match="publish"):
                    await client("publish", "hot.noop")
            async with open_client(kind, api.url, api_key=admin) as client:
                await _check_refusals(client, ended_id, page)


async def _check_refusals(client: Either, ended_id: str, page: Path) -> None:
    with pytest.raises(NotFound, match="there is no job 'nothing'") as missing:
        await client("job", "nothing")
    with pytest.raises(Conflict) as conflict:
        await client("cancel", ended_id)
    with pytest.raises(TooLarge):
        await client("publish", "hot.noop", {"pad": "x" * 3000})
    with pytest.raises(UnsupportedMedia):
        await client("upload", page)
    with pytest.raises(Invalid) as invalid:
        await client("publish", "hot.nonsense")
    error = missing.value
    assert (error.status, error.kind, error.title) == (404, "not-found", "Not found")
    assert error.request_id
    assert (conflict.value.kind, conflict.value.extra) == ("already-ended", {"state": "succeeded"})
    assert invalid.value.errors[0].location == ["body", "routing_key"]


@pytest.mark.parametrize("kind", KINDS)
async def test_only_requests_that_may_be_repeated_are_retried(
    system: System, kind: type[Any]
) -> None:
    async with (
        serving(system.settings, api_rate_limit=0.7, api_rate_burst=1) as api,
        open_client(kind, api.url, retries=3) as client,
    ):
        assert (await client("jobs_page")).jobs == []
        with pytest.raises(RateLimited) as refused:
            await client("publish", "hot.noop")
        assert refused.value.retry_after
        # The rate limit refuses it once.
        assert await client("publish", "hot.noop", idempotency_key="one")
        assert len((await client("jobs_page")).jobs) == 1


async def test_a_full_lane_is_unavailable(system: System) -> None:
    async with serving(system.settings, pressure_full_at=0.0) as api:
        for kind in KINDS:
            async with open_client(kind, api.url, max_retry_pause=1) as client:
                await client("backpressure")
                with pytest.raises(Unavailable) as full:
                    await client("publish", "hot.noop", idempotency_key="x")
            assert (full.value.kind, full.value.retry_after) == ("lane-full", 5)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unreachable_api_is_unavailable(unused_tcp_port: int, kind: type[Any]) -> None:
    async with open_client(kind, f"http://127.0.0.1:{unused_tcp_port}", retries=1) as client:
        with pytest.raises(ApiUnavailable, match=f"127.0.0.1:{unused_tcp_port} can't be reached"):
            await client("live")
        with pytest.raises(ApiUnavailable):
            await client.items("events")


@pytest.mark.parametrize("kind", KINDS)
async def test_another_server_at_the_address_is_an_unexpected_response(
    broker310: TestBroker, kind: type[Any]
) -> None:
    async with open_client(kind, broker310.management_url) as client:
        with pytest.raises(UnexpectedResponse, match="is it the API"):
            await client("send", Call("GET", "/", lambda body: _parse_int(body)))


def _parse_int(body: bytes) -> int:
    from pydantic import TypeAdapter

    return TypeAdapter(int).validate_json(body)


async def test_the_key_of_the_environment_is_sent_and_not_logged(
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

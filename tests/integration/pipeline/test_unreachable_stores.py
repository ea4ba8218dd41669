"""An object store that is unreachable is reported as such: to searches, uploads and the doctor."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from switchyard.cli.system.free_ports import LOOPBACK, free_port
from switchyard.services.common.errors import RetryableError
from switchyard.services.common.files import storage as storage_module
from switchyard.services.common.files.errors import StorageUnavailable
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_quota import Quota
from switchyard.services.common.settings import Settings
from switchyard.services.engine.identity.storage_identity import claim_places
from switchyard.services.engine.jobs.retry import Delayed, Failure, RetryPolicy, decide
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.engine.monitoring.checks import host
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.metric_names import STORAGE_QUOTA, STORAGE_USED
from switchyard.services.engine.monitoring.system_metrics import SystemMetrics
from switchyard.services.pipeline.index.chunk_index import IndexUnavailable
from switchyard.services.pipeline.index.embedder import embedder_for
from switchyard.services.pipeline.index.index_check import check_index
from switchyard.services.pipeline.index.open_index import generation_of, index_store_at, open_index
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id
from switchyard.services.pipeline.workers.stages import document_id_of
from tests.integration.api.document_server import serving
from tests.integration.pipeline.conftest import Pipeline
from tests.support.missing import MissingError, skip_or_fail
from tests.support.object_stores import s3_server
from tests.support.peers import serve_silence

INDEX_URL = "s3://switchyard/index"


@pytest.fixture(autouse=True)
def unreachable_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure an S3 server on a port where nobody listens; requests to it end soon."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{LOOPBACK}:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-this-test-alone")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setattr(storage_module, "RETRY_TIMEOUT", timedelta(seconds=0.2))


@contextmanager
def running_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run an S3 server, and point the environment to it."""
    try:
        with s3_server() as environment:
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            yield
    except MissingError as error:
        skip_or_fail(str(error))


async def test_every_call_raises_storage_unavailable():
    store = Storage("s3://switchyard/files")
    with pytest.raises(StorageUnavailable, match="s3://switchyard/files does not answer"):
        await store.put_async("a", b"content")
    with pytest.raises(StorageUnavailable):
        await store.get_async("a")
    with pytest.raises(StorageUnavailable):
        store.get("a")
    with pytest.raises(StorageUnavailable):
        await store.stat_async("a")
    with pytest.raises(StorageUnavailable):
        await store.size_async()


async def test_a_silent_store_is_given_up_soon_where_a_caller_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(storage_module, "FAIL_FAST_TIMEOUT", 1.0)
    settings = Settings(data_dir=tmp_path, amqp_url=None, storage_url="s3://switchyard/files")

    async with serve_silence() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        async with serving(settings) as client:
            began = time.monotonic()
            answer = await client.get(f"/documents/{document_id_of('any')}/pages/1")
            assert time.monotonic() - began < 10
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
    assert "Retry-After" in answer.headers


@pytest.mark.parametrize("quota", [None, 1_000_000])
async def test_an_upload_to_a_silent_store_is_refused_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: int | None
):
    monkeypatch.setattr(storage_module, "FAIL_FAST_TIMEOUT", 1.0)
    settings = Settings(
        data_dir=tmp_path,
        amqp_url=None,
        storage_url="s3://switchyard/files",
        storage_quota=quota,
    )

    async with serve_silence() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        async with serving(settings) as client:
            began = time.monotonic()
            files = {"file": ("a.txt", b"Some text. " * 100_000)}
            answer = await client.post("/documents", files=files)
            assert time.monotonic() - began < 10
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
    assert answer.json()["detail"].startswith("the file storage does not answer")
    assert "Retry-After" in answer.headers


async def test_uploads_to_a_silent_store_do_not_wait_for_one_another(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(storage_module, "FAIL_FAST_TIMEOUT", 1.0)
    async with serve_silence() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        quota = Quota(Storage("s3://switchyard/files", fail_fast=True), 1_000)
        began = time.monotonic()
        checks = (quota.check() for _ in range(20))
        refused = await asyncio.gather(*checks, return_exceptions=True)
        assert time.monotonic() - began < 10
        assert {type(each) for each in refused} == {StorageUnavailable}
        with pytest.raises(StorageUnavailable):  # the next check asks the store again
            await quota.check()


@pytest.mark.parametrize("slow_side", ["store", "sender"])
async def test_a_slow_upload_is_waited_for_and_a_slow_store_is_probed(
    monkeypatch: pytest.MonkeyPatch, slow_side: str
):
    monkeypatch.setattr(storage_module, "FAIL_FAST_TIMEOUT", 0.4)
    head_requested = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the write of a file only after a request for another file."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.partition("content-length: ")[2].partition("\r")[0] or 0)
        await reader.readexactly(size)
        if head.startswith("put ") and slow_side == "store":
            await head_requested.wait()
        if head.startswith("head "):
            head_requested.set()
        status = "404 Not Found" if head.startswith("head ") else "200 OK"
        body = "<Upload><UploadId>1</UploadId><ETag>1</ETag></Upload>"
        body = body if head.startswith("post ") else ""
        headers = f"Content-Length: {len(body)}\r\nETag: 1\r\nConnection: close"
        writer.write(f"HTTP/1.1 {status}\r\n{headers}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    async def stream_content() -> AsyncIterator[bytes]:
        yield b"content"
        if slow_side == "sender":
            await asyncio.to_thread(Event().wait, 4 * storage_module.FAIL_FAST_TIMEOUT)

    async with await asyncio.start_server(answer, LOOPBACK, 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{LOOPBACK}:{port}")
        store = Storage("s3://switchyard/files", fail_fast=True)
        received = await store.put_stream_async("key", stream_content(), max_bytes=100)
    assert received.size == 7
    assert head_requested.is_set() == (slow_side == "store")


@pytest.mark.parametrize("error", [StorageUnavailable("away"), IndexUnavailable("away")])
def test_a_job_waits_for_a_store_without_using_up_an_attempt(error: RetryableError):
    decision = decide(
        Failure.from_error(error),
        attempts=2,
        max_attempts=3,
        policy=RetryPolicy.from_levels(),
        now=datetime.now(UTC),
    )
    assert isinstance(decision, Delayed)
    assert (decision.attempts, decision.ages) == (2, True)


async def test_a_process_starts_while_the_stores_are_unreachable(ledger: Ledger, tmp_path: Path):
    settings = Settings(
        data_dir=tmp_path, storage_url="s3://switchyard/files", index_url=SecretStr(INDEX_URL)
    )
    with capture_logs() as logs:
        await claim_places(settings, ledger)
    unchecked = [each["of"] for each in logs if each["event"] == "system not checked"]
    assert unchecked == ["file storage", "index"]


async def test_a_search_gets_503_with_retry_after_and_the_doctor_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = Settings(
        data_dir=tmp_path, amqp_url=None, index_url=INDEX_URL, storage_url="s3://switchyard/files"
    )
    async with AsyncExitStack() as stack:
        with running_store(monkeypatch):
            client = await stack.enter_async_context(serving(settings))
            answer = await client.post("/search", json={"query": "tide"})
            assert (answer.status_code, answer.json()["hits"]) == (200, [])
        answer = await client.post("/search", json={"query": "tide"})
        refused = await client.post("/documents", files={"file": ("a.txt", b"Some text.")})
    assert answer.status_code == refused.status_code == 503
    assert answer.json()["type"].endswith("search-away")
    assert answer.json()["detail"].startswith("the index does not answer")
    assert refused.json()["detail"].startswith("the file storage does not answer")
    assert "Retry-After" in answer.headers
    (check,) = await check_index(settings)
    assert (check.status, check.finding) == ("wrong", Finding.INDEX_AWAY)


async def test_a_table_that_can_not_be_opened_raises_index_unavailable(tmp_path: Path):
    generation = generation_of(embedder_for(Settings(data_dir=tmp_path)), "chunks")
    with pytest.raises(IndexUnavailable, match="s3://switchyard/index does not answer"):
        async with index_store_at(INDEX_URL).table(generation):
            pass


async def test_an_index_whose_store_refuses_access_counts_as_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    generation = generation_of(embedder_for(Settings(data_dir=tmp_path)), "chunks")
    vector = [1.0] + [0.0] * (generation.dimensions - 1)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    stack = AsyncExitStack()
    with running_store(monkeypatch):
        table = await stack.enter_async_context(index_store_at(INDEX_URL).table(generation))
        await table.put("Title", [Chunk(chunk_id("any", 0), "any", 0, 1, "text")], [vector])
        port = urlsplit(os.environ["AWS_ENDPOINT_URL"]).port
    async with await asyncio.start_server(refuse, LOOPBACK, port):
        with pytest.raises(IndexUnavailable):
            async with stack:
                await table.nearest(vector, 1)


async def test_the_doctor_reports_an_index_of_another_embedder_and_creates_none(tmp_path: Path):
    settings = Settings(data_dir=tmp_path, embed_offline="hashed")
    (check,) = await check_index(settings)
    assert (check.status, check.detail) == ("ok", "nothing has been indexed yet")
    assert list(tmp_path.iterdir()) == []
    async with open_index(settings) as index, index.open_active():
        pass
    (check,) = await check_index(settings)
    assert check.status == "ok"
    (check,) = await check_index(settings.model_copy(update={"embed_offline": "wordllama"}))
    assert (check.status, check.finding) == ("warning", Finding.INDEX_EMBEDDER)
    assert "JOBS_EMBED_OFFLINE=hashed" in check.remedy


@pytest.mark.parametrize(
    ("quota", "finding"),
    [(101, Finding.QUOTA_NEAR), (100, Finding.QUOTA_FULL), (1_000, None), (None, None)],
)
async def test_the_doctor_reports_a_used_up_quota(
    pipeline: Pipeline, quota: int | None, finding: Finding | None
):
    pipeline.storage.put("uploads/one", b"x" * 100)
    settings = pipeline.settings.model_copy(update={"storage_quota": quota})
    (check,) = await host.storage(DoctorContext(settings, pipeline.registry))
    assert check.finding == finding


async def test_bytes_in_the_storage_are_shown_beside_their_quota(pipeline: Pipeline):
    pipeline.storage.put("uploads/one", b"x" * 100)
    settings = pipeline.settings.model_copy(update={"storage_quota": 1_000, "amqp_url": None})
    assert pipeline.ledger is not None
    metrics = SystemMetrics(settings, pipeline.registry, pipeline.ledger)
    await metrics.refresh()
    samples = dict(metrics.metric_samples())
    assert (samples[STORAGE_USED], samples[STORAGE_QUOTA]) == ({(): 100.0}, {(): 1_000.0})

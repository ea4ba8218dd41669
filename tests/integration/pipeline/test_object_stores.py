"""Everything that is a file may lie in S3 or Azure, shared by workers of several hosts."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard.services.common.files.errors import (
    FileTooLarge,
    NotStored,
    StorageAuthError,
)
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import result_key
from switchyard.services.engine.identity.storage_identity import WrongStorage, claim_places
from switchyard.services.engine.ledger import Ledger
from switchyard.services.pipeline.index.chunk_index import IndexUnavailable
from switchyard.services.pipeline.index.chunk_search import search
from switchyard.services.pipeline.index.generations import Generation, IndexStore
from switchyard.services.pipeline.index.open_index import index_store_at, open_index
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id
from tests.integration.pipeline.conftest import Pipeline
from tests.support.ledgers import make_ledger
from tests.support.missing import MissingError, skip_or_fail
from tests.support.object_stores import CONTAINER, azure_server, s3_server

SPAWN = multiprocessing.get_context("spawn")
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    try:
        with s3_server() as environment:
            yield environment
    except MissingError as error:
        skip_or_fail(str(error))


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    try:
        with azure_server(tmp_path_factory.mktemp("azure")) as environment:
            yield environment
    except MissingError as error:
        skip_or_fail(str(error))


@pytest.fixture(params=["s3", "azure"])
def base_url(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> str:
    """Return an empty address in each kind of object store, which this process may use."""
    for name, value in request.getfixturevalue(request.param).items():
        monkeypatch.setenv(name, value)
    scheme = {"s3": "s3", "azure": "az"}[request.param]
    return f"{scheme}://{CONTAINER}/{tmp_path.name}"


async def make_parts(number: int) -> AsyncIterator[bytes]:
    for _ in range(number):
        yield b"x" * MIB


async def list_keys(storage: Storage, prefix: str = "") -> list[str]:
    return sorted([stored.key async for stored in storage.list_async(prefix)])


async def test_a_store_keeps_files_as_a_directory_does(base_url: str):
    storage = Storage(base_url)
    await storage.put_async("a/b", b"one")
    await storage.put_async("a/b", b"two")
    assert await storage.get_async("a/b") == b"two"
    assert not await storage.put_new_async("a/b", b"three")
    assert await storage.put_new_async("a/c", b"three")
    assert (
        await storage.put_stream_async("big", make_parts(12), max_bytes=20 * MIB)
    ).size == 12 * MIB
    assert await list_keys(storage) == ["a/b", "a/c", "big"]
    assert await list_keys(storage, "a") == ["a/b", "a/c"]
    assert await storage.size_async("a") == 8
    tail = b"".join([part async for part in storage.stream_async("big", start=12 * MIB - 3)])
    assert tail == b"xxx"
    await storage.rename_async("a/c", "d")
    assert await storage.get_async("d") == b"three"
    await storage.delete_async("d")
    await storage.delete_async("d")
    with pytest.raises(NotStored):
        await storage.get_async("d")
    assert await storage.delete_prefix_async("a") == 1
    assert await list_keys(storage) == ["big"]


async def test_an_upload_that_is_too_long_or_cut_off_leaves_nothing(base_url: str):
    storage = Storage(base_url)
    with pytest.raises(FileTooLarge):
        await storage.put_stream_async("long", make_parts(12), max_bytes=11 * MIB)

    async def yield_and_fail() -> AsyncIterator[bytes]:
        async for part in make_parts(8):
            yield part
        raise ConnectionError("the sender is gone")

    with pytest.raises(ConnectionError):
        await storage.put_stream_async("cut", yield_and_fail(), max_bytes=20 * MIB)
    assert await list_keys(storage) == []


async def test_a_missing_bucket_is_not_taken_for_a_missing_file(base_url: str):
    """Otherwise jobs would be given up, as if their documents were gone for good."""
    storage = Storage(base_url.replace(CONTAINER, "nobodys", 1))
    calls: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: storage.put_async("a", b"one"),
        lambda: storage.put_new_async("a", b"one"),
        lambda: storage.get_async("a"),
        lambda: storage.size_async(),
        lambda: anext(storage.stream_async("a")),
    )
    for call in calls:
        with pytest.raises(StorageAuthError, match="has no bucket or container there"):
            await call()
    with pytest.raises(StorageAuthError):
        storage.get("a")
    with pytest.raises(IndexUnavailable, match="has no bucket or container there"):
        await open_chunk_table(index_store_at(base_url.replace(CONTAINER, "nobodys", 1)))


async def open_chunk_table(store: IndexStore) -> None:
    async with store.table(Generation("chunks", "hashed", 4)):
        pass


@pytest.mark.parametrize("base_url", ["azure"], indirect=True)
async def test_wrong_credentials_count_as_an_outage(base_url: str, monkeypatch: pytest.MonkeyPatch):
    right_key = os.environ["AZURE_STORAGE_ACCOUNT_KEY"]
    await Storage(base_url).put_async("a", b"one")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", b64encode(b"another one").decode())
    storage = Storage(base_url)
    refused = pytest.raises(StorageAuthError, match=r"refuses access \(AuthorizationFailure\)")
    with refused:
        await storage.put_async("a", b"two")
    with refused:
        await storage.get_async("a")
    with refused:
        await storage.size_async()
    with pytest.raises(IndexUnavailable, match=r"refuses access \(AuthorizationFailure\)"):
        await open_chunk_table(index_store_at(base_url))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", right_key)
    assert await Storage(base_url).get_async("a") == b"one"


def run_upload(url: str, is_half_sent: Event) -> None:
    async def upload() -> None:
        async def yield_and_wait() -> AsyncIterator[bytes]:
            async for part in make_parts(20):
                yield part
            is_half_sent.set()
            await asyncio.Event().wait()

        await Storage(url).put_stream_async("killed", yield_and_wait(), max_bytes=100 * MIB)

    asyncio.run(upload())


@pytest.mark.parametrize("where", ["store", "directory"])
async def test_an_upload_whose_process_is_killed_leaves_nothing(
    base_url: str, tmp_path: Path, where: str
):
    url = base_url if where == "store" else (tmp_path / "files").as_uri()
    is_half_sent = SPAWN.Event()
    process = SPAWN.Process(target=run_upload, args=(url, is_half_sent))
    process.start()
    assert await asyncio.to_thread(is_half_sent.wait, 60)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    await asyncio.to_thread(process.join)
    storage = Storage(url)
    assert await list_keys(storage) == []
    assert not await storage.exists_async("killed")


def write_chunks(url: str, writer: int, rounds: int) -> None:
    async def write_rounds() -> None:
        async with index_store_at(url).table(Generation("chunks", "test", 2)) as index:
            for n in range(rounds):
                for document_id in (f"shared-{n}", f"own-{writer}-{n}"):
                    chunk = Chunk(chunk_id(document_id, 0), document_id, 0, 1, "text")
                    await index.put("Title", [chunk], [[1.0, 0.0]])

    asyncio.run(write_rounds())


@pytest.mark.long
@pytest.mark.parametrize(
    ("base_url", "rounds"),
    [
        ("s3", 5),
        pytest.param("s3", 20, marks=pytest.mark.long),
        pytest.param("azure", 20, marks=pytest.mark.long),
    ],
    indirect=["base_url"],
)
async def test_processes_that_write_an_index_in_a_store_at_once_lose_and_double_nothing(
    base_url: str, rounds: int
):
    url = f"{base_url}/index"
    processes = [
        SPAWN.Process(target=write_chunks, args=(url, writer, rounds)) for writer in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        await asyncio.to_thread(process.join, 100)
    assert [process.exitcode for process in processes] == [0, 0]
    async with index_store_at(url).table(Generation("chunks", "test", 2)) as index:
        assert await index.count() == 3 * rounds
        assert len(await index.document_ids()) == 3 * rounds


async def test_workers_of_several_hosts_share_one_store(
    pipeline: Pipeline, base_url: str, tmp_path: Path
):
    """Every stage runs on another host: only the store has what the stage before has written."""
    (tmp_path / "tide.txt").write_text("The Moon draws the water of the sea, and the tide rises.")
    hosts = [
        replace(
            pipeline,
            settings=pipeline.settings.model_copy(
                update={
                    "data_dir": tmp_path / f"host-{n}",
                    "storage_url": f"{base_url}/files",
                    "index_url": SecretStr(f"{base_url}/index"),
                }
            ),
        )
        for n in range(3)
    ]
    outcome = await hosts[0].run_job("ingest_document", {"path": str(tmp_path / "tide.txt")})
    document_id = outcome.result["document_id"]  # type: ignore[union-attr]
    for n, stage in enumerate(
        ("extract_text", "summarize_content", "embed_content", "link_content"), start=1
    ):
        await hosts[n % 3].run_job(stage, {"document_id": document_id}, run_id=hosts[0].run_id)
    assert b"Moon" in await hosts[1].storage.get_async(result_key(document_id))
    async with open_index(hosts[2].settings) as index, index.open_active() as (table, embedder):
        hits = await search(table, embedder, "why the tide rises", 3)
    assert [hit.document_id for hit in hits] == [document_id]
    assert not any((tmp_path / f"host-{n}").exists() for n in range(3))


async def test_a_store_belongs_to_one_system(base_url: str, pipeline: Pipeline, tmp_path: Path):
    update = {"storage_url": f"{base_url}/files", "index_url": SecretStr(f"{base_url}/index")}
    settings = pipeline.settings.model_copy(update=update)
    assert pipeline.ledger is not None
    await claim_places(settings, pipeline.ledger)
    other_url = f"sqlite+aiosqlite:///{tmp_path / 'other.db'}"
    await make_ledger(other_url)
    async with await Ledger.open(other_url) as other_ledger:
        with pytest.raises(WrongStorage, match="JOBS_STORAGE_URL"):
            await claim_places(settings, other_ledger)

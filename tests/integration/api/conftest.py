import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from switchyard.services.jobs.registry import BUILT_IN_MODULES
from tests.conftest import broker_of
from tests.support.api_server import RunningApi, connected, serving
from tests.support.brokers import TestBroker
from tests.support.system import JOB_MODULES, System, open_system

MODULES = (*BUILT_IN_MODULES, *JOB_MODULES)  # the API takes documents, too: they need queues


@pytest.fixture
async def system(
    broker310: TestBroker, sqlite_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    """A system on SQLite, whose files are the test's own."""
    data_dir = tmp_path_factory.mktemp("data")
    async with open_system(broker310, sqlite_url, modules=MODULES, data_dir=data_dir) as opened:
        yield opened


@pytest.fixture
async def api(system: System) -> AsyncIterator[RunningApi]:
    """The API of that system; nobody needs a key."""
    async with serving(system.settings) as running:
        await connected(running)
        yield running


@pytest.fixture(scope="module")
def _standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApi]:
    """It runs in a thread, whose loop outlives those of the tests."""
    directory = tmp_path_factory.mktemp("standing")
    ready: Future[RunningApi] = Future()
    over = threading.Event()

    async def stand() -> None:
        async with _open(directory) as running:
            ready.set_result(running)
            await asyncio.to_thread(over.wait)

    with ThreadPoolExecutor(1) as pool:
        standing = pool.submit(asyncio.run, stand())
        either: list[Future[Any]] = [ready, standing]
        wait(either, return_when=FIRST_COMPLETED)
        if not ready.done():
            standing.result()  # raises what its start has raised
        try:
            yield ready.result()
        finally:
            over.set()
        standing.result()


@asynccontextmanager
async def _open(directory: Path) -> AsyncIterator[RunningApi]:
    url = f"sqlite+aiosqlite:///{directory / 'ledger.db'}"
    with contextmanager(broker_of)("3.10", "classic") as broker:
        async with (
            open_system(broker, url, modules=MODULES, data_dir=directory / "data") as opened,
            serving(opened.settings) as running,
        ):
            await connected(running)
            yield running


@pytest.fixture
async def shared_api(_standing: RunningApi) -> AsyncIterator[RunningApi]:
    """An API that the tests of a module share, each with a client of its own: for those that leave
    nothing there which another one would see. It costs them a tenth of one of their own."""
    async with httpx.AsyncClient(
        base_url=_standing.url, timeout=30, trust_env=False, verify=False
    ) as client:
        yield replace(_standing, client=client)

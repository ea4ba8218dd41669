"""An API that the tests of a module share, for tests that leave nothing there which another test
would see: to start an API takes ten times as long as most tests of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx

from switchyard.services.engine.wings import job_modules
from tests.conftest import broker_of
from tests.support.api_server import RunningApi, serving, until_connected
from tests.support.system import JOB_MODULES, open_system

MODULES = (*job_modules(), *JOB_MODULES)  # the API takes documents, too: they need queues

Opened = TypeVar("Opened")


@contextmanager
def in_background(context: AbstractAsyncContextManager[Opened]) -> Iterator[Opened]:
    """Keep a context open in a thread, whose event loop outlives those of the tests."""
    ready: Future[Opened] = Future()
    closing = threading.Event()

    async def hold_open() -> None:
        async with context as opened:
            ready.set_result(opened)
            await asyncio.to_thread(closing.wait)

    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(asyncio.run, hold_open())
        either: list[Future[Any]] = [ready, task]
        wait(either, return_when=FIRST_COMPLETED)
        if not ready.done():
            task.result()  # raises the error of the start
        try:
            yield ready.result()
        finally:
            closing.set()
        task.result()


@asynccontextmanager
async def open_api(
    directory: Path, *, modules: tuple[str, ...] = MODULES, **changes: Any
) -> AsyncIterator[RunningApi]:
    """Yield an API with a broker, for `in_background`. Its files are below the directory, `changes`
    are to its settings, and requests need no key."""
    url = f"sqlite+aiosqlite:///{directory / 'ledger.db'}"
    with contextmanager(broker_of)("3.10", "classic") as broker:
        async with (
            open_system(broker, url, modules=modules, data_dir=directory / "data") as opened,
            serving(opened.settings, **changes) as running,
        ):
            await until_connected(running)
            yield running


@asynccontextmanager
async def with_own_client(running: RunningApi) -> AsyncIterator[RunningApi]:
    """Yield the same API with a client of the test's own event loop."""
    async with http_client(running.url) as client:
        yield replace(running, client=client)


def http_client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False)

"""Serve the API in the test's process, and send documents to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from switchyard.api.app import create_app
from switchyard.services.common.settings import Settings
from switchyard.services.engine.identity.storage_identity import MARKER
from switchyard.services.engine.wings import job_modules
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.ledgers import make_ledger
from tests.support.system import System, open_system

WORKERS = ("ingest", "llm", "embed", "link")

NewFileLister = Callable[..., list[Path]]
"""Lists the files that a test has stored: all, or those below a folder."""


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the API with these settings on loopback, in this process; yields a client of it."""
    await make_ledger(settings.ledger_url)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(create_app(settings), log_config=None, lifespan="on")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await eventually(lambda: server.started or running.done())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(
            base_url=url, timeout=60, trust_env=False, verify=False
        ) as client:
            yield client
    finally:
        server.should_exit = True
        await asyncio.wait_for(running, 20)
        listener.close()


@asynccontextmanager
async def serving_system(
    broker: TestBroker, database_url: str, directory: Path, **options: Any
) -> AsyncIterator[tuple[System, httpx.AsyncClient]]:
    """Serve the API with a broker, where workers do the work; yields a client of it."""
    async with (
        open_system(
            broker, database_url, modules=job_modules(), data_dir=directory, **options
        ) as system,
        serving(system.settings) as client,
    ):
        yield system, client


def files_of(settings: Settings, below: str = "") -> list[Path]:
    """Return the paths of the stored files, all or those below a folder."""
    root = settings.data_dir / "files" / below
    return sorted(path for path in root.rglob("*") if path.is_file() and path.name != MARKER)


async def send(
    client: httpx.AsyncClient,
    content: bytes | AsyncIterator[bytes],
    *,
    name: str = "paper.pdf",
    endpoint: str = "/documents",
    **fields: str,
) -> httpx.Response:
    """Upload a file, followed by the form's fields; a stream is sent in chunks."""
    return await client.post(
        endpoint,
        content=_form(content, name, fields),
        headers={"Content-Type": "multipart/form-data; boundary=the-boundary"},
    )


async def _form(
    content: bytes | AsyncIterator[bytes], name: str, fields: Mapping[str, str]
) -> AsyncIterator[bytes]:
    disposition = f'form-data; name="file"; filename="{name}"'
    yield f"--the-boundary\r\nContent-Disposition: {disposition}\r\n\r\n".encode()
    if isinstance(content, bytes):
        yield content
    else:
        async for part in content:
            yield part
    for field, value in fields.items():
        head = f'--the-boundary\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n'
        yield f"\r\n{head}{value}".encode()
    yield b"\r\n--the-boundary--\r\n"


async def wait_until_ended(
    client: httpx.AsyncClient, document_id: str, timeout: float = 60
) -> dict[str, Any]:
    """Return the document's status once its pipeline has ended."""

    async def status() -> dict[str, Any] | None:
        answer = await client.get(f"/documents/{document_id}")
        assert answer.status_code == 200, answer.text
        details: dict[str, Any] = answer.json()
        return details if details["state"] in ("completed", "failed") else None

    details: dict[str, Any] = await eventually(status, timeout, f"the end of {document_id}")
    return details


async def in_parts(content: bytes, size: int, pause: float = 0) -> AsyncIterator[bytes]:
    """Yield the bytes in parts, as a slow sender sends them."""
    for start in range(0, len(content), size):
        yield content[start : start + size]
        await asyncio.sleep(pause)

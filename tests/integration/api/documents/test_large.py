"""A large upload passes through: the server's memory does not grow with it."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from switchyard.services.common.settings import Settings
from tests.integration.api.document_server import send
from tests.support.commands import ROOT
from tests.support.eventually import eventually
from tests.support.ledgers import make_ledger

MEGABYTE = 1024 * 1024
UPLOAD_BYTES = 200 * MEGABYTE
MAX_GROWTH = 150 * MEGABYTE
"""Bytes by which the server's peak memory may grow with that upload."""


def peak_memory(pid: int) -> int:
    """Return a process's peak memory in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


@asynccontextmanager
async def server_process(
    directory: Path, amqp_url: str | None, **variables: str
) -> AsyncIterator[tuple[int, httpx.AsyncClient]]:
    """Run the API in a process of its own; yields its process id and a client."""
    await make_ledger(Settings(data_dir=directory).ledger_url)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {"JOBS_DATA_DIR": str(directory), "PATH": "/usr/bin:/bin", **variables}
    if amqp_url is not None:
        environment["JOBS_AMQP_URL"] = amqp_url
    program = f"""
import uvicorn
from tests.support.ledgers import make_ledger
from switchyard.api.app import create_app
if __name__ == "__main__":
    uvicorn.run(create_app(), host="127.0.0.1", port={port}, log_level="warning")
"""
    script = directory / "serve.py"
    script.write_text(program)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        env={**environment, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:

            async def answers() -> bool:
                try:
                    return (await client.get("/documents")).status_code == 200
                except httpx.ConnectError:
                    return False

            await eventually(answers)
            yield process.pid, client
    finally:
        process.terminate()
        await process.wait()


async def pdf_of_size(size: int) -> AsyncIterator[bytes]:
    yield b"%PDF-1.7\n"
    part = bytes(MEGABYTE)
    for _ in range(size // MEGABYTE):
        yield part


@pytest.mark.long
@pytest.mark.parametrize("is_allowed", [True, False], ids=["taken", "refused"])
async def test_memory_stays_flat_over_a_large_upload(broker310, tmp_path: Path, is_allowed: bool):
    limit = str(UPLOAD_BYTES * 2 if is_allowed else 100 * MEGABYTE)
    async with server_process(tmp_path, broker310.amqp_url, JOBS_MAX_DOCUMENT_BYTES=limit) as (
        pid,
        client,
    ):
        await send(client, b"%PDF-1.7\nsmall")
        before = peak_memory(pid)
        answer = await send(client, pdf_of_size(UPLOAD_BYTES))
        # Without topology there is no queue for the job; the file has come in by then.
        assert answer.status_code == (503 if is_allowed else 413), answer.text
        growth = peak_memory(pid) - before
        assert growth < MAX_GROWTH, f"grew by {growth / MEGABYTE:.0f} MB"
        files = (tmp_path / "files").rglob("*")
        assert sum(each.stat().st_size for each in files if each.is_file()) < MEGABYTE

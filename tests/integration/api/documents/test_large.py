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
UPLOAD = 200 * MEGABYTE
MOST = 150 * MEGABYTE


def peak_of(pid: int) -> int:
    """Return a process's peak memory in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


@asynccontextmanager
async def server_process(
    directory: Path, amqp_url: str | None, **env: str
) -> AsyncIterator[tuple[int, httpx.AsyncClient]]:
    """Run the API in a process of its own; yields its process id and a client."""
    await make_ledger(Settings(data_dir=directory).ledger_url)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    more = {"JOBS_DATA_DIR": str(directory), "PATH": "/usr/bin:/bin", **env}
    if amqp_url is not None:
        more["JOBS_AMQP_URL"] = amqp_url
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
        env={**more, "PYTHONPATH": str(ROOT)},
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


async def large(size: int) -> AsyncIterator[bytes]:
    yield b"%PDF-1.7\n"
    part = bytes(MEGABYTE)
    for _ in range(size // MEGABYTE):
        yield part


@pytest.mark.long
@pytest.mark.parametrize("allowed", [True, False], ids=["taken", "refused"])
async def test_memory_stays_flat_over_a_large_upload(broker310, tmp_path: Path, allowed: bool):
    limit = str(UPLOAD * 2 if allowed else 100 * MEGABYTE)
    async with server_process(tmp_path, broker310.amqp_url, JOBS_MAX_DOCUMENT_BYTES=limit) as (
        pid,
        client,
    ):
        await send(client, b"%PDF-1.7\nsmall")
        before = peak_of(pid)
        answer = await send(client, large(UPLOAD))
        # Without topology there is no queue for the job; the file has come in by then.
        assert answer.status_code == (503 if allowed else 413), answer.text
        grown = peak_of(pid) - before
        assert grown < MOST, f"grew by {grown / MEGABYTE:.0f} MB"
        files = (tmp_path / "files").rglob("*")
        assert sum(each.stat().st_size for each in files if each.is_file()) < MEGABYTE

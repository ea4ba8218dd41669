"""A receiver of notices that checks the signature, and misbehaves as a test tells it."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.eventually import eventually

SECRET = "between you and me"  # 16 characters or more


class Receiver:
    """Misbehaves as `tricks` say, one for each request in order; then it accepts all notices."""

    def __init__(self) -> None:
        self.tricks: list[str] = []
        """A status, or `slow`, `cut`, `endless`, `packed`, or `to:URL` for a redirect."""
        self.taken: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []
        """Signed notices that were answered with a trick."""
        self.paths: list[str] = []
        self.place = ""
        """HOST:PORT."""

    @property
    def url(self) -> str:
        return f"http://{self.place}/told"

    async def told(self, number: int = 1) -> list[dict[str, Any]]:
        """Wait for so many notices, and return them."""
        await eventually(lambda: len(self.taken) >= number, what=f"{number} notices")
        return self.taken

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(fields["content-length"]))
        expected = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        assert fields["x-switchyard-signature"] == f"sha256={expected}"
        self.paths.append(head[0].split()[1])
        trick = self.tricks.pop(0) if self.tricks else "204"
        is_accepted = trick in ("204", "endless")
        (self.taken if is_accepted else self.refused).append(json.loads(body))
        if trick == "slow":
            await reader.read()  # until the other side has had enough
        elif trick == "cut":
            writer.write(b"HTTP/1.1 20")
        elif trick == "endless":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(b"and so on" * 4096)
                await writer.drain()
        elif trick.startswith("to:"):
            writer.write(f"HTTP/1.1 302 Found\r\nLocation: {trick[3:]}\r\n\r\n".encode())
        else:
            writer.write(f"HTTP/1.1 {trick} So\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()


@asynccontextmanager
async def serve_receiver(at: str = "127.0.0.1") -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, at, 0)
    host, port = server.sockets[0].getsockname()
    receiver.place = f"{host}:{port}"
    try:
        yield receiver
    finally:
        server.close()

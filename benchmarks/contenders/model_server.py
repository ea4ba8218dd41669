"""A server of OpenAI's API that costs next to nothing: what is measured is the gateway before it.

Each answer takes DELAY seconds, AT_ONCE requests are answered at a time, and the others wait in the
order in which they came. `GET /stats` tells how often each question was answered whole, `POST
/clear` forgets that. The question's number is the last word of its last message.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any

PIECES = 8
"""Chunks of a streamed answer."""
TEXT = " ".join(f"word{number}" for number in range(64))
USAGE = {"prompt_tokens": 20, "completion_tokens": 64, "total_tokens": 84}
MODEL = "m"
_NAMED: dict[str, Any] = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": MODEL}


def _whole() -> bytes:
    message = {"role": "assistant", "content": TEXT}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {**_NAMED, "object": "chat.completion", "choices": [choice], "usage": USAGE}
    return json.dumps(body).encode()


def _streamed() -> bytes:
    size = -(-len(TEXT) // PIECES)
    deltas = [
        {"role": "assistant", "content": TEXT[at : at + size]} for at in range(0, len(TEXT), size)
    ]
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": each, "finish_reason": None} for each in deltas
    ]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    chunks = [{**_NAMED, "object": "chat.completion.chunk", "choices": [x]} for x in choices]
    chunks.append({**chunks[0], "choices": [], "usage": USAGE})
    events = [f"data: {json.dumps(each)}\n\n".encode() for each in chunks]
    return b"".join([*events, b"data: [DONE]\n\n"])


def _response(body: bytes, kind: bytes = b"application/json") -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
        % (kind, len(body), body)
    )  # fmt: skip


WHOLE = _response(_whole())
STREAMED = _response(_streamed(), b"text/event-stream")
MODELS = _response(json.dumps({"object": "list", "data": []}).encode())


class Server:
    """Counts the answers, and lets so many requests be answered at once."""

    def __init__(self, delay: float, at_once: int) -> None:
        self._delay = delay
        self._places = asyncio.Semaphore(at_once)
        self.answered: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.partition(b"content-length: ")[2].partition(b"\r")[0]
                body = await reader.readexactly(int(length or 0))
                writer.write(await self._answer(head, body, reader))
        except (EOFError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: bytes, body: bytes, reader: asyncio.StreamReader) -> bytes:
        if head.startswith(b"get /stats"):
            return _response(json.dumps(self.answered).encode())
        if head.startswith(b"post /clear"):
            self.answered.clear()
            return MODELS
        if not head.startswith(b"post "):
            return MODELS
        asked = json.loads(body)
        async with self._places:
            if not reader.at_eof():
                await asyncio.sleep(self._delay)
        if reader.at_eof():
            raise EOFError("whoever asked has gone")
        self.answered[asked["messages"][-1]["content"].rpartition(" ")[2]] += 1
        return STREAMED if asked.get("stream") else WHOLE


async def _run(delay: float, at_once: int) -> None:
    server = await asyncio.start_server(
        Server(delay, at_once).serve, "127.0.0.1", 0, backlog=4096, limit=2**22
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_run(float(sys.argv[1]), int(sys.argv[2])))

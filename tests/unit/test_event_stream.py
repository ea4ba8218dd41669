import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from switchyard.api.http.event_stream import EventStream


async def failing() -> AsyncGenerator[bytes, None]:
    raise ValueError("no page")
    yield b""


async def test_a_stream_that_fails_ends_at_once_though_a_cancellation_is_forgotten() -> None:
    asked = []

    async def receive() -> Message:
        asked.append("receive")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if len(asked) > 1:
                raise
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        await asyncio.sleep(0)  # `receive` is waited for by now

    with pytest.raises(ValueError, match="no page"):
        async with asyncio.timeout(10):
            await EventStream(failing())({"type": "http", "state": {}}, receive, send)
    assert asked == ["receive", "receive"]

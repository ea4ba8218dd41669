"""uvicorn's server, which waits for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn

DATE_INTERVAL = 1.0
"""Seconds between two dates in the headers of answers."""


class WaitingServer(uvicorn.Server):
    """Serves until `stop`; signals are its caller's. uvicorn's own looks ten times a second whether
    it is over: more than half of what wakes an idle API."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        """While it serves."""
        self._over = asyncio.Event()

    def stop(self) -> None:
        """Take no more requests and answer those under way; safe in a signal handler, and in
        another thread."""
        self.should_exit = True
        if (loop := self._loop) is not None:
            with suppress(RuntimeError):  # the loop is closed, as it has stopped already
                loop.call_soon_threadsafe(self._over.set)

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):  # at 0 it makes the date anew
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_INTERVAL if self.config.date_header else None):
                    await self._over.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

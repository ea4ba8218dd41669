"""Stream a job's output text to subscribers, best effort: nothing is stored.

A model writes a word at a time, a hundred times a second: pieces are gathered, and told a few
times a second. Nobody waits for a reader: what there is no time to tell is left out, and the piece
after it says where it stands, so that a reader knows; the job's result has all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SEND_INTERVAL = 0.05
"""Seconds between two pieces at least."""
MAX_PIECE = 2_000
"""Characters of one piece at most: with all of them escaped, an event has room for it."""
MAX_BACKLOG = 10 * MAX_PIECE
"""Characters that wait to be told; of more, the latest are left out."""

Hear = Callable[[str, int], None]
"""Gets a piece, and how many characters of the text were before it."""


class OutputStream:
    """The text that one attempt writes. To be used within the event loop."""

    __slots__ = ("_hear", "_position", "_sent_at", "_timer", "_waiting", "_written")

    def __init__(self, hear: Hear | None = None) -> None:
        """`hear` is called within the event loop; without it, nothing is told."""
        self._hear = hear
        self._waiting = ""
        self._written = self._position = 0
        self._sent_at = -SEND_INTERVAL
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Discard the text so far: it begins again, at 0."""
        self._stop()
        self._waiting = ""
        self._written = self._position = 0

    def write(self, text: str) -> None:
        """The text goes on."""
        if self._hear is None or not text:
            return
        if not text.isascii():  # halves of a surrogate pair, which nothing can write, become `?`
            text = text.encode("utf-8", "replace").decode()
        # Only what joins on to what waits: else there would be a hole within a piece.
        if self._position + len(self._waiting) == self._written:
            self._waiting += text[: max(0, MAX_BACKLOG - len(self._waiting))]
        elif not self._waiting:
            self._position = self._written
            self._waiting = text[:MAX_BACKLOG]
        self._written += len(text)
        if self._timer is None:
            # The first piece at once, as somebody waits for the beginning.
            loop = asyncio.get_running_loop()
            at = max(loop.time(), self._sent_at + SEND_INTERVAL)
            self._timer = loop.call_at(at, self._send)

    def end(self) -> None:
        """End the text: send the last piece that waits."""
        self._stop()
        if self._waiting:
            self._piece()
        self._waiting = ""

    def _send(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        self._sent_at = loop.time()
        self._piece()
        if self._waiting:
            self._timer = loop.call_later(SEND_INTERVAL, self._send)

    def _piece(self) -> None:
        piece, self._waiting = self._waiting[:MAX_PIECE], self._waiting[MAX_PIECE:]
        position, self._position = self._position, self._position + len(piece)
        if self._hear is not None:
            self._hear(piece, position)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

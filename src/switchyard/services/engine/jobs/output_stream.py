"""Stream a job's output text to subscribers, best effort: nothing is stored.

A model writes a word at a time, a hundred times a second: words are collected, and sent a few times
a second. The job waits for no reader: text beyond the backlog is left out, which a reader notices
by the position of the next piece. The job's result has all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SEND_INTERVAL = 0.05
"""Seconds between two pieces at least."""
MAX_PIECE = 2_000
"""Characters of one piece at most: it fits into an event even if all are escaped."""
MAX_BACKLOG = 10 * MAX_PIECE
"""Characters that wait to be sent, at most; later ones are left out."""

SendPiece = Callable[[str, int], None]
"""Called with a piece, and the number of characters of the text before it."""


class OutputStream:
    """Streams the text that one attempt writes. Use it within the event loop."""

    __slots__ = ("_position", "_send_to_subscribers", "_sent_at", "_timer", "_waiting", "_written")

    def __init__(self, send_piece: SendPiece | None = None) -> None:
        """`send_piece` is called within the event loop; without it, nothing is sent."""
        self._send_to_subscribers = send_piece
        self._waiting = ""
        self._written = self._position = 0
        self._sent_at = -SEND_INTERVAL
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Discard the text so far, and begin again at position 0."""
        self._stop_timer()
        self._waiting = ""
        self._written = self._position = 0

    def write(self, text: str) -> None:
        """Append to the text."""
        if self._send_to_subscribers is None or not text:
            return
        if not text.isascii():  # lone surrogates, which can't be encoded, become `?`
            text = text.encode("utf-8", "replace").decode()
        # After a gap, text is left out until the waiting text was sent: a piece must have no gap.
        if self._position + len(self._waiting) == self._written:
            self._waiting += text[: max(0, MAX_BACKLOG - len(self._waiting))]
        elif not self._waiting:
            self._position = self._written
            self._waiting = text[:MAX_BACKLOG]
        self._written += len(text)
        if self._timer is None:
            # The first piece is sent at once: a reader waits for the beginning.
            loop = asyncio.get_running_loop()
            send_at = max(loop.time(), self._sent_at + SEND_INTERVAL)
            self._timer = loop.call_at(send_at, self._send)

    def end(self) -> None:
        """End the text: send the last piece that waits."""
        self._stop_timer()
        if self._waiting:
            self._send_piece()
        self._waiting = ""

    def _send(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        self._sent_at = loop.time()
        self._send_piece()
        if self._waiting:
            self._timer = loop.call_later(SEND_INTERVAL, self._send)

    def _send_piece(self) -> None:
        piece, self._waiting = self._waiting[:MAX_PIECE], self._waiting[MAX_PIECE:]
        position, self._position = self._position, self._position + len(piece)
        if self._send_to_subscribers is not None:
            self._send_to_subscribers(piece, position)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

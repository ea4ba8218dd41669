"""Take the frames of many small messages out of the stream before aiormq reads them.

aiormq reads a frame in about ten awaits and hands it through two queues: 30 µs for each message
of three frames, a third of all that a worker spends on a small job. A tap sits where bytes come in
and gives the frames of deliveries, confirms and returns straight to their channel. Everything else
(handshake, calls and their answers, closes, heartbeats) goes on to aiormq untouched.

It is put in by aiormq's own `transport_factory`.
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any, Protocol

from aiormq.connection import Connection, TransportFactory
from aiormq.exceptions import AMQPConnectionError
from yarl import URL

from switchyard.broker.forking import keep_from_children
from switchyard.broker.wire.envelope import FRAME_OVERHEAD, METHOD
from switchyard.broker.wire.tcp_timeout import set_tcp_user_timeout

_frame_start = struct.Struct(">BHI")
_PROTOCOL_HEADER = ord("A")
_HEARTBEAT = memoryview(b"\x08\x00\x00\x00\x00\x00\x00\xce")
_HEARTBEAT_INTERVAL = 1.0
_READ_LIMIT = 2**16
_CONNECTION_CLOSE = struct.pack(">HH", 10, 50)
"""Class and method; a code of two bytes and a short text follow."""


class FrameSink(Protocol):
    """Takes frames of one channel."""

    def take_frame(self, kind: int, frame: memoryview) -> bool:
        """Handle a frame (its payload) of that type (1 method, 2 header, 3 body). False when it
        is not one of ours: aiormq gets it then."""
        ...


class FrameTap(asyncio.StreamReader):
    """The reader of a connection, with the sinks of its channels."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_READ_LIMIT, loop=loop)
        self._sinks: dict[int, FrameSink] = {}
        self._partial = b""
        self._heartbeat_at = 0.0
        self.close_reason = ""
        """Reason that the broker gave when it closed the connection: at most 255 bytes. aiormq does
        not report it for a connection that was never open."""
        self.transport: asyncio.Transport | None = None
        """The connection's transport, once there is one."""

    def attach(self, channel: int, sink: FrameSink) -> None:
        """Give the frames of a channel to `sink` first, until `detach`."""
        self._sinks[channel] = sink

    def detach(self, channel: int, sink: FrameSink) -> None:
        """Give no more frames to `sink`. The number may belong to another channel by now."""
        if self._sinks.get(channel) is sink:
            del self._sinks[channel]

    def fileno(self) -> int:
        """Return the number of the socket; -1 without one."""
        transport = self.transport
        sock = None if transport is None else transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    def abort(self) -> None:
        """Cut the connection, without a word to the peer and without waiting for it."""
        if self.transport is not None:
            self.transport.abort()

    def feed_data(self, data: Any) -> None:
        """Take what has come in; called by the transport."""
        stream = self._partial + bytes(data) if self._partial else bytes(data)
        view = memoryview(stream)
        size = len(stream)
        passed: list[memoryview] = []
        taken = False
        at = 0
        while size - at >= FRAME_OVERHEAD:
            kind, channel, length = _frame_start.unpack_from(stream, at)
            if kind == _PROTOCOL_HEADER:  # another version of AMQP: aiormq reports it
                passed.append(view[at:])
                at = size
                break
            end = at + length + FRAME_OVERHEAD
            if end > size:
                break
            sink = self._sinks.get(channel)
            try:
                is_theirs = sink is not None and sink.take_frame(kind, view[at + 7 : end - 1])
            except (struct.error, IndexError) as error:
                # To users of the connection this means that it is lost: they connect again.
                raise AMQPConnectionError("the broker sent a frame that can't be read") from error
            if is_theirs:
                taken = True
            else:
                if channel == 0 and kind == METHOD:
                    self._note_close(stream[at + 7 : end - 1])
                passed.append(view[at:end])
            at = end
        self._partial = stream[at:]
        if taken:
            self._add_heartbeat(passed)
        if passed:
            super().feed_data(b"".join(passed))

    def _note_close(self, frame: bytes) -> None:
        if frame[:4] == _CONNECTION_CLOSE and len(frame) > 6:
            text = frame[7 : 7 + frame[6]]
            self.close_reason = text.decode("utf-8", "replace")

    def _add_heartbeat(self, passed: list[memoryview]) -> None:
        # aiormq counts the frames that it sees as signs of life. It does not see those that were
        # taken out, and a busy broker sends no heartbeats beside them: so it is given one.
        now = time.monotonic()
        if now - self._heartbeat_at >= _HEARTBEAT_INTERVAL:
            self._heartbeat_at = now
            passed.append(_HEARTBEAT)


class TappedTransport(TransportFactory):
    """Opens one connection whose reader is a FrameTap, over TCP or TLS."""

    def __init__(self) -> None:
        self.tap: FrameTap | None = None

    async def create(
        self, url: URL, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        provider = kwargs.pop("ssl_context_provider", None)
        tls = await provider.get_context() if url.scheme == "amqps" and provider else None
        loop = asyncio.get_running_loop()
        tap = self.tap = FrameTap(loop)
        protocol = asyncio.StreamReaderProtocol(tap, loop=loop)
        try:
            transport, _ = await loop.create_connection(
                lambda: protocol, url.host or "", url.port or 0, ssl=tls, **kwargs
            )
        except OSError as error:
            raise AMQPConnectionError(*error.args) from error
        set_tcp_user_timeout(transport.get_extra_info("socket"))
        tap.transport = transport
        keep_from_children(tap)
        return tap, asyncio.StreamWriter(transport, protocol, tap, loop)


def tap_of(connection: Connection) -> FrameTap:
    """Return the tap of a connection that was opened with a TappedTransport."""
    transport = connection._transport_factory
    if not isinstance(transport, TappedTransport) or transport.tap is None:
        raise TypeError("open the connection with switchyard.broker.wire.connection.connect")
    return transport.tap

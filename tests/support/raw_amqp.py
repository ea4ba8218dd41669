"""AMQP frame by frame: a publisher that writes any bytes as properties, as a hostile or broken
program does, and the emptying of queues in one go.

    with RawPublisher(broker.amqp_url) as raw:
        raw.publish("", "hot.llm", b"{}", HOSTILE["key"])

The broker checks the form of properties and not their content, so it passes all of these on.
"""

import socket
import struct
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import pamqp.frame
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.header import ProtocolHeader

TIMEOUT = 10.0
HEADERS, MESSAGE_ID = 1 << 13, 1 << 7


def short(data: bytes) -> bytes:
    """Encode a short string."""
    return bytes((len(data),)) + data


def table(*entries: tuple[bytes, bytes]) -> bytes:
    """Encode a table of names and values, each value with its type before it."""
    content = b"".join(short(name) + value for name, value in entries)
    return struct.pack(">I", len(content)) + content


def with_headers(*entries: tuple[bytes, bytes]) -> bytes:
    """Encode properties that are these headers and nothing else."""
    return struct.pack(">H", HEADERS) + table(*entries)


def nested(depth: int) -> bytes:
    """Encode a table in a table, and so on."""
    content = table()
    for _ in range(depth):
        content = table((b"a", b"F" + content))
    return b"F" + content


HOSTILE = {
    "key": with_headers((b"\xff\xfe", b"t\x01")),
    "time": with_headers((b"at", b"T" + struct.pack(">Q", 2**63 - 1))),
    "nested": with_headers((b"deep", nested(3_000))),
}
"""Properties that can't be read, by what is wrong with them."""
BAD_ID = struct.pack(">H", MESSAGE_ID) + short(b"\xff" * 255)
"""Properties with the longest possible message id, which is not UTF-8."""


class RawChannel:
    """One connection with one channel, both in the caller's thread."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection(
            (parts.hostname or "localhost", parts.port or 5672), TIMEOUT
        )
        # Otherwise each small frame waits 40 ms for the acknowledgement of the one before it.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._socket.sendall(ProtocolHeader().marshal())
        self._expect(spec.Connection.Start)
        login = f"\0{unquote(parts.username or 'guest')}\0{unquote(parts.password or 'guest')}"
        self._send(0, spec.Connection.StartOk({}, "PLAIN", login, "en_US"))
        tune = self._expect(spec.Connection.Tune)
        self._send(0, spec.Connection.TuneOk(tune.channel_max, tune.frame_max, 0))
        self._send(0, spec.Connection.Open(unquote(parts.path[1:]) or "/"))
        self._expect(spec.Connection.OpenOk)
        self._send(1, spec.Channel.Open())
        self._expect(spec.Channel.OpenOk)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def purge(self, queues: Iterable[str]) -> int:
        """Purge queues in this order, close the connection, and return the number of their
        messages. Raises ConnectionError for a missing queue."""
        names = list(queues)
        for name in names:  # a passive declare costs the broker a fifth of a purge
            self._send(1, spec.Queue.Declare(0, name, True))
        message_counts = {name: self._expect(spec.Queue.DeclareOk).message_count for name in names}
        nonempty = [name for name, count in message_counts.items() if count]
        for name in nonempty:
            self._send(1, spec.Queue.Purge(0, name))
        for _ in nonempty:
            self._expect(spec.Queue.PurgeOk)
        self._send(0, spec.Connection.Close(200, "", 0, 0))
        self._expect(spec.Connection.CloseOk)
        return sum(message_counts.values())

    def _send(self, channel: int, frame: Any) -> None:
        self._socket.sendall(pamqp.frame.marshal(frame, channel))

    def _expect(self, kind: type) -> Any:
        while True:
            if len(self._received) >= 7:
                size = struct.unpack_from(">I", self._received, 3)[0] + 8
                if len(self._received) >= size:
                    frame = pamqp.frame.unmarshal(self._received[:size])[2]
                    self._received = self._received[size:]
                    if not isinstance(frame, kind):
                        raise ConnectionError(f"{frame!r} and no {kind.__name__}")
                    return frame
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._received += data


class RawPublisher(RawChannel):
    """A channel on which each publish is confirmed."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._send(1, spec.Confirm.Select())
        self._expect(spec.Confirm.SelectOk)

    def publish(
        self, exchange: str, routing_key: str | bytes, body: bytes, properties: bytes = b"\0\0"
    ) -> None:
        """Publish and wait for the confirm. `properties` begin with their flags."""
        key = routing_key.encode() if isinstance(routing_key, str) else routing_key
        method = struct.pack(">HHH", 60, 40, 0) + short(exchange.encode()) + short(key) + b"\0"
        header = struct.pack(">HHQ", 60, 0, len(body)) + properties
        frames = b"".join(
            struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"
            for kind, payload in ((1, method), (2, header))
        )
        if body:
            frames += pamqp.frame.marshal(ContentBody(body), 1)
        self._socket.sendall(frames)
        self._expect(spec.Basic.Ack)

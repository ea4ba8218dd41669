"""A TCP proxy that breaks on demand: between a client and a broker, or a database."""

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Literal, Self

Direction = Literal["to_server", "to_client"]
DIRECTIONS: tuple[Direction, ...] = ("to_server", "to_client")
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class TcpProxy:
    """Forwards `127.0.0.1:port` to `host:target_port`, until a method breaks that.

    async with TcpProxy("127.0.0.1", 5672) as proxy:
        done = proxy.cut_when(lambda seen: b"secret" in seen)
        ...
        await done.wait()
    """

    def __init__(self, host: str, target_port: int) -> None:
        self.host = host
        self.target_port = target_port
        self.port = 0
        self.connections = 0
        """Number of connections accepted since the start."""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = {direction: asyncio.Event() for direction in DIRECTIONS}
        self._triggers: list[_Trigger] = []
        self.resume()

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.refuse()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, url: str) -> str:
        """Return the URL with this proxy's address in place of the server's."""
        return url.replace(f"{self.host}:{self.target_port}", f"127.0.0.1:{self.port}")

    async def accept(self) -> None:
        """Accept connections; after `refuse`, again on the same port."""
        if self._server is None:
            self._server = await asyncio.start_server(self._connect, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Refuse new connections ("connection refused"); open ones stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def cut(self) -> None:
        """Reset every connection, on both sides, and drop what was under way."""
        writers, self._writers = self._writers, set()
        for writer in writers:
            _reset(writer)

    def pause(self, *directions: Direction) -> None:
        """Hold back bytes in these directions, by default both; nothing is lost."""
        for direction in directions or DIRECTIONS:
            self._open[direction].clear()

    def resume(self, *directions: Direction) -> None:
        for direction in directions or DIRECTIONS:
            self._open[direction].set()

    def cut_after(
        self, count: int, direction: Direction = "to_server", *, forward: bool = False
    ) -> asyncio.Event:
        """Cut once, when that many bytes have come from now on."""
        return self.cut_when(lambda seen: len(seen) >= count, direction, forward=forward)

    def cut_when(
        self,
        predicate: Callable[[bytes], bool],
        direction: Direction = "to_server",
        *,
        forward: bool = False,
    ) -> asyncio.Event:
        """Cut once, when `predicate` is true of all that came in this direction from now on.

        The bytes that made it true are sent on only if `forward` is set: so the other side has
        or has not seen them. The event is set when the connections have been cut.
        """
        trigger = _Trigger(predicate, direction, forward)
        self._triggers.append(trigger)
        return trigger.done

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            other_reader, other_writer = await asyncio.open_connection(self.host, self.target_port)
        except OSError:
            _reset(writer)
            return
        if writer not in self._writers:  # cut in the meantime
            _reset(other_writer)
            return
        self._writers.add(other_writer)
        self._start(self._forward("to_server", reader, other_writer))
        self._start(self._forward("to_client", other_reader, writer))

    def _start(self, forwarding: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(forwarding)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(
        self, direction: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        try:
            while data := await source.read(65536):
                await self._open[direction].wait()
                if trigger := self._triggered(direction, data):
                    if trigger.forward:
                        sink.write(data)
                        await sink.drain()
                    self.cut()
                    trigger.done.set()
                    return
                sink.write(data)
                await sink.drain()
        except OSError:
            _reset(sink)
        else:
            sink.close()
        finally:
            self._writers.discard(sink)

    def _triggered(self, direction: Direction, data: bytes) -> "_Trigger | None":
        for trigger in self._triggers:
            if trigger.direction == direction:
                trigger.seen += data
                if trigger.predicate(bytes(trigger.seen)):
                    self._triggers.remove(trigger)
                    return trigger
        return None


class _Trigger:
    def __init__(
        self, predicate: Callable[[bytes], bool], direction: Direction, forward: bool
    ) -> None:
        self.predicate = predicate
        self.direction = direction
        self.forward = forward
        self.seen = bytearray()
        self.done = asyncio.Event()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other side sees "connection reset", and not an orderly end."""
    raw: socket.socket | None = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() != -1:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()

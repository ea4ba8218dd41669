"""Peers behind an open port that are no broker, or that behave as a broken one.

with listening(closes) as url:
    ...  # connect to it
"""

import asyncio
import socket as sockets
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from socket import SHUT_WR, create_server, socket

from pamqp import commands as spec
from pamqp import frame as pamqp_frame
from pamqp.base import Frame
from pamqp.common import FieldTable

Peer = Callable[[socket], None]
_RESET = struct.pack("ii", 1, 0)
_CAPABILITIES: FieldTable = {"capabilities": {"publisher_confirms": True, "basic.nack": True}}
_START = spec.Connection.Start(0, 9, _CAPABILITIES, "PLAIN", "en_US")


# --- peers that are no broker -------------------------------------------------------------------


def closes(peer: socket) -> None:
    peer.close()


def closes_after_the_header(peer: socket) -> None:
    peer.recv(8)


def ends_its_side(peer: socket) -> None:
    peer.shutdown(SHUT_WR)
    peer.recv(1_000)


def resets(peer: socket) -> None:
    peer.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, _RESET)


def resets_after_the_header(peer: socket) -> None:
    peer.recv(8)
    resets(peer)


def says_nothing(peer: socket) -> None:
    peer.recv(8)
    peer.recv(1)  # until the other side gives up


def speaks_http(peer: socket) -> None:
    peer.recv(8)
    peer.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def speaks_amqp_1(peer: socket) -> None:
    peer.recv(8)
    peer.sendall(b"AMQP\x00\x01\x00\x00")


def sends_garbage(peer: socket) -> None:
    peer.recv(8)
    peer.sendall(bytes(range(256)) * 40)


def sends_zeros(peer: socket) -> None:
    peer.recv(8)
    peer.sendall(bytes(10_000))


# --- peers that end in the middle of the handshake ----------------------------------------------


def sends_half_a_header(peer: socket) -> None:
    peer.recv(8)
    peer.sendall(b"AMQ")


def sends_half_a_greeting(peer: socket) -> None:
    peer.recv(8)
    whole = pamqp_frame.marshal(_START, 0)
    peer.sendall(whole[: len(whole) // 2])


def sends_a_broken_greeting(peer: socket) -> None:
    """Send a frame of the right length, whose contents cannot be read."""
    peer.recv(8)
    whole = pamqp_frame.marshal(_START, 0)
    peer.sendall(whole[:11] + b"\xff" * (len(whole) - 12) + whole[-1:])
    peer.recv(1)


def sends_the_wrong_method(peer: socket) -> None:
    peer.recv(8)
    send(peer, spec.Connection.OpenOk())
    peer.recv(1)


def greets_in_bytes_that_are_no_text(peer: socket) -> None:
    peer.recv(8)
    whole = pamqp_frame.marshal(_START, 0)
    peer.sendall(whole.replace(b"PLAIN", b"\xff\xfe\xfd\xfc\xfb"))
    peer.recv(1)


def closes_after_the_credentials(peer: socket) -> None:
    greet(peer)


def refuses_the_credentials(peer: socket) -> None:
    greet(peer)
    send(peer, spec.Connection.Close(403, "ACCESS_REFUSED - Login was refused", 0, 0))
    peer.recv(1_000)


def closes_after_the_tune(peer: socket) -> None:
    tune(peer)


def resets_after_the_tune(peer: socket) -> None:
    tune(peer)
    resets(peer)


def refuses_the_vhost(peer: socket) -> None:
    tune(peer)
    send(peer, spec.Connection.Close(530, "NOT_ALLOWED - vhost nope not found", 0, 0))
    peer.recv(1_000)


# --- peers that end once the connection is open -------------------------------------------------


def closes_once_open(peer: socket) -> None:
    open_(peer)


def resets_once_open(peer: socket) -> None:
    open_(peer)
    resets(peer)


def closes_at_the_channel(peer: socket) -> None:
    open_(peer)
    peer.recv(1_000)


def resets_at_the_channel(peer: socket) -> None:
    open_(peer)
    peer.recv(1_000)
    resets(peer)


def sends_garbage_at_the_channel(peer: socket) -> None:
    open_(peer)
    peer.recv(1_000)
    peer.sendall(bytes(range(256)))


def knows_no_confirms(peer: socket) -> None:
    peer.recv(8)
    send(peer, spec.Connection.Start(0, 9, {"capabilities": {}}, "PLAIN", "en_US"))
    peer.recv(4_000)
    send(peer, spec.Connection.Tune(channel_max=2047, frame_max=131_072, heartbeat=60))
    peer.recv(4_000)
    send(peer, spec.Connection.OpenOk())
    peer.recv(4_000)


def falls_silent_once_open(peer: socket) -> None:
    open_(peer)
    while peer.recv(1_000):
        continue


def lets_in(peer: socket) -> None:
    """Open the connection like a broker, and close it when the client asks for that."""
    open_(peer)
    while (received := peer.recv(1_000)) and b"\x00\x0a\x00\x32" not in received:  # close
        continue
    send(peer, spec.Connection.CloseOk())


def greet(peer: socket) -> None:
    peer.recv(8)
    send(peer, _START)
    peer.recv(4_000)


def tune(peer: socket) -> None:
    greet(peer)
    send(peer, spec.Connection.Tune(channel_max=2047, frame_max=131_072, heartbeat=60))
    received = b""
    while b"\x00\x0a\x00\x28" not in received:  # tune-ok and open
        if not (data := peer.recv(1_000)):
            return
        received += data


def open_(peer: socket) -> None:
    tune(peer)
    send(peer, spec.Connection.OpenOk())


def send(peer: socket, method: Frame) -> None:
    peer.sendall(pamqp_frame.marshal(method, 0))


BEFORE_IT_IS_OPEN: tuple[Peer, ...] = (
    closes,
    closes_after_the_header,
    ends_its_side,
    resets,
    resets_after_the_header,
    says_nothing,
    speaks_http,
    speaks_amqp_1,
    sends_garbage,
    sends_zeros,
    sends_half_a_header,
    sends_half_a_greeting,
    sends_a_broken_greeting,
    sends_the_wrong_method,
    greets_in_bytes_that_are_no_text,
    closes_after_the_credentials,
    refuses_the_credentials,
    closes_after_the_tune,
    resets_after_the_tune,
    refuses_the_vhost,
)
ONCE_IT_IS_OPEN: tuple[Peer, ...] = (
    closes_once_open,
    resets_once_open,
    closes_at_the_channel,
    resets_at_the_channel,
    sends_garbage_at_the_channel,
    knows_no_confirms,
    falls_silent_once_open,
)
PEERS = BEFORE_IT_IS_OPEN + ONCE_IT_IS_OPEN
SILENT = (says_nothing, falls_silent_once_open)
"""Peers that make a client wait for its whole time-out."""


@contextmanager
def listening(behave: Peer, port: int = 0) -> Iterator[str]:
    """Run a server that calls `behave` for each connection, in a thread, and yield its address."""
    server = create_server(("127.0.0.1", port))
    stopping = threading.Event()

    def serve_peer(peer: socket) -> None:
        with suppress(OSError), peer:
            peer.settimeout(10)
            behave(peer)

    def serve() -> None:
        while not stopping.is_set():
            try:
                peer, _ = server.accept()
            except OSError:
                return  # the test is over
            threading.Thread(target=serve_peer, args=(peer,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"amqp://user:secret@127.0.0.1:{server.getsockname()[1]}/"
    finally:
        stopping.set()
        server.shutdown(2)
        server.close()
        thread.join()


@asynccontextmanager
async def serve_silence() -> AsyncIterator[str]:
    """Run a server that reads requests and never answers, and yield its address."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

"""A peer is cut off silently: the kernel drops every packet between it and us."""

import asyncio
import contextlib
import ctypes
import socket
import struct
import time

import pytest
from yarl import URL

from switchyard.broker.publish.session import _connection_parameters
from switchyard.broker.wire.connection import connected, underlying
from switchyard.broker.wire.frame_tap import TappedTransport, tap_of
from switchyard.broker.wire.tcp_timeout import SILENCE_TIMEOUT, TCP_OPTIONS
from tests.support.brokers import TestBroker

# A filter of one instruction that lets nothing of a packet through (linux/filter.h). The kernel
# drops what comes in for a socket that has it, and acknowledges nothing: its peer sees it gone.
SO_ATTACH_FILTER = 26
RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)


def cut_off(receiver: socket.socket) -> None:
    """Have the kernel drop each packet that comes in for this socket."""
    instructions = ctypes.create_string_buffer(RETURN_NOTHING)
    program = struct.pack("HP", 1, ctypes.addressof(instructions))
    receiver.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


async def test_the_kernel_watches_every_connection_to_a_broker(
    broker310: TestBroker,
) -> None:
    async with connected(broker310.amqp_url, "test") as connection:
        transport = tap_of(underlying(connection)).transport
        assert transport is not None
        connection_socket = transport.get_extra_info("socket")
        assert connection_socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for name, value in TCP_OPTIONS.items():
            assert connection_socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
    options = _connection_parameters(broker310.amqp_url, "test", 2.0).tcp_options
    assert options == dict(TCP_OPTIONS)


@pytest.mark.long
@pytest.mark.parametrize("is_sending", [False, True], ids=["resting", "sending"])
async def test_a_connection_whose_packets_are_dropped_is_lost_within_the_timeout(
    is_sending: bool,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        reader, writer = await TappedTransport().create(URL(f"amqp://127.0.0.1:{port}"))
        peer, _ = listening.accept()
        with peer, contextlib.closing(writer):
            cut_off(peer)
            began = time.monotonic()
            if is_sending:
                writer.write(b"x")
            with pytest.raises(TimeoutError, match="timed out"):
                await asyncio.wait_for(reader.read(1), SILENCE_TIMEOUT * 3)
            assert time.monotonic() - began < SILENCE_TIMEOUT * 1.5

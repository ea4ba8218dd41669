"""A peer that is cut off, without a word: the kernel drops every packet between it and us."""

import os
import shutil
import socket
import subprocess
import sys

import pytest

from switchyard.broker.publish.session import _parameters
from switchyard.broker.wire.connection import connected, underlying
from switchyard.broker.wire.frame_tap import tap_of
from switchyard.broker.wire.silence import CUT_OFF_AFTER, TCP_OPTIONS
from tests.support.brokers import TestBroker
from tests.support.missing import skip_or_fail

IN_A_NETWORK_OF_ITS_OWN = """
import asyncio, subprocess, sys, time
from yarl import URL
from switchyard.broker.wire.frame_tap import TappedTransport

async def main():
    there = asyncio.Event()
    async def serve(reader, writer):
        await reader.readexactly(1)
        there.set()
        await asyncio.Event().wait()
    server = await asyncio.start_server(serve, "127.0.0.1", 5999)
    reader, writer = await TappedTransport().create(URL("amqp://127.0.0.1:5999"))
    writer.write(b"x")
    await there.wait()
    for port in ("--dport", "--sport"):
        rule = ["iptables", "-A", "INPUT", "-p", "tcp", port, "5999", "-j", "DROP"]
        subprocess.run(rule, check=True)
    began = time.monotonic()
    if sys.argv[1] == "sending":
        writer.write(b"y")
    try:
        await asyncio.wait_for(reader.read(1), 60)
    except OSError:
        pass
    print(time.monotonic() - began, flush=True)

asyncio.run(main())
"""


async def test_the_kernel_is_asked_to_notice_on_every_connection_to_a_broker(
    broker310: TestBroker,
) -> None:
    async with connected(broker310.amqp_url, "test") as connection:
        transport = tap_of(underlying(connection)).connected
        assert transport is not None
        found = transport.get_extra_info("socket")
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for name, value in TCP_OPTIONS.items():
            assert found.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
    options = _parameters(broker310.amqp_url, "test", 2.0).tcp_options
    assert options == dict(TCP_OPTIONS)


@pytest.mark.long
@pytest.mark.parametrize("what", ["resting", "sending"])
def test_a_connection_whose_packets_are_dropped_is_lost_within_the_time_that_is_said(
    what: str,
) -> None:
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("iptables")):
        skip_or_fail("this needs root, unshare and iptables")
    script = [sys.executable, "-c", IN_A_NETWORK_OF_ITS_OWN, what]
    ran = subprocess.run(
        ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *script],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    print(what, ran.stdout)
    assert float(ran.stdout) < CUT_OFF_AFTER * 1.5

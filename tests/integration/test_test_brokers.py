"""What all other tests take for granted about the servers they run against."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aio_pika
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from switchyard.broker.topology.build import build
from switchyard.cli.system.free_ports import free_port
from switchyard.cli.system.rabbitmq_node import CommandError, LocalNode, StartError
from switchyard.services.engine.ledger import Ledger
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.ledgers import make_ledger
from tests.support.management import Management
from tests.support.postgres import PostgresServer
from tests.support.publishing import HOT_QUEUE, ROUTES
from tests.support.system import lanes_with
from tests.support.tcp_proxy import TcpProxy
from tests.support.vhosts import Vhosts

RETRIED_MESSAGES = 5


async def test_each_test_gets_an_empty_vhost_on_the_version_it_names(
    broker: TestBroker, request: pytest.FixtureRequest
) -> None:
    assert broker.version.startswith(request.node.callspec.id.partition("-")[0])
    assert await broker.management.get("/queues/{vhost}") == []
    async with await aio_pika.connect(broker.amqp_url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("hot.llm", durable=True)
        await channel.default_exchange.publish(aio_pika.Message(b"a job"), queue.name)
        await broker.management.wait_until_depth(queue.name, 1)


async def test_a_vhost_is_used_again_with_nothing_in_it_of_the_test_before(
    broker: TestBroker,
) -> None:
    vhosts = Vhosts(broker.node)
    topology = build(broker.profile, ROUTES, lanes=lanes_with())
    first = vhosts.with_topology(topology)
    management = Management(broker.management_url, first)
    declared = {queue.name for queue in topology.queues}
    async with await aio_pika.connect(broker.node.amqp_url_of(first)) as connection:
        channel = await connection.channel()
        await channel.declare_queue("of this test", durable=True)
        for name in declared:
            await channel.default_exchange.publish(aio_pika.Message(b"a job"), name)
        queue = await channel.get_queue(HOT_QUEUE, ensure=False)
        await eventually(lambda: queue.get(fail=False), what="the job, which is not acknowledged")
    vhosts.give_back(first)
    assert vhosts.with_topology(topology) == first
    queues = await management.get("/queues/{vhost}")
    assert {queue["name"] for queue in queues} == declared
    async with await aio_pika.connect(broker.node.amqp_url_of(first)) as connection:
        channel = await connection.channel()
        for name in declared:
            assert await (await channel.get_queue(name)).get(fail=False) is None
    vhosts.close()


async def test_a_vhost_that_a_test_has_changed_is_not_used_again(broker: TestBroker) -> None:
    vhosts = Vhosts(broker.node)
    topology = build(broker.profile, ROUTES, lanes=lanes_with())
    first = vhosts.with_topology(topology)
    management = Management(broker.management_url, first)
    rule = {"pattern": "^hot", "definition": {"max-length": 1}, "apply-to": "queues"}
    await management.put("/policies/{vhost}/of-this-test", rule)
    vhosts.give_back(first)
    assert vhosts.with_topology(topology) != first
    assert first not in await read_vhost_names(management)
    vhosts.close()


async def read_vhost_names(management: Management) -> list[str]:
    """Return the names of all vhosts, but for those that other tests delete just now."""
    return [vhost["name"] for vhost in await management.get("/vhosts") if "name" in vhost]


async def test_a_vhost_that_no_test_has_used_for_long_is_deleted(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    vhosts = Vhosts(broker.node)
    idle_vhost = vhosts.with_topology(build(broker.profile, ROUTES, lanes=lanes_with()))

    async def is_there() -> bool:
        return idle_vhost in await read_vhost_names(broker.management)

    vhosts.give_back(idle_vhost)
    vhosts.forget_idle()
    assert await is_there()
    monkeypatch.setattr("tests.support.vhosts.MAX_KEPT_SECONDS", -1.0)
    vhosts.forget_idle()
    assert not await is_there()
    vhosts.close()


async def test_connections_that_a_test_leaves_on_a_vhost_are_closed(broker: TestBroker) -> None:
    vhosts = Vhosts(broker.node)
    topology = build(broker.profile, ROUTES, lanes=lanes_with())
    first = vhosts.with_topology(topology)
    management = Management(broker.management_url, first)
    async with await aio_pika.connect(broker.node.amqp_url_of(first)) as left_open:
        await eventually(lambda: management.get("/vhosts/{vhost}/connections"), what="its entry")
        vhosts.give_back(first)
        vhosts.with_topology(topology)
        transport = left_open.transport
        assert transport is not None
        await eventually(lambda: transport.connection.is_closed, what="the end of the connection")
    vhosts.close()


@pytest.mark.long
async def test_refused_dead_letters_arrive_soon_after_there_is_room(broker: TestBroker) -> None:
    """Test brokers try again after 3 s what an at-least-once queue could not deliver (else 180)."""
    async with await aio_pika.connect(broker.amqp_url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        full = await channel.declare_queue(
            "full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        )
        retry = await channel.declare_queue(
            "retry",
            durable=True,
            arguments={
                "x-queue-type": "quorum",
                "x-message-ttl": 100,
                "x-dead-letter-exchange": "",
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
            },
        )
        by_retry = await channel.declare_exchange("by-retry", aio_pika.ExchangeType.FANOUT)
        await retry.bind(by_retry)
        await channel.default_exchange.publish(aio_pika.Message(b"in the way"), full.name)
        jobs = {f"job {number}".encode() for number in range(RETRIED_MESSAGES)}
        for body in sorted(jobs):
            await by_retry.publish(aio_pika.Message(body, delivery_mode=2), full.name)
        # All have expired and wait for the full queue.
        await broker.management.wait_for(
            retry.name, messages=RETRIED_MESSAGES, messages_dlx=RETRIED_MESSAGES
        )

        arrived: asyncio.Queue[bytes] = asyncio.Queue()

        async def receive(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            await message.ack()
            arrived.put_nowait(message.body)

        await full.consume(receive)
        async with asyncio.timeout(10):
            assert await arrived.get() == b"in the way"
            assert {await arrived.get() for _ in range(RETRIED_MESSAGES)} == jobs
        await broker.management.wait_until_depth(retry.name, 0)


@pytest.mark.long
async def test_a_killed_node_comes_back_with_its_messages_and_ports(
    own_node: Callable[..., LocalNode],
) -> None:
    node = own_node()
    async with await aio_pika.connect(node.amqp_url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        queue = await channel.declare_queue("kept", durable=True)
        message = aio_pika.Message(b"a job", delivery_mode=2)
        await channel.default_exchange.publish(message, queue.name)
        # A confirm covers the message; the queue's own record is written a moment later.
        node.rabbitmqctl("eval", "mnesia:sync_log().")
        node.kill()
        assert not node.is_running
    with pytest.raises(OSError):  # noqa: PT011 – refused, whatever the number
        await aio_pika.connect(node.amqp_url)

    node.start()

    assert node.rabbitmqctl("list_users").splitlines()[1:] == ["switchyard\t[administrator]"]
    async with await aio_pika.connect(node.amqp_url) as connection:
        queue = await (await connection.channel()).get_queue("kept")
        assert (await queue.get()).body == b"a job"


def test_a_node_listens_on_loopback_alone(broker310: TestBroker) -> None:
    node = broker310.node
    node_ports = {node.amqp_port, node.management_port, node.dist_port, node.epmd_port}
    listening = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    addresses = {
        int(port, 16): address
        for local, _, state in listening
        for address, port in [local.split(":")]
        if state == "0A" and int(port, 16) in node_ports
    }
    assert addresses == dict.fromkeys(node_ports, "0100007F")
    # Those that listen on every address, of either family, are in the other file.
    for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]:
        address, _, port = line.split()[1].partition(":")
        assert not (int(port, 16) in node_ports and address == "0" * 32)


def test_a_node_that_cannot_start_says_why(own_node: Callable[..., LocalNode]) -> None:
    with pytest.raises(StartError, match="no_such_setting"):
        own_node(extra_config={"no_such_setting": "1"})


def test_a_node_can_be_asked_from_any_shell(broker310: TestBroker) -> None:
    control = broker310.node.control
    assert control.stat().st_mode & 0o777 == 0o700
    command = [str(control), "--quiet", "list_users"]
    result = subprocess.run(command, env={}, cwd="/", capture_output=True, text=True, check=True)
    assert "switchyard\t[administrator]" in result.stdout.splitlines()[1:]


def test_a_failing_command_says_what_the_node_answered(broker310: TestBroker) -> None:
    with pytest.raises(CommandError, match="nobody"):
        broker310.node.rabbitmqctl("delete_user", "nobody")


@pytest.mark.long
def test_a_node_ends_with_its_owner_even_if_that_is_killed(
    tmp_path: Path, broker310: TestBroker
) -> None:
    port = free_port()
    owner = f"""
import os, signal
from pathlib import Path
from switchyard.cli.system.rabbitmq_node import LocalNode
LocalNode(base_dir=Path({str(tmp_path)!r}), amqp_port={port}).start()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", owner], check=False).returncode == -9

    def has_ended() -> bool:
        base_dir = str(tmp_path).encode()
        for environment in Path("/proc").glob("[0-9]*/environ"):
            try:
                if base_dir in environment.read_bytes() and environment.parent.name != str(
                    os.getpid()
                ):
                    return False
            except OSError:
                continue  # ended, or somebody else's
        return True

    asyncio.run(eventually(has_ended, what="the end of the node"))


async def test_each_test_gets_an_empty_database(empty_database_url: str) -> None:
    engine = create_async_engine(empty_database_url)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE jobs (id INTEGER)"))
        assert (await connection.execute(text("SELECT count(*) FROM jobs"))).scalar() == 0
    await engine.dispose()


@pytest.mark.parametrize("turn", [1, 2])
async def test_each_test_gets_a_ledger_of_its_own(
    database_url: str, tmp_path: Path, turn: int
) -> None:
    await make_ledger(f"sqlite+aiosqlite:///{tmp_path / 'another.db'}")
    async with (
        await Ledger.open(database_url, check=True) as ledger,
        await Ledger.open(f"sqlite+aiosqlite:///{tmp_path / 'another.db'}") as another,
    ):
        before = await ledger.system.system()
        assert before.id != (await another.system.system()).id
        assert await ledger.job_reads.counts() == {}
        await make_ledger(database_url)
        assert await ledger.system.system() == before


async def test_a_database_can_stop_pause_and_come_back(postgres_server: PostgresServer) -> None:
    engine = create_async_engine(postgres_server.create_database())
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE jobs (id INTEGER)"))

    postgres_server.pause()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3), engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
    postgres_server.resume()
    async with engine.connect() as connection:
        await connection.execute(text("SELECT 1"))

    postgres_server.stop()
    with pytest.raises((OSError, DBAPIError)):
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
    postgres_server.start()
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM jobs"))).scalar() == 0
    await engine.dispose()


@asynccontextmanager
async def echo_server() -> AsyncIterator[tuple[int, "asyncio.Queue[bytes]"]]:
    """A server that echoes: its port, and what it received."""
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(100):
                received.put_nowait(data)
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], received


@pytest.mark.parametrize("forward", [False, True])
async def test_the_proxy_cuts_before_or_after_the_bytes_that_it_waits_for(forward: bool) -> None:
    async with echo_server() as (port, received), TcpProxy("127.0.0.1", port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert await received.get() == b"hello"
        has_cut = proxy.cut_when(lambda seen: b"secret" in seen, forward=forward)
        writer.write(b"secret")
        await has_cut.wait()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        assert proxy.connections == 1
        if forward:
            assert await received.get() == b"secret"
        assert received.empty()


async def test_the_proxy_pauses_and_refuses() -> None:
    async with echo_server() as (port, _), TcpProxy("127.0.0.1", port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        proxy.pause("to_client")
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)
        proxy.resume()
        assert await reader.readexactly(5) == b"hello"

        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        await proxy.accept()
        _, second_writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert proxy.connections == 2
        writer.close()
        second_writer.close()

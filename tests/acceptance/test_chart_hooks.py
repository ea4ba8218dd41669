"""What the chart sets up, run as rendered: its hooks in their order, then the users they made."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import aio_pika
import httpx
import pytest
from aio_pika.abc import AbstractChannel
from aiormq.exceptions import ChannelAccessRefused

from tests.acceptance.conftest import ROOT, clean_environment
from tests.support.brokers import TestBroker
from tests.support.chart import Manifest, environment_of, hooks, of_kind, pods
from tests.support.commands import commands

EXAMPLE = "production"
ROLES = ("publisher", "worker", "admin")


@pytest.fixture
def given(broker43_quorum: TestBroker, empty_postgres_url: str) -> Iterator[dict[str, str]]:
    """Secret values by what the chart calls them, for a broker that has only its administrator."""
    broker = broker43_quorum
    passwords = {f"{role}-password": secrets.token_hex(24) for role in ROLES}
    yield passwords | {
        "database-url": empty_postgres_url,
        "username": broker.node.user,
        "password": broker.node.password,
        "api-keys": secrets.token_hex(24),
    }
    names = {"users": [f"switchyard-{role}" for role in ROLES]}
    asyncio.run(broker.management.post("/users/bulk-delete", names))


@pytest.fixture
def environment(
    broker43_quorum: TestBroker, given: dict[str, str], tmp_path: Path
) -> Callable[..., dict[str, str]]:
    """What a container of the chart sees, with this broker in the place of its own."""
    broker = broker43_quorum
    here = {
        "switchyard-broker:5672/": broker.amqp_url.rpartition("@")[2],
        "switchyard-broker:15672/": broker.management_url.rpartition("@")[2],
    }
    every = ("broker-default-user", "broker-users", "ledger", "ledger-owner", "api")
    known = {f"switchyard-{name}": given for name in every}

    def of(container: Manifest) -> dict[str, str]:
        found = environment_of(container, known) | {"JOBS_DATA_DIR": str(tmp_path)}
        for service, address in here.items():
            found = {name: value.replace(service, address) for name, value in found.items()}
        return clean_environment() | found

    return of


def test_the_hooks_make_users_tables_and_queues_and_each_process_logs_in_as_its_own(
    environment: Callable[..., dict[str, str]], given: dict[str, str], broker43_quorum: TestBroker
) -> None:
    order = [name for name, _ in hooks(EXAMPLE)]
    assert order == ["switchyard-users", "switchyard-migrations", "switchyard-topology"]
    for _ in range(2):  # as an upgrade does
        for name, container in hooks(EXAMPLE):
            done = commands().run(
                container["args"], env=environment(container), cwd=ROOT, stdin="", timeout=60
            )
            assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
            told = {key for key, value in given.items() if value in done.stdout + done.stderr}
            assert told <= {"username"}
    urls = {
        name: environment(pod["containers"][0])["JOBS_AMQP_URL"]
        for name, pod in pods(EXAMPLE)
        if name in of_kind(EXAMPLE, "Deployment")
    }
    publisher, worker = urls["switchyard-api"], urls["switchyard-worker-llm"]
    asyncio.run(goes_only_its_way(publisher, worker, urls["switchyard-scheduler"]))
    # What KEDA asks, as the user that it is given.
    keda = ("switchyard-publisher", given["publisher-password"])
    address = broker43_quorum.management_url.rpartition("@")[2]
    queue = f"http://{address}/api/queues/{broker43_quorum.vhost}/backfill.llm"
    assert httpx.get(queue, auth=keda, trust_env=False).raise_for_status().json()


async def goes_only_its_way(publisher: str, worker: str, admin: str) -> None:
    await on_channel(publisher, publish)
    with pytest.raises(ChannelAccessRefused):
        await on_channel(publisher, take)
    with pytest.raises(ChannelAccessRefused):
        await on_channel(worker, delete)
    await on_channel(worker, take)
    await on_channel(admin, delete)


async def on_channel(url: str, act: Callable[[AbstractChannel], Awaitable[None]]) -> None:
    async with await aio_pika.connect(url) as connection:
        await act(await connection.channel())


async def publish(channel: AbstractChannel) -> None:
    exchange = await channel.get_exchange("jobs.topic", ensure=False)
    await exchange.publish(aio_pika.Message(b"{}"), "hot.summarize_content", mandatory=True)


async def take(channel: AbstractChannel) -> None:
    queue = await channel.get_queue("hot.llm", ensure=False)
    message = await queue.get(fail=True)
    await message.ack()


async def delete(channel: AbstractChannel) -> None:
    await channel.queue_delete("hot.llm")

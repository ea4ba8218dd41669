"""The chart's hooks, run as rendered and in order, and the permissions of the users they make."""

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
def secret_values(broker43_quorum: TestBroker, empty_postgres_url: str) -> Iterator[dict[str, str]]:
    """Secret values by their names in the chart, for a broker that has only its administrator."""
    broker = broker43_quorum
    passwords = {f"{role}-password": secrets.token_hex(24) for role in ROLES}
    yield passwords | {
        "database-url": empty_postgres_url,
        "username": broker.node.user,
        "password": broker.node.password,
        "api-keys": secrets.token_hex(24),
    }
    deletion = {"users": [f"switchyard-{role}" for role in ROLES]}
    asyncio.run(broker.management.post("/users/bulk-delete", deletion))


@pytest.fixture
def container_environment(
    broker43_quorum: TestBroker, secret_values: dict[str, str], tmp_path: Path
) -> Callable[..., dict[str, str]]:
    """A function that returns a container's environment, with this test's broker."""
    broker = broker43_quorum
    addresses = {
        "switchyard-broker:5672/": broker.amqp_url.rpartition("@")[2],
        "switchyard-broker:15672/": broker.management_url.rpartition("@")[2],
    }
    secret_names = ("broker-default-user", "broker-users", "ledger", "ledger-owner", "api")
    secrets_by_name = {f"switchyard-{name}": secret_values for name in secret_names}

    def make_environment(container: Manifest) -> dict[str, str]:
        variables = environment_of(container, secrets_by_name) | {"JOBS_DATA_DIR": str(tmp_path)}
        for service, address in addresses.items():
            variables = {name: value.replace(service, address) for name, value in variables.items()}
        return clean_environment() | variables

    return make_environment


def test_the_hooks_make_users_tables_and_queues_and_each_process_logs_in_as_its_own(
    container_environment: Callable[..., dict[str, str]],
    secret_values: dict[str, str],
    broker43_quorum: TestBroker,
) -> None:
    order = [name for name, _ in hooks(EXAMPLE)]
    assert order == ["switchyard-users", "switchyard-migrations", "switchyard-topology"]
    for _ in range(2):  # the second time as in an upgrade
        for name, container in hooks(EXAMPLE):
            completed = commands().run(
                container["args"],
                env=container_environment(container),
                cwd=ROOT,
                stdin="",
                timeout=60,
            )
            assert completed.returncode == 0, f"{name}: {completed.stdout}{completed.stderr}"
            leaked = {
                key
                for key, value in secret_values.items()
                if value in completed.stdout + completed.stderr
            }
            assert leaked <= {"username"}
    urls = {
        name: container_environment(pod["containers"][0])["JOBS_AMQP_URL"]
        for name, pod in pods(EXAMPLE)
        if name in of_kind(EXAMPLE, "Deployment")
    }
    publisher, worker = urls["switchyard-api"], urls["switchyard-worker-llm"]
    asyncio.run(assert_permissions(publisher, worker, urls["switchyard-scheduler"]))
    # The request of KEDA, with the user that the chart gives it.
    keda_login = ("switchyard-publisher", secret_values["publisher-password"])
    address = broker43_quorum.management_url.rpartition("@")[2]
    queue_url = f"http://{address}/api/queues/{broker43_quorum.vhost}/backfill.llm"
    assert httpx.get(queue_url, auth=keda_login, trust_env=False).raise_for_status().json()


async def assert_permissions(publisher: str, worker: str, admin: str) -> None:
    await act_on_channel(publisher, publish_job)
    with pytest.raises(ChannelAccessRefused):
        await act_on_channel(publisher, take_job)
    with pytest.raises(ChannelAccessRefused):
        await act_on_channel(worker, delete_queue)
    await act_on_channel(worker, take_job)
    await act_on_channel(admin, delete_queue)


async def act_on_channel(url: str, action: Callable[[AbstractChannel], Awaitable[None]]) -> None:
    async with await aio_pika.connect(url) as connection:
        await action(await connection.channel())


async def publish_job(channel: AbstractChannel) -> None:
    exchange = await channel.get_exchange("jobs.topic", ensure=False)
    await exchange.publish(aio_pika.Message(b"{}"), "hot.summarize_content", mandatory=True)


async def take_job(channel: AbstractChannel) -> None:
    queue = await channel.get_queue("hot.llm", ensure=False)
    message = await queue.get(fail=True)
    await message.ack()


async def delete_queue(channel: AbstractChannel) -> None:
    await channel.queue_delete("hot.llm")

"""A broker's limits of connections and channels are reported as such, and waited for."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import structlog

from switchyard.broker.errors import BrokerAuthError, LimitReached
from switchyard.broker.publish.blocking import BlockingPublisher
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.channel import open_channel
from switchyard.broker.wire.connection import connect, connected, underlying
from switchyard.broker.wire.reconnector import Reconnector
from switchyard.services.engine.monitoring.startup import wait_until_available
from tests.support.brokers import TestBroker
from tests.support.management import Management
from tests.support.publishing import job


class LimitedUser:
    """A user of one test alone, whose limits concern nobody else."""

    def __init__(self, broker: TestBroker) -> None:
        self.management: Management = broker.management
        self.name = f"limited-{broker.vhost}"
        parts = urlsplit(broker.amqp_url)
        self.url = f"amqp://{self.name}:secret@{parts.hostname}:{parts.port}{parts.path}"

    @property
    def settings(self) -> BrokerSettings:
        return BrokerSettings(amqp_url=self.url)

    async def set_limit(self, limit_name: str, number: int) -> None:
        await self.management.put(f"/user-limits/{self.name}/{limit_name}", {"value": number})

    async def lift(self, limit_name: str) -> None:
        await self.management.delete(f"/user-limits/{self.name}/{limit_name}")


@pytest.fixture
async def user(broker: TestBroker) -> AsyncIterator[LimitedUser]:
    user = LimitedUser(broker)
    await broker.management.put(f"/users/{user.name}", {"password": "secret", "tags": ""})
    permissions = {"configure": ".*", "write": ".*", "read": ".*"}
    await broker.management.put(f"/permissions/{{vhost}}/{user.name}", permissions)
    yield user
    await broker.management.delete(f"/users/{user.name}")


async def read_refusal(user: LimitedUser) -> str:
    """Return the broker's refusal, which both publishers report in the same words."""
    with pytest.raises(LimitReached) as refusal:
        await connect(user.url, "test")
    async with Publisher(user.settings) as publisher:
        with pytest.raises(LimitReached):
            await publisher.publish(job(), "hot.crawl")

    def publish_blocking() -> None:
        with BlockingPublisher(user.settings) as publisher:
            publisher.publish(job(), "hot.crawl")

    with pytest.raises(LimitReached) as blocking_refusal:
        await asyncio.to_thread(publish_blocking)
    assert str(refusal.value).partition("NOT_ALLOWED")[2] in str(blocking_refusal.value)
    return str(refusal.value)


async def test_a_connection_limit_of_the_vhost_is_reported_as_a_limit(
    broker: TestBroker, user: LimitedUser
) -> None:
    await broker.management.put("/vhost-limits/{vhost}/max-connections", {"value": 0})
    assert "connection limit (0) is reached" in await read_refusal(user)
    await broker.management.delete("/vhost-limits/{vhost}/max-connections")
    async with connected(user.url, "test"):
        pass


async def test_a_connection_limit_of_the_user_is_waited_for(user: LimitedUser) -> None:
    await user.set_limit("max-connections", 0)
    assert "user connection limit (0) is reached" in await read_refusal(user)
    refusals: list[LimitReached] = []
    reconnector = Reconnector(user.url, "test", structlog.get_logger("test"))

    async def try_to_connect() -> None:
        try:
            await reconnector.connection_now()
        except LimitReached as error:
            refusals.append(error)
            if len(refusals) == 4:  # more than a second after the first
                await user.lift("max-connections")
            raise

    with structlog.testing.capture_logs() as lines:
        await wait_until_available("broker", try_to_connect)
    await reconnector.close()
    assert len(refusals) >= 4
    assert {"user connection limit" in line["error"] for line in lines if "error" in line} == {True}


async def test_a_channel_limit_is_reported_as_one(user: LimitedUser) -> None:
    await user.set_limit("max-channels", 1)
    async with Publisher(user.settings) as publisher, connected(user.url, "test") as connection:
        await open_channel(underlying(connection), confirms=False)
        with pytest.raises(LimitReached, match="number of channels"):
            await publisher.publish(job(), "hot.crawl")


async def test_a_vhost_that_is_not_there_or_not_for_the_user_is_still_refused(
    broker: TestBroker, user: LimitedUser
) -> None:
    await broker.management.delete(f"/permissions/{{vhost}}/{user.name}")
    for url in (user.url, user.url + "-none"):
        with pytest.raises(BrokerAuthError, match="it refuses the vhost"):
            await connect(url, "test")

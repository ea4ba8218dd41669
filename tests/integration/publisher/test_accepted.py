"""A job that the publishers accept is in its queue."""

from datetime import UTC, datetime

import aio_pika

from switchyard.broker.lanes import JOBS_EXCHANGE
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import Accepted
from tests.support.brokers import TestBroker
from tests.support.publishing import (
    HOT,
    HOT_QUEUE,
    PublisherType,
    broker_settings,
    job,
    take,
)


async def test_an_accepted_job_is_in_its_queue_with_all_its_properties(
    publisher_type: PublisherType, lanes: TestBroker
) -> None:
    message = job("job-1", url="https://example.org/ü")
    async with publisher_type(broker_settings(lanes)) as publisher:
        assert await publisher.publish(message, HOT) == Accepted("job-1", HOT)

    (arrived,) = await take(lanes.amqp_url, HOT_QUEUE, 1)
    assert JobMessage.decode(arrived.body) == message
    assert arrived.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert arrived.message_id == "job-1"
    assert arrived.type == "crawl"
    assert arrived.priority == 3
    assert arrived.content_type == "application/json"
    assert arrived.timestamp == message.metadata.created_at.replace(microsecond=0)
    assert arrived.timestamp <= datetime.now(UTC)
    assert (arrived.exchange, arrived.routing_key) == (JOBS_EXCHANGE, HOT)


async def test_a_body_of_many_frames_arrives_whole(
    publisher_type: PublisherType, lanes: TestBroker
) -> None:
    message = job(text="é" * 400_000)
    async with publisher_type(broker_settings(lanes)) as publisher:
        await publisher.publish(message, HOT)
        await publisher.publish(job("behind-it"), HOT)
    arrived = await take(lanes.amqp_url, HOT_QUEUE, 2)
    bodies = {queued_message.message_id: queued_message.body for queued_message in arrived}
    assert JobMessage.decode(bodies[message.job_id]) == message
    assert JobMessage.decode(bodies["behind-it"]).payload == {}

"""Publish a job to RabbitMQ with pika alone, from a program that does not have Switchyard.

The same works in every language with an AMQP library: one JSON message to one exchange. (A Python
program that has Switchyard is shorter with `BlockingPublisher`: docs/python.md, "Publishing".)

The jobs are those of check_link.py. Start the system as README.md says, then:

    python publish_with_pika.py http://127.0.0.1:9000/ http://127.0.0.1:9000/README.md
    jobctl jobs list --type check_link
"""

import json
import os
import sys
import uuid
from datetime import UTC, datetime

import pika
from pika.exceptions import NackError


def make_message(url: str) -> tuple[bytes, pika.BasicProperties]:
    job_id = str(uuid.uuid4())  # published again with the same id, the job still runs once
    job = {
        "job_id": job_id,
        "job_type": "check_link",
        "priority": 10,  # 0 to 10, within the lane
        "payload": {"url": url},
        "metadata": {
            "created_at": datetime.now(UTC).isoformat(),
            "source": "pika",
            "attempts": 0,
            "max_attempts": 3,
        },
    }
    properties = pika.BasicProperties(
        content_type="application/json",
        delivery_mode=pika.DeliveryMode.Persistent.value,  # it outlives a restart of the broker
        message_id=job_id,
        type="check_link",
        priority=10,
    )
    return json.dumps(job).encode(), properties


def main(urls: list[str]) -> None:
    parameters = pika.URLParameters(os.environ["JOBS_AMQP_URL"])
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()  # without this, nobody knows whether the broker has the job
        for url in urls:
            body, properties = make_message(url)
            try:
                channel.basic_publish("jobs.topic", "hot.check_link", body, properties)
            except NackError:
                sys.exit(f"the lane is full: keep {url} and publish it later")
            print(properties.message_id)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Jobs on their way to a queue that has to be there, for whoever publishes one: `jobs.topic`
confirms a job without a queue as well, and passes it on to the dead letters."""

from __future__ import annotations

from typing import Protocol

from switchyard.broker.lanes import queue_name
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import Outgoing


class Destination(Protocol):
    """A job that is recorded, or to be: where it goes."""

    @property
    def lane(self) -> str: ...
    @property
    def worker(self) -> str: ...
    @property
    def routing_key(self) -> str: ...


def routed(job: Destination, message: JobMessage) -> Outgoing:
    """Return the message with the queue that it must arrive in. Where that is known not to be
    there, or to have no bindings yet, its publish ends as Unroutable, and nothing of it is on the
    broker."""
    return Outgoing(message, job.routing_key, queue_name(job.lane, job.worker))

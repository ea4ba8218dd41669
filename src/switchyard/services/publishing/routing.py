"""Publishing recorded jobs to queues that are there, for whoever publishes one: `jobs.topic`
confirms a job without a queue as well, and passes it on to the dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from switchyard.broker.errors import PublishError, Unroutable
from switchyard.broker.lanes import JOBS_EXCHANGE, queue_name
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import Outgoing, Result
from switchyard.broker.publish.publisher import Publisher


class Destined(Protocol):
    """A job that is recorded, or to be: where it goes."""

    @property
    def lane(self) -> str: ...
    @property
    def worker(self) -> str: ...
    @property
    def routing_key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Routed:
    """A job message, where it goes, and the queue that it must arrive in."""

    outgoing: Outgoing
    queue: str

    @classmethod
    def of(cls, job: Destined, message: JobMessage) -> Self:
        return cls(Outgoing(message, job.routing_key), queue_name(job.lane, job.worker))


async def publish_routed(publisher: Publisher, jobs: Sequence[Routed]) -> list[Result]:
    """Publish the jobs; those whose queue is known not to be there are Unroutable, and nothing of
    them is on the broker. Results are in the order of the jobs."""
    try:
        missing = {
            queue
            for queue in dict.fromkeys(job.queue for job in jobs)
            if await publisher.has_queue(queue) is False  # None: a slow broker refuses nothing
        }
    except PublishError as error:
        return [_refused(publisher, job, error) for job in jobs]
    there = [job.outgoing for job in jobs if job.queue not in missing]
    sent = iter(await publisher.publish_many(there) if there else ())
    return [
        _refused(publisher, job, _without_queue(job)) if job.queue in missing else next(sent)
        for job in jobs
    ]


def _without_queue(job: Routed) -> Unroutable:
    return Unroutable(JOBS_EXCHANGE, job.outgoing.routing_key, queue=job.queue)


def _refused(publisher: Publisher, job: Routed, error: PublishError) -> PublishError:
    publisher.count(job.outgoing, error)
    return error

"""The spans of an attempt: its wait in the queue, and what was done then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from switchyard.services.common import tracing
from switchyard.services.common.traceparent import valid_traceparent
from switchyard.services.engine.jobs.retry import Delayed, Died
from switchyard.services.engine.runtime.attempt_endings import Ending, outcome_of
from switchyard.services.engine.runtime.running_job import DeliveredJob


@contextmanager
def attempting(job: DeliveredJob) -> Iterator[Callable[[Ending], None]]:
    """Trace an attempt, from its claim to the record of its end, which the caller tells.

    A job of a publisher that does not trace begins a trace here; the retry or the dead letter of
    this attempt carries it on.
    """
    if tracing.tracer() is None:
        yield _tell_nobody
        return
    message, delivery = job.message, job.delivery
    metadata = message.metadata
    about: dict[str, tracing.Value | None] = {
        "messaging__system": "rabbitmq",
        "messaging__destination__name": delivery.queue,
        "switchyard__job__id": message.job_id,
        "switchyard__job__type": message.job_type,
        "switchyard__attempt": metadata.attempts + 1,
        "switchyard__redrives": metadata.redrives,
    }
    if metadata.queued_at is not None:
        tracing.record(
            f"wait {delivery.queue}",
            began=min(metadata.queued_at.timestamp(), job.started_at),
            parent=metadata.traceparent,
            **about,
        )
    with tracing.span(
        f"run {message.job_type}", kind="consumer", parent=metadata.traceparent, **about
    ) as running:
        if running.traceparent is not None and not valid_traceparent(metadata.traceparent):
            job.message = message.with_metadata(traceparent=running.traceparent)

        def tell(ending: Ending) -> None:
            running.note(switchyard__outcome=outcome_of(ending))
            if isinstance(ending, Died) or (isinstance(ending, Delayed) and ending.counts):
                running.failed(ending.failure.error_type)

        yield tell


def _tell_nobody(ending: Ending) -> None:
    """Do nothing: tracing is off."""

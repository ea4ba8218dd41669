"""Trace an attempt: spans of its wait in the queue and of its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from switchyard.services.common import tracing
from switchyard.services.common.traceparent import valid_traceparent
from switchyard.services.engine.jobs.retry import Delayed, Died
from switchyard.services.engine.runtime.attempt_endings import Ending, outcome_of
from switchyard.services.engine.runtime.running_job import DeliveredJob


@contextmanager
def tracing_attempt(job: DeliveredJob) -> Iterator[Callable[[Ending], None]]:
    """Trace an attempt from its claim to the record of its end; the caller passes the ending to the
    yielded function. If the job has no trace yet, a new one begins; its retry or dead letter
    continues it.
    """
    if tracing.tracer() is None:
        yield _ignore
        return
    message, delivery = job.message, job.delivery
    metadata = message.metadata
    attributes: dict[str, tracing.Value | None] = {
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
            **attributes,
        )
    with tracing.span(
        f"run {message.job_type}", kind="consumer", parent=metadata.traceparent, **attributes
    ) as span:
        if span.traceparent is not None and not valid_traceparent(metadata.traceparent):
            job.message = message.with_metadata(traceparent=span.traceparent)

        def set_ending(ending: Ending) -> None:
            span.note(switchyard__outcome=outcome_of(ending))
            if isinstance(ending, Died) or (isinstance(ending, Delayed) and ending.counts):
                span.failed(ending.failure.error_type)

        yield set_ending


def _ignore(ending: Ending) -> None:
    """Do nothing: tracing is off."""

"""Publishing jobs: prepare, record, publish, mark; the way in for the CLI, the API and users.

The record comes first (`pending`), then the confirmed publish, then the mark (`queued`). A crash
in between leaves a `pending` record, which the scheduler publishes again: the outbox.

**The rule for every way in** (docs/architecture.md, "What a publish answers"):

- *Accepted*: the job is recorded, and will run. The broker has confirmed it (`queued`), it waits
  for its time (`scheduled`) or for the end of a pause (`paused`), or its confirm did not come
  (`pending`): it may be on the broker, and the outbox publishes it.
- *Refused*: nothing is kept of it (LaneFull, Unroutable, NeverTaken, NotPermitted, Blocked,
  BrokerUnavailable), but where a full hot lane has made a dead letter of it, which the error says.
  NeverTaken is one that is too large for the broker: to publish it again does not help. Where that
  shows only later, the job is dead, reason `refused`. Unroutable is a job whose queue is not
  on this broker, or has no bindings yet: that is asked before it is sent.
- A full queue (services/engine/monitoring/lane_pressure.py) refuses before anything is recorded
  or sent (LaneFull); what a slow one takes is accepted, and `Published.pressure` says so: publish
  less. A publisher without `pressure`, as that of a backfill, which has a gate of its own, goes by
  the broker alone.
- What one request has accepted, no other refuses: a job that was recorded before is the earlier
  request's, or the outbox's, and is not sent a second time from here. A job that the broker refuses
  is taken back, unless another request was told of it meanwhile; then it is kept, and will run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Self

from switchyard.broker.errors import BrokerUnavailable, LaneFull, NeverTaken, PublishError
from switchyard.broker.lanes import queue_name
from switchyard.broker.publish.outcome import Accepted, Result
from switchyard.broker.publish.publisher import Publisher
from switchyard.services.common.settings import Settings
from switchyard.services.common.tracing import SpanHandle, begin, current_traceparent
from switchyard.services.engine.identity.broker import system_guard
from switchyard.services.engine.jobs.registered_types import learn_missing_type, learn_types
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.lane_pressure import LanePressure, QueueDepth
from switchyard.services.engine.publishing.fairness import FairSources
from switchyard.services.engine.publishing.outbox import routed
from switchyard.services.engine.publishing.preparing import JobRequest, prepare
from switchyard.services.engine.records.errors import IdempotencyConflict
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.records.results import Created, Existing, Recorded
from switchyard.services.engine.records.states import Pressure, State
from switchyard.services.engine.wings import job_modules


@dataclass(frozen=True, slots=True)
class Published:
    """The job is in its lane (`queued`), waits for its time (`scheduled`) or for the end of a pause
    (`paused`), or is recorded (`pending`): the scheduler publishes it. A duplicate may be in any
    state."""

    job_id: str
    routing_key: str
    state: State
    duplicate: bool = False
    """The idempotency key or id was known: this is the earlier job, and nothing was sent."""
    pressure: Pressure | None = None
    """Load of its queue, at most a second old; None where unknown. At `slow`, publish less; at
    `full`, jobs are refused (LaneFull)."""

    @property
    def is_slow(self) -> bool:
        return self.pressure is not None and self.pressure is not Pressure.OK


PublishOutcome = Published | PublishError | IdempotencyConflict


class JobPublisher:
    """Records jobs and publishes them. Safe to use from many coroutines at once.

    With `remote`, as in a server, all payloads come from outside: fields that only this system may
    set are checked.
    """

    def __init__(
        self,
        registry: Registry,
        ledger: Ledger,
        publisher: Publisher,
        *,
        remote: bool = False,
        pressure: LanePressure | None = None,
        fair_from: int | None = None,
    ) -> None:
        self.clock = ledger.clock
        self._registry = registry
        self._ledger = ledger
        self._publisher = publisher
        self._remote = remote
        self._pressure = pressure
        self._fair = None if fair_from is None else FairSources(ledger.gauges, fair_from)
        """JOBS_FAIR_FROM; None where all sources are alike."""

    @classmethod
    @asynccontextmanager
    async def opened(cls, settings: Settings | None = None) -> AsyncIterator[Self]:
        """Open a publisher for a program of its own, with the pipeline's job types and those of
        JOBS_MODULES; it connects at the first publish, and everything is closed at the end.

        The settings are those of the environment unless given. Raises ValueError where no broker
        is named or a setting is not valid, RegistryError, LedgerError.
        """
        settings = settings or Settings()
        settings.require_amqp_url()
        registry = Registry.load(dict.fromkeys((*job_modules(), *settings.modules)))
        async with (
            await Ledger.open(settings.ledger_url, check=True) as ledger,
            Publisher(settings, guard=system_guard(settings, ledger)) as publisher,
            LanePressure(settings, registry, ledger=ledger) as pressure,
        ):
            await learn_types(registry, ledger)
            fair_from = settings.fair_from
            yield cls(registry, ledger, publisher, pressure=pressure, fair_from=fair_from)

    async def prepare(self, request: JobRequest) -> NewJob:
        """Check a request and make the job, as `prepare` does; nothing is recorded or sent.

        Raises InvalidJob, UnknownJobType, InvalidPayload, LedgerUnavailable.
        """
        ids = await self._ledger.system.job_ids()
        return prepare(self._registry, request, remote=self._remote, ids=ids)

    async def learn_and_prepare(self, request: JobRequest) -> NewJob:
        """Prepare a job whose type may be known to the ledger alone: it is looked up there first.
        Raises LedgerError besides."""
        name = request.routing_key.partition(".")[2]
        await learn_missing_type(self._registry, self._ledger, name)
        return await self.prepare(request)

    async def publish(self, request: JobRequest) -> Published:
        """Publish one job.

        Raises what `prepare` raises (nothing was sent); IdempotencyConflict; LaneFull, Unroutable,
        NeverTaken, NotPermitted, Blocked, BrokerUnavailable (PublishError): nothing was kept, but
        the dead letter of a LaneFull that says so; LedgerUnavailable.
        """
        return await self.publish_one(await self.learn_and_prepare(request))

    async def publish_many(self, requests: Iterable[JobRequest]) -> list[PublishOutcome]:
        """Publish a batch; every request is checked before anything is recorded or sent.

        Outcomes are in the order of the requests. Raises as `publish` does where it is about the
        batch as a whole (an invalid request, the ledger).
        """
        return await self.publish_prepared(
            [await self.learn_and_prepare(each) for each in requests]
        )

    async def publish_one(self, job: NewJob) -> Published:
        """`publish` of a job that `prepare` has made."""
        (outcome,) = await self.publish_prepared([job])
        if not isinstance(outcome, Published):
            raise outcome
        return outcome

    async def publish_prepared(self, jobs: Sequence[NewJob]) -> list[PublishOutcome]:
        """`publish_many` of jobs that `prepare` has made: record → publish → mark → take back."""
        spans = [_span_of(job) for job in jobs]
        try:
            outcomes = await self._publish_traced(
                [_within_span(job, each) for job, each in zip(jobs, spans, strict=True)]
            )
            for each, outcome in zip(spans, outcomes, strict=True):
                if isinstance(outcome, Published):
                    each.note(switchyard__job__state=outcome.state)
                else:
                    each.failed(type(outcome).__name__)
            return outcomes
        finally:
            for each in spans:
                each.end()

    async def _publish_traced(self, jobs: Sequence[NewJob]) -> list[PublishOutcome]:
        refused: dict[str, PublishError] = {
            **self._refuse_too_large(jobs),
            **await self._refuse_full(jobs),
        }
        outcomes = await self._publish([job for job in jobs if job.message.job_id not in refused])
        rest, depths = iter(outcomes), self._depths(jobs)
        return [
            refused[job.message.job_id]
            if job.message.job_id in refused
            else _with_pressure(next(rest), depths.get((job.lane, job.worker)))
            for job in jobs
        ]

    def _depths(self, jobs: Sequence[NewJob]) -> dict[tuple[str, str], QueueDepth]:
        """Return the known depths of these jobs' queues, by lane and worker."""
        if self._pressure is None:
            return {}
        depths = {}
        for lane, worker in {(job.lane, job.worker) for job in jobs}:
            depth = self._pressure.recent(queue_name(lane, worker))
            if depth is not None:
                depths[lane, worker] = depth
        return depths

    def _refuse_too_large(self, jobs: Sequence[NewJob]) -> dict[str, NeverTaken]:
        """Find delayed jobs that are known to be too large for the broker, by id. What is
        published now is refused there."""
        refused: dict[str, NeverTaken] = {}
        for job in jobs:
            if job.run_at is not None:
                try:
                    self._publisher.check(job.message)
                except NeverTaken as error:
                    refused[job.message.job_id] = error
        return refused

    async def _refuse_full(self, jobs: Sequence[NewJob]) -> dict[str, LaneFull]:
        """Return the error of each job that would enter a full queue, by id. A job that an earlier
        request was told of is not refused, nor one that runs later."""
        if self._pressure is not None:
            await self._pressure.wait_for_first()
        depths = self._depths(jobs)
        full = {queue for queue, depth in depths.items() if depth.pressure is Pressure.FULL}
        new = {
            job.message.job_id: LaneFull(job.routing_key, dead_lettered=False)
            for job in jobs
            if job.run_at is None and (job.lane, job.worker) in full
        }
        states = await self._ledger.job_reads.states(list(new)) if new else {}
        return {job_id: error for job_id, error in new.items() if job_id not in states}

    async def _publish(self, jobs: Sequence[NewJob]) -> list[PublishOutcome]:
        jobs = [each.shifted(self.clock.offset) for each in jobs]
        if self._fair is not None:
            jobs = await self._fair.lower_priorities(jobs)
        recorded = await self._ledger.jobs.record_many(jobs)
        outcomes = _known_outcomes(jobs, recorded)
        due = [index for index in range(len(jobs)) if index not in outcomes]
        results = await self._publisher.publish_many(
            [routed(jobs[index], jobs[index].message) for index in due]
        )
        sent = dict(zip(due, results, strict=True))
        outcomes |= {index: _outcome(jobs[index], result) for index, result in sent.items()}
        await self._mark(jobs, sent)
        outcomes |= await self._rollback_inserts(jobs, recorded, sent)
        return [outcomes[index] for index in range(len(jobs))]

    async def _mark(self, jobs: Sequence[NewJob], sent: Mapping[int, Result]) -> None:
        """Record what the broker has taken, or has moved to the dead letters."""
        for index, result in sent.items():
            if isinstance(result, LaneFull) and result.dead_lettered:
                await self._ledger.jobs.mark_overflowed(
                    jobs[index].message.job_id, self.clock.time()
                )
        accepted = [result.job_id for result in sent.values() if isinstance(result, Accepted)]
        if accepted:
            await self._ledger.jobs.mark_queued(accepted, self.clock.time())

    async def _rollback_inserts(
        self,
        jobs: Sequence[NewJob],
        recorded: Sequence[Recorded | IdempotencyConflict],
        sent: Mapping[int, Result],
    ) -> dict[int, PublishOutcome]:
        """Roll back the records of jobs of which the broker kept nothing; return the outcomes of
        those that are kept nevertheless, as another request has reported them."""
        nothing_left = [
            index
            for index, result in sent.items()
            if isinstance(result, PublishError) and result.left_nothing
        ]
        inserted = {index: recorded[index] for index in nothing_left}
        refused = {index: each for index, each in inserted.items() if isinstance(each, Created)}
        if not refused:
            return {}
        states = await self._ledger.jobs.rollback_inserts(list(refused.values()))
        return {
            index: Published(jobs[index].message.job_id, jobs[index].routing_key, state)
            for index, state in zip(refused, states, strict=True)
            if state is not None
        }


def _with_pressure(outcome: PublishOutcome, depth: QueueDepth | None) -> PublishOutcome:
    if depth is None or not isinstance(outcome, Published):
        return outcome
    return replace(outcome, pressure=depth.pressure)


def _span_of(job: NewJob) -> SpanHandle:
    metadata = job.message.metadata
    return begin(
        f"publish {job.routing_key}",
        kind="producer",
        parent=current_traceparent() or metadata.traceparent,
        messaging__system="rabbitmq",
        switchyard__job__id=job.message.job_id,
    )


def _within_span(job: NewJob, publishing: SpanHandle) -> NewJob:
    """Make the publish's span the parent of what becomes of the job."""
    traceparent = publishing.traceparent
    if traceparent is None:
        return job
    notice = None if job.notice is None else _within_span(job.notice, publishing)
    message = job.message.with_metadata(traceparent=traceparent)
    return replace(job, message=message, notice=notice)


def _known_outcomes(
    jobs: Sequence[NewJob], recorded: Sequence[Recorded | IdempotencyConflict]
) -> dict[int, PublishOutcome]:
    """Return the outcomes of jobs that need not be sent now, by their place in the batch."""
    outcomes: dict[int, PublishOutcome] = {}
    for index, (job, record) in enumerate(zip(jobs, recorded, strict=True)):
        if isinstance(record, IdempotencyConflict):
            outcomes[index] = record
        elif isinstance(record, Existing):
            outcomes[index] = Published(
                record.job_id, job.routing_key, record.state, duplicate=True
            )
        elif record.paused:
            outcomes[index] = Published(record.job_id, job.routing_key, State.PAUSED)
        elif job.run_at is not None:
            outcomes[index] = Published(record.job_id, job.routing_key, State.SCHEDULED)
    return outcomes


def _outcome(job: NewJob, result: Result) -> PublishOutcome:
    if isinstance(result, Accepted):
        return Published(result.job_id, result.routing_key, State.QUEUED)
    if isinstance(result, BrokerUnavailable) and result.maybe_accepted:
        return Published(job.message.job_id, job.routing_key, State.PENDING)
    return result

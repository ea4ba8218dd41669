"""Run a backfill: read items, publish their jobs, record the progress, wait for the jobs' end.

A batch is recorded, published and confirmed before the cursor passes it, and a job's id is derived
from its item. So after a crash, at most the open batches are repeated, and their jobs are found
recorded.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pydantic_core import to_json

from switchyard.broker.errors import LaneFull, NeverTaken
from switchyard.broker.lanes import EVENTS_EXCHANGE, queue_name
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.wire.envelope import Envelope
from switchyard.services.common.settings import Settings
from switchyard.services.engine.backfill.costs import find_short_budget
from switchyard.services.engine.backfill.counts import MAX_NOTES, Counts
from switchyard.services.engine.backfill.gate import Gate
from switchyard.services.engine.backfill.queue_quota import FindTarget, QueueQuota, queue_quota
from switchyard.services.engine.backfill.reader import ReadAhead
from switchyard.services.engine.backfill.sources import Cursor, Item, Source, Unusable
from switchyard.services.engine.backfill.spec import KIND, Plan, job_or_reason
from switchyard.services.engine.bulk.hot_traffic import HotTraffic
from switchyard.services.engine.bulk.session import BulkSession
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.lane_pressure import LanePressure
from switchyard.services.engine.publishing.outbox import publish_recorded
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.bulk import WEIGHT, BulkState
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.records.states import FINISHED, State

BATCH = 500
"""Jobs that are recorded and published together."""
JOBS_PER_TURN = 50
"""Items after which other tasks of the event loop get a turn."""
MAX_BATCHES = 3
"""Batches under way at once."""
READ_AHEAD_ITEMS = 2_000
"""Items that are read ahead."""
CLOSED_PAUSE = 0.1
"""Seconds between checks whether the gate is open; the gate reads depths less often."""
REFUSED_PAUSE = 0.5
"""Seconds until jobs that a full lane refused are published again."""
SAMPLE_INTERVAL = 5.0
"""Seconds between samples of the progress, at least."""
SAMPLE_SHARE = 0.05
"""Fraction of the time that counting the jobs' states may take: a million jobs take seconds."""
DRAIN_PAUSE = 1.0
"""Seconds between checks whether all jobs have ended."""
PAST_END = "its end date came before the end of the source"


@dataclass(frozen=True, slots=True)
class _Batch:
    """Items whose jobs are being published."""

    items: Sequence[Item | Unusable]
    publishing: asyncio.Task[None]
    published: int
    """Jobs that it publishes."""
    skipped: list[str] = field(default_factory=list)

    @property
    def cursor(self) -> Cursor:
        return self.items[-1].cursor


class BackfillRun:
    """Runs one backfill in this process."""

    def __init__(
        self,
        settings: Settings,
        session: BulkSession,
        ledger: Ledger,
        publisher: Publisher,
        plan: Plan,
        source: Source,
        pressure: LanePressure,
        traffic: HotTraffic,
        *,
        find_target: FindTarget | None = None,
        fair_from: int | None = None,
    ) -> None:
        self._settings = settings
        self._session = session
        self._ledger = ledger
        self._publisher = publisher
        self._jobs = JobPublisher(plan.registry, ledger, publisher, fair_from=fair_from)
        self._plan = plan
        self._source = source
        self._counts = Counts.from_json(session.operation.counts)
        self._open_batches: deque[_Batch] = deque()
        self._next_sample = float("-inf")
        queue = queue_name(plan.spec.lane, plan.job_type.worker)
        self._gate = Gate(
            pressure,
            traffic,
            self._count_open,
            lane=plan.spec.lane,
            queue=queue,
            low=plan.spec.low,
            high=plan.spec.high,
            find_obstacle=self._find_obstacle,
            read_quota=None if find_target is None else partial(self._read_quota, find_target),
        )

    async def run(self) -> None:
        """Publish the rest of the source, and wait for the end of all jobs."""
        note = None
        if not self._counts.exhausted:
            if self._plan.then is not None:
                await self._ledger.joins.record_joined([self._plan.then])
            note = await self._publish_all()
            own_counts, _ = await self._ledger.bulk_jobs.count_bulk_jobs(self._session.id)
            self._counts.conclude(sum(own_counts.values()))
            await self._session.checkpoint(counts=self._counts.to_json())
        await self._seal_join()
        await self._drain(note)

    async def _seal_join(self) -> None:
        """Seal the join of the `then` job, as no more jobs are added; publish that job if all
        others have ended."""
        if self._plan.then is None:
            return
        ledger, then_id = self._ledger, self._plan.then.message.job_id
        if await ledger.joins.seal(then_id, ledger.clock.time()):
            # All jobs had ended already. If this publish fails, the scheduler repeats it.
            then = await ledger.job_reads.get(then_id)
            await publish_recorded(self._publisher, ledger, [then] if then else [])

    # --- publishing -------------------------------------------------------------------------

    async def _publish_all(self) -> str | None:
        """Publish what is left of the source; return a note if it stops before the source's end."""
        items = self._source.items(self._session.operation.cursor)
        async with ReadAhead(items, READ_AHEAD_ITEMS) as reader:
            try:
                while True:
                    if self._is_past_end():
                        return PAST_END
                    allowed = await self._allowance()
                    if allowed > 0:
                        allowed = await self._session.take_slots(allowed, until=self._end_time)
                    if allowed == 0:
                        continue
                    if reader.is_empty:
                        await self._settle_all()
                    batch = await self._session.run_until_ended(reader.take(allowed))
                    self._session.check()
                    if not batch:
                        return None
                    async with self._gate.turn(self._session):
                        if self._is_past_end():
                            return PAST_END
                        await self._start_batch(batch)
                        if len(batch) < BATCH:
                            # Only for a small batch: others would wait too long for a large one.
                            await asyncio.wait([each.publishing for each in self._open_batches])
                    if len(batch) < BATCH:
                        await self._settle_all()  # overlap gains nothing here, and counts are exact
                    elif len(self._open_batches) >= MAX_BATCHES:
                        await self._settle_oldest()
            finally:
                await self._settle_rest()

    async def _allowance(self) -> int:
        """Return the number of jobs that may be published now; 0 after a pause of CLOSED_PAUSE
        seconds."""
        unconfirmed = sum(
            each.published for each in self._open_batches if not each.publishing.done()
        )
        allowed = await self._gate.allowance(BATCH, self._session.operation.max_open, unconfirmed)
        await self._session.move(BulkState.RUNNING, self._gate.why)
        if allowed == 0:
            await self._settle_all()
            if self._is_sample_due:
                await self._sample()
                await self._session.save_progress(counts=self._counts.to_json())
            await self._session.sleep(CLOSED_PAUSE)
        return allowed

    async def _start_batch(self, items: Sequence[Item | Unusable]) -> None:
        jobs: list[NewJob] = []
        skipped: list[str] = []
        for number, item in enumerate(items, 1):
            job = job_or_reason(self._plan, item)
            if number % JOBS_PER_TURN == 0:
                await asyncio.sleep(0)  # a whole batch takes a tenth of a second
            if isinstance(job, str):
                skipped.append(job)
            else:
                jobs.append(job)
        self._gate.count_published(len(jobs))
        publishing = asyncio.create_task(
            self._publish(jobs, skipped), name=f"batch of {self._session.id}"
        )
        self._open_batches.append(_Batch(items, publishing, len(jobs), skipped))

    async def _publish(self, jobs: Sequence[NewJob], skipped: list[str]) -> None:
        """Publish until the broker has taken all jobs. A job that it can never take is skipped,
        like an item that makes no valid job."""
        while jobs:
            outcomes = await self._jobs.publish_prepared(jobs)
            refused: list[NewJob] = []
            for job, outcome in zip(jobs, outcomes, strict=True):
                if isinstance(outcome, LaneFull):
                    # A job that its lane has dead-lettered counts as a dead job of this backfill.
                    if not outcome.dead_lettered:
                        refused.append(job)
                elif isinstance(outcome, NeverTaken):
                    skipped.append(f"{job.message.job_id}: {outcome}")
                elif isinstance(outcome, Exception):
                    raise outcome
            jobs = refused
            if jobs:
                self._gate.measure_again()
                await self._session.sleep(REFUSED_PAUSE)

    async def _settle_oldest(self) -> None:
        await self._settle(self._open_batches[0])
        self._session.check()

    async def _settle_all(self) -> None:
        while self._open_batches:
            await self._settle_oldest()

    async def _settle_rest(self) -> None:
        """Wait for the batches under way and record their results, up to the first batch that is
        not done."""
        try:
            while self._open_batches:
                await self._settle(self._open_batches[0])
        finally:
            unfinished = [batch.publishing for batch in self._open_batches]
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
            self._open_batches.clear()

    async def _settle(self, batch: _Batch) -> None:
        """Wait for the batch, and let the cursor pass it."""
        await batch.publishing
        self._open_batches.popleft()
        counts = self._counts
        counts.read += len(batch.items)
        counts.published += len(batch.items) - len(batch.skipped)
        counts.skipped += len(batch.skipped)
        counts.notes += batch.skipped[: MAX_NOTES - len(counts.notes)]
        if self._is_sample_due:
            await self._sample()
        await self._session.save_progress(cursor=batch.cursor, counts=counts.to_json())

    @property
    def _is_sample_due(self) -> bool:
        return time.monotonic() >= self._next_sample

    @property
    def _end_time(self) -> float | None:
        until = self._plan.spec.until
        return None if until is None else until.timestamp()

    def _is_past_end(self) -> bool:
        return self._end_time is not None and self._ledger.clock.time() >= self._end_time

    async def _read_quota(self, find_target: FindTarget) -> QueueQuota | None:
        spec = self._plan.spec
        # The recorded weight: an operator may have changed it since the start.
        weight = self._session.operation.spec.get(WEIGHT, spec.weight)
        return await queue_quota(
            self._ledger,
            self._session.id,
            lane=spec.lane,
            worker=self._plan.job_type.worker,
            weight=weight,
            find_target=find_target,
        )

    async def _find_obstacle(self) -> str | None:
        """Describe the pause or the budget that keeps more jobs from running; None where there is
        none."""
        spec, job_type = self._plan.spec, self._plan.job_type
        pauses = await self._ledger.pauses.active()
        pause = pauses.pause_of(spec.lane, job_type.worker, job_type.name, self._plan.source.name)
        if pause is not None:
            return f"{pause} is paused: {pause.remedy}"
        return await find_short_budget(
            self._settings, self._ledger, self._session.id, asks_models=self._plan.asks_models
        )

    # --- outcomes of the jobs ------------------------------------------------------------

    async def _drain(self, note: str | None) -> None:
        """Wait until all its jobs have ended, and the jobs that followed from them."""
        while True:
            is_done = await self._count_open(1) == 0
            if is_done or self._is_sample_due:
                await self._sample()
                await self._session.checkpoint(counts=self._counts.to_json())
            if is_done:
                break
            await self._session.move(BulkState.DRAINING, note)
            await self._session.sleep(DRAIN_PAUSE)
        await self._session.finish(BulkState.COMPLETED, note)

    async def _sample(self) -> None:
        """Add a sample of the progress, and announce it."""
        began = time.monotonic()
        own_counts, _ = await self._ledger.bulk_jobs.count_bulk_jobs(self._session.id)
        ended_at = time.monotonic()
        self._next_sample = ended_at + max(SAMPLE_INTERVAL, (ended_at - began) / SAMPLE_SHARE)
        finished = sum(own_counts.get(state, 0) for state in FINISHED)
        self._counts.add_sample(finished, self._ledger.clock.time())
        self._announce(own_counts)

    async def _count_open(self, at_most: int) -> int:
        return await self._ledger.bulk_jobs.count_open_bulk_jobs(self._session.id, at_most=at_most)

    def _announce(self, own_counts: Mapping[State, int]) -> None:
        """Publish a progress event."""
        body = {
            "event": "progress",
            "job_id": self._session.id,
            "job_type": KIND,
            "lane": self._plan.spec.lane,
            "at": self._ledger.clock.time(),
            "total": self._counts.total,
            "published": self._counts.published,
            "skipped": self._counts.skipped,
            "jobs": {state.value: number for state, number in own_counts.items()},
        }
        event = Envelope(body=to_json(body), message_id=self._session.id, type="progress")
        routing_key = f"progress.{self._plan.spec.lane}.{KIND}"
        self._publisher.send_soon(EVENTS_EXCHANGE, routing_key, lambda: event)

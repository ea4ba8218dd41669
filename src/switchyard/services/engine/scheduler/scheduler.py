"""Run the scheduler: it publishes due jobs, and runs the periodic duties of all wings, such as
firing schedules and indexing dead letters.

One instance is active; others stand by and take over when its lease runs out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from functools import partial

import structlog

from switchyard.broker.errors import BrokerUnavailable, WrongSystem
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.task_supervisor import TaskSupervisor
from switchyard.services.common.instance_ids import new_instance_id
from switchyard.services.common.settings import Settings
from switchyard.services.engine.identity.broker import begin_generation
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.leases import SCHEDULER
from switchyard.services.engine.monitoring import metric_names as names
from switchyard.services.engine.monitoring.metric_names import Metric, Samples
from switchyard.services.engine.monitoring.metrics import Metrics, show_publishes
from switchyard.services.engine.publishing.outbox import (
    RefusalLog,
    publish_recorded,
    without_paused,
)
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.pauses import ActivePauses
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import REVOCABLE
from switchyard.services.engine.scheduler.duties import (
    DutyContext,
    SchedulerIntervals,
    load_duties,
    run_duty,
)

BATCH = 500
"""Jobs that are read and published together."""
RESUMED_CHECK_INTERVAL = 30.0
"""Seconds between checks for jobs whose pause has ended, while the pauses do not change."""
LAST_GENERATION_TIMEOUT = 2.0
"""Seconds that a scheduler tries to write a last generation before it ends."""


@dataclass(slots=True)
class TurnCounts:
    """Counts of the jobs that one turn has published."""

    scheduled: int = 0
    outbox: int = 0
    resumed: int = 0
    lost: int = 0
    refused: int = 0

    def plus(self, other: TurnCounts) -> TurnCounts:
        """Return the sum of both."""
        return TurnCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))


class Scheduler:
    """Publishes due jobs and runs the periodic duties, until `stop`."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        ledger: Ledger,
        *,
        intervals: SchedulerIntervals | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.holder = new_instance_id()
        self.is_active = asyncio.Event()
        """Set while this instance has the lease."""
        self._settings = settings
        self._ledger = ledger
        self._intervals = intervals or SchedulerIntervals()
        self._publisher = Publisher(settings, name="scheduler")
        context = DutyContext(
            settings,
            registry,
            ledger,
            self._publisher,
            self._intervals,
            self._stop_for_wrong_system,
        )
        self._pruned = context.pruned
        self._due = context.due.jobs
        self.bulk_due = context.due.bulk
        """Set when there may be a bulk operation that no process runs, for a `BulkRunner`."""
        self._duties = load_duties(context)
        self._refusals = RefusalLog()
        self._pauses = ActivePauses()
        self._next_turn_at = 0.0
        """Monotonic time of the next turn if nothing becomes due before."""
        self._renew_lease_at = 0.0
        """Monotonic time at which the lease is renewed."""
        self._check_resumed_at = 0.0
        """Monotonic time of the next check for jobs whose pause has ended."""
        self._published_again: set[str | None] = set()
        """Claims of silent workers whose jobs were published again."""
        self._log = structlog.get_logger("scheduler").bind(scheduler=self.holder)
        self._stopping = asyncio.Event()
        self._wrong_system: WrongSystem | None = None
        """Error for which this scheduler stops."""
        self._total = TurnCounts()
        if metrics is not None:
            show_publishes(metrics, self._publisher.counts)
            metrics.add_source(self._metric_samples)

    def _metric_samples(self) -> list[tuple[Metric, Samples]]:
        return [
            (names.SCHEDULER_ACTIVE, {(): float(self.is_active.is_set())}),
            (
                names.SCHEDULER_PUBLISHED,
                {(kind,): float(number) for kind, number in asdict(self._total).items()},
            ),
            (
                names.SCHEDULER_PRUNED,
                {(table,): float(number) for table, number in self._pruned.items()},
            ),
        ]

    async def run(self) -> None:
        """Wait for the lease, then publish and run the duties, until `stop`. Raises WrongSystem
        when the broker has become another system's."""
        background: TaskSupervisor | None = None
        try:
            while not self._stopping.is_set():
                if await self._hold_lease():
                    if background is None:
                        background = TaskSupervisor(self._log)
                        for duty in self._duties:
                            background.start(duty.name, partial(run_duty, duty, self._log))
                    await self._turn_if_due()
                elif background is not None:
                    await background.close()
                    background = None
                await self._sleep_until_due()
        finally:
            if background is not None:
                await background.close()
                await self._end_generation()
            await self.close()
            if self.is_active.is_set():
                await self._release()
        if self._wrong_system is not None:
            raise self._wrong_system

    def _stop_for_wrong_system(self, error: WrongSystem) -> None:
        """Stop, as this scheduler would publish to another system."""
        self._log.error("broker belongs to another system", error=str(error))
        self._wrong_system = error
        self.stop()

    async def _end_generation(self) -> None:
        """Begin a last generation: copies of the ledger made until now are recognised as old."""
        if self._wrong_system is not None:
            return
        try:
            async with asyncio.timeout(LAST_GENERATION_TIMEOUT):
                await begin_generation(self._settings, self._ledger)
        except WrongSystem as error:
            self._stop_for_wrong_system(error)
        except (BrokerUnavailable, LedgerError, TimeoutError) as error:
            self._log.warning("last generation of the system id not written", error=str(error))

    def stop(self) -> None:
        """End after the current turn; safe in a signal handler."""
        self._stopping.set()
        self._due.set()

    async def close(self) -> None:
        """Close the connection to the broker; `run` does so at its end."""
        await self._publisher.close()

    async def _turn_if_due(self) -> None:
        """Make a turn if something may be due. After a turn that published jobs, another follows at
        once."""
        now = time.monotonic()
        if not self._due.is_set() and now < self._next_turn_at:
            return
        self._due.clear()
        self._next_turn_at = now
        try:
            if await self.turn() == TurnCounts():
                self._next_turn_at = time.monotonic() + RESUMED_CHECK_INTERVAL
        except LedgerError as error:
            self._log.warning("ledger unreachable", error=str(error))

    async def turn(self) -> TurnCounts:
        """Publish everything that is due now. Raises LedgerUnavailable."""
        turn = TurnCounts()
        moment = self._ledger.clock.time()
        unconfirmed_before = moment - self._intervals.pending
        turn.scheduled = await self._publish_due(
            partial(self._ledger.job_reads.due_scheduled, moment), turn
        )
        turn.outbox = await self._publish_due(
            partial(self._ledger.job_reads.due_pending, unconfirmed_before), turn
        )
        turn.resumed = await self._publish_resumed(turn)
        turn.lost = await self._publish_for_silent_workers(turn)
        self._total = self._total.plus(turn)
        if turn.scheduled or turn.outbox or turn.resumed or turn.lost:
            self._log.info("jobs published", **asdict(turn))
        return turn

    async def _publish_due(
        self, fetch: Callable[..., Awaitable[list[JobRecord]]], turn: TurnCounts
    ) -> int:
        """Publish a batch of due jobs, and while a batch runs into full queues, another without
        those queues, so that their jobs do not block others."""
        published = 0
        full: set[tuple[str, str]] = set()
        while True:
            due = await fetch(BATCH, full_queues=full)
            unpaused = await without_paused(self._ledger, due)
            pinned = await self._pin(unpaused)
            accepted = set(await self._publish(pinned, turn))
            published += len(accepted)
            refused = {(each.lane, each.worker) for each in pinned if each.id not in accepted}
            if len(due) < BATCH or not (refused or len(unpaused) < len(due)):
                return published
            full |= refused

    async def _publish_resumed(self, turn: TurnCounts) -> int:
        """Publish jobs whose pause has ended. There may be many paused jobs, so they are examined
        only when the pauses have changed; and at intervals, for jobs that were paused just as
        their pause ended."""
        pauses = await self._ledger.pauses.active()
        now = time.monotonic()
        if pauses != self._pauses:
            self._pauses, self._check_resumed_at = pauses, now
        if now < self._check_resumed_at:
            return 0
        released = await self._ledger.pauses.release(BATCH)
        if len(released) < BATCH:
            self._check_resumed_at = now + RESUMED_CHECK_INTERVAL
        # A job that a full queue refuses is pending, and is published with the outbox.
        return len(await self._publish(released, turn))

    async def _pin(self, due: list[JobRecord]) -> list[JobRecord]:
        """Pin the jobs that are still recorded, and return them: their publisher, which may be slow
        and not dead, can't roll them back any more."""
        revocable = [each.id for each in due if each.state in REVOCABLE and each.claim_id]
        if not revocable:
            return due
        states = await self._ledger.jobs.pin(revocable)
        changed = {each for each in revocable if states.get(each) not in REVOCABLE}
        return [each for each in due if each.id not in changed]

    async def _publish_for_silent_workers(self, turn: TurnCounts) -> int:
        """Publish again the jobs of silent workers, once for each claim.

        The claims stay: the worker that gets a copy takes the job over by the usual rules, which
        count the crash, and a worker that lives after all can still finish it.
        """
        silent = await self._ledger.job_reads.stale_running(self._intervals.silent, BATCH)
        fresh = [record for record in silent if record.claim_id not in self._published_again]
        accepted = set(await self._publish(fresh, turn))
        self._published_again &= {record.claim_id for record in silent}
        self._published_again |= {record.claim_id for record in fresh if record.id in accepted}
        return len(accepted)

    async def _publish(self, records: list[JobRecord], turn: TurnCounts) -> list[str]:
        """Publish recorded jobs, and return the ids of those that the broker accepted. The refused
        ones keep their state and come again."""
        if not records:
            return []
        accepted, refused = await publish_recorded(
            self._publisher, self._ledger, records, self._refusals
        )
        turn.refused += refused
        return accepted

    # --- the lease --------------------------------------------------------------------------

    async def _hold_lease(self) -> bool:
        """Acquire or renew the lease; tell whether this instance has it. It is renewed three times
        within its duration."""
        now = time.monotonic()
        if self.is_active.is_set() and now < self._renew_lease_at:
            return True
        lease = self._intervals.lease
        self._renew_lease_at = now + lease / 3
        try:
            held = await self._ledger.leases.acquire_lease(
                SCHEDULER, self.holder, lease, longest=lease
            )
        except LedgerError as error:
            self._log.warning("ledger unreachable", error=str(error))
            held = False
        if not held:
            self.bulk_due.set()  # a scheduler that stands by does not check for operations
        if held and not self.is_active.is_set():
            self._log.info("scheduler active")
            self.is_active.set()
            self._next_turn_at = now
        elif not held and self.is_active.is_set():
            self._log.warning("scheduler standing by")
            self.is_active.clear()
        return held

    async def _release(self) -> None:
        self.is_active.clear()
        try:
            await self._ledger.leases.release_lease(SCHEDULER, self.holder)
        except LedgerError as error:
            self._log.warning("scheduler lease not released", error=str(error))

    async def _sleep_until_due(self) -> None:
        """Sleep for a turn's interval, and longer while nothing is due."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._intervals.turn):
                await self._stopping.wait()
        if not self.is_active.is_set() or self._stopping.is_set():
            return
        next_at = min(self._renew_lease_at, self._next_turn_at)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, next_at - time.monotonic())):
                await self._due.wait()

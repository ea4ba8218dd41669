"""The scheduler: publishes what is due, fires schedules, heals what a crash left behind, follows
dead letters.

One instance is active; others stand by and take over when its lease runs out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial

import structlog

from switchyard.broker.background import Background
from switchyard.broker.errors import BrokerAway, WrongSystem
from switchyard.broker.lanes import LANES, Lane
from switchyard.broker.publish.publisher import Publisher
from switchyard.services.common.files.storage_errors import StorageError
from switchyard.services.common.instance import new_instance_id
from switchyard.services.common.settings import Settings
from switchyard.services.engine.alerts.alerter import Alerter
from switchyard.services.engine.dead.indexing import DeadLetterIndexer
from switchyard.services.engine.identity.broker import advance_broker
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.leases import SCHEDULER
from switchyard.services.engine.monitoring import metric_names as names
from switchyard.services.engine.monitoring.metric_names import Metric, Samples
from switchyard.services.engine.monitoring.metrics import Metrics, show_publishes
from switchyard.services.engine.publishing.recorded import Refusals, publish_recorded
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import State
from switchyard.services.engine.redrive.returning import LOOK, Returner
from switchyard.services.engine.runtime.limiting import call
from switchyard.services.engine.schedules.firing import ScheduleRunner
from switchyard.services.llm.answers import DAY, drop_old_answers
from switchyard.services.llm.batch_sending import BatchSender
from switchyard.services.llm.spending import tidy_spending

BATCH = 500
GENERATION = 10.0
"""Seconds between two generations: a copy of the ledger is known as old after so long."""
LAST_GENERATION_LIMIT = 2.0
"""Seconds for the generation that a scheduler begins when it ends: a broker that is away must not
hold up the end."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a scheduler looks, and how long it waits before it steps in; all in seconds."""

    turn: float = 0.5
    """Between looks for due jobs."""
    lease: float = 6.0
    """A scheduler that has died is replaced after so long."""
    pending: float = 15.0
    """A record that is older and not yet confirmed was left behind by a crash: publish it
    again."""
    silent: float = 60.0
    """Running jobs of a worker that has been silent for so long are published again, for the
    case that the broker has lost them; otherwise the ledger lets only one copy run."""
    displaced: float = LOOK
    """Between looks for what the broker threw out of full lanes."""
    answers: float = 600.0
    """Between looks for answers of models and catalogues that are too old, or too many."""
    calls: float = 1.0
    """Between looks for room in named limits that jobs wait for."""
    limits: float = 300.0
    """Between looks for named limits that nobody uses any more."""


@dataclass(slots=True)
class Turn:
    """What one turn has published."""

    scheduled: int = 0
    outbox: int = 0
    lost: int = 0
    refused: int = 0

    def plus(self, other: Turn) -> Turn:
        """Both together."""
        return Turn(
            self.scheduled + other.scheduled,
            self.outbox + other.outbox,
            self.lost + other.lost,
            self.refused + other.refused,
        )


class Scheduler:
    """Runs until `stop`."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        ledger: Ledger,
        *,
        pace: Pace | None = None,
        metrics: Metrics | None = None,
        lanes: tuple[Lane, ...] = LANES,
    ) -> None:
        self.holder = new_instance_id()
        self.is_active = asyncio.Event()
        """Set while this instance has the lease."""
        self._settings = settings
        self._ledger = ledger
        self._pace = pace or Pace()
        self._publisher = Publisher(settings, name="scheduler")
        self._indexer = DeadLetterIndexer(settings, ledger, registry)
        self._returner = Returner(
            settings, registry, ledger, self._publisher, lanes, look=self._pace.displaced
        )
        self._schedules = ScheduleRunner(
            settings, registry, ledger, self._publisher, look=self._pace.turn
        )
        self._refusals = Refusals()
        self._published_again: set[str | None] = set()
        """Claims of silent workers whose jobs were published again."""
        self._log = structlog.get_logger("scheduler").bind(scheduler=self.holder)
        self._stopping = asyncio.Event()
        self._refused: WrongSystem | None = None
        self._total = Turn()
        if metrics is not None:
            show_publishes(metrics, self._publisher.counts)
            metrics.show(self._shown)

    def _shown(self) -> list[tuple[Metric, Samples]]:
        return [
            (names.SCHEDULER_ACTIVE, {(): float(self.is_active.is_set())}),
            (
                names.SCHEDULER_PUBLISHED,
                {(what,): float(number) for what, number in asdict(self._total).items()},
            ),
        ]

    async def run(self) -> None:
        """Stand by for the lease, then do the work, until `stop`. Raises WrongSystem when
        the broker has become another system's."""
        background: Background | None = None
        try:
            while not self._stopping.is_set():
                if await self._hold_lease():
                    if background is None:
                        background = Background(self._log)
                        background.start("index of dead letters", self._indexer.run)
                        background.start("generations", self._advance)
                        background.start("displaced jobs", self._returner.run)
                        background.start("old answers", self._drop_answers)
                        background.start("schedules", self._schedules.run)
                        background.start("calls to limits", self._call_waiting)
                        background.start("idle limits", self._forget_limits)
                        background.start("batches", self._send_batches)
                        if self._settings.alert_webhook is not None:
                            alerter = Alerter(self._settings, self._ledger)
                            background.start("alerts", alerter.run)
                    try:
                        await self.turn()
                    except LedgerError as error:
                        self._log.warning("ledger away", error=str(error))
                elif background is not None:
                    await background.close()
                    background = None
                await self._pause()
        finally:
            if background is not None:
                await background.close()
                await self._end_generation()
            await self.close()
            if self.is_active.is_set():
                await self._release()
        if self._refused is not None:
            raise self._refused

    async def _advance(self) -> None:
        """Ledger and broker agree on a new generation now and then, so that an old copy of the
        ledger is known as one. Where they do not belong together any more, the scheduler ends:
        what it does there is done to another system."""
        while True:
            await self._advance_once()
            await asyncio.sleep(GENERATION)

    async def _advance_once(self) -> None:
        try:
            await advance_broker(self._settings, self._ledger)
        except WrongSystem as error:
            self._log.error("the broker is not this ledger's", error=str(error))
            self._refused = error
            self.stop()
        except (BrokerAway, LedgerError) as error:
            self._log.warning(
                "a new generation of the system id could not be started", error=str(error)
            )

    async def _end_generation(self) -> None:
        """Begin a last generation, so that a copy made while this scheduler ran is known as old
        also where it was made a moment ago."""
        if self._refused is not None:
            return
        try:
            async with asyncio.timeout(LAST_GENERATION_LIMIT):
                await self._advance_once()
        except TimeoutError:
            self._log.warning("no last generation of the system id: the broker does not answer")

    def stop(self) -> None:
        """End after the current turn; safe in a signal handler."""
        self._stopping.set()

    async def close(self) -> None:
        """Close the connection to the broker; `run` does so at its end."""
        await self._publisher.close()

    async def turn(self) -> Turn:
        """Publish everything that is due now. Raises LedgerUnavailable."""
        turn = Turn()
        moment = self._ledger.clock.time()
        old = moment - self._pace.pending
        turn.scheduled = await self._publish_due(partial(self._ledger.due_scheduled, moment), turn)
        turn.outbox = await self._publish_due(partial(self._ledger.due_pending, old), turn)
        turn.lost = await self._publish_silent(turn)
        self._total = self._total.plus(turn)
        if turn.scheduled or turn.outbox or turn.lost:
            self._log.info(
                "published",
                scheduled=turn.scheduled,
                outbox=turn.outbox,
                lost=turn.lost,
                refused=turn.refused,
            )
        return turn

    async def _publish_due(
        self, fetch: Callable[..., Awaitable[list[JobRecord]]], turn: Turn
    ) -> int:
        """Publish a batch of what is due, and as long as a batch runs into full queues one more
        without these: jobs that wait for room do not stand in the way of others."""
        number = 0
        full: set[tuple[str, str]] = set()
        while True:
            due = await fetch(BATCH, without=full)
            kept = await self._rely_on(due)
            accepted = set(await self._publish(kept, turn))
            number += len(accepted)
            refused = {(each.lane, each.worker) for each in kept if each.id not in accepted}
            if len(due) < BATCH or not refused:
                return number
            full |= refused

    async def _rely_on(self, due: list[JobRecord]) -> list[JobRecord]:
        """Those that are still there to be published. Whoever recorded one may be slow and not
        dead: from now on it can't take back what is published here."""
        held = [each.id for each in due if each.state is State.PENDING and each.claim_id]
        if not held:
            return due
        states = await self._ledger.rely_on(held)
        gone = {each for each in held if states.get(each) is not State.PENDING}
        return [each for each in due if each.id not in gone]

    async def _publish_silent(self, turn: Turn) -> int:
        """Publish what silent workers run, once for each claim.

        The claims stay: whoever gets a copy takes the job over by the same rules as ever, which
        count the crash, and a worker that lives after all can still finish it.
        """
        silent = await self._ledger.stale_running(self._pace.silent, BATCH)
        fresh = [record for record in silent if record.claim_id not in self._published_again]
        accepted = set(await self._publish(fresh, turn))
        self._published_again &= {record.claim_id for record in silent}
        self._published_again |= {record.claim_id for record in fresh if record.id in accepted}
        return len(accepted)

    async def _publish(self, records: list[JobRecord], turn: Turn) -> list[str]:
        """Publish recorded jobs, and say which the broker took. Those that it refuses keep their
        state and come again."""
        if not records:
            return []
        accepted, refused = await publish_recorded(
            self._publisher, self._ledger, records, self._refusals
        )
        turn.refused += refused
        return accepted

    async def _drop_answers(self) -> None:
        while True:
            try:
                number = await drop_old_answers(self._settings, self._ledger)
                if number:
                    self._log.info("dropped old answers of models", answers=number)
                number = await self._ledger.drop_catalogue_answers(
                    max_age=self._settings.link_answers_days * DAY
                )
                if number:
                    self._log.info("dropped old answers of catalogues", answers=number)
                number = await tidy_spending(self._settings, self._ledger)
                if number:
                    self._log.info("forgot what old calls of models have cost", calls=number)
            except (LedgerError, StorageError) as error:
                self._log.warning("old answers could not be deleted", error=str(error))
            await asyncio.sleep(self._pace.answers)

    async def _call_waiting(self) -> None:
        """Where time alone makes room in a named limit, nobody else calls those that wait."""
        while True:
            try:
                await call(self._publisher, await self._ledger.call_waiting(), self._log)
            except LedgerError as error:
                self._log.warning("jobs that wait for room could not be released", error=str(error))
            await asyncio.sleep(self._pace.calls)

    async def _send_batches(self) -> None:
        await BatchSender(self._settings, self._ledger, self._publisher).run()

    async def _forget_limits(self) -> None:
        while True:
            try:
                await self._ledger.forget_idle_limits()
            except LedgerError as error:
                self._log.warning("idle limits could not be deleted", error=str(error))
            await asyncio.sleep(self._pace.limits)

    # --- the lease --------------------------------------------------------------------------

    async def _hold_lease(self) -> bool:
        try:
            lease = self._pace.lease
            held = await self._ledger.acquire_lease(SCHEDULER, self.holder, lease, longest=lease)
        except LedgerError as error:
            self._log.warning("ledger away", error=str(error))
            held = False
        if held and not self.is_active.is_set():
            self._log.info("active")
            self.is_active.set()
        elif not held and self.is_active.is_set():
            self._log.warning("standing by")
            self.is_active.clear()
        return held

    async def _release(self) -> None:
        self.is_active.clear()
        try:
            await self._ledger.release_lease(SCHEDULER, self.holder)
        except LedgerError as error:
            self._log.warning("can't release the lease", error=str(error))

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), self._pace.turn)
        except TimeoutError:
            return

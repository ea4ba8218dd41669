"""Periodic duties of the active scheduler, the engine's own and those of other wings (packages that
add job types and duties, see engine/wings.py), and the handlers of bulk operations."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import structlog

from switchyard.broker.errors import BrokerUnavailable, WrongSystem
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.wire.reconnector import Reconnector
from switchyard.services.common.files.errors import StorageError
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.settings import Settings
from switchyard.services.engine.actions.handler import action_handlers
from switchyard.services.engine.alerts.alerter import Alerter
from switchyard.services.engine.archive.archiver import JobArchiver
from switchyard.services.engine.archive.contents import remove_old
from switchyard.services.engine.backfill.handler import BackfillHandler
from switchyard.services.engine.backfill.sources import Sources
from switchyard.services.engine.bulk.hot_traffic import HotTraffic
from switchyard.services.engine.bulk.session import BulkHandler
from switchyard.services.engine.dead.indexed import REMOVAL_INTERVAL, LeftoverRemover
from switchyard.services.engine.dead.indexing import DeadLetterIndexer
from switchyard.services.engine.dead.purge import PurgeHandler
from switchyard.services.engine.identity.broker import CONNECTION, begin_generation
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.lane_history import LaneHistoryRecorder
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.pauses import ActivePauses
from switchyard.services.engine.records.retention import RetentionAges
from switchyard.services.engine.redrive.displaced_returner import (
    RETURN_INTERVAL,
    DisplacedJobReturner,
)
from switchyard.services.engine.redrive.handler import RedriveHandler
from switchyard.services.engine.runtime.permits import wake
from switchyard.services.engine.scheduler.retention import ARCHIVE_INTERVAL, Pruner
from switchyard.services.engine.scheduler.small_steps import SmallSteps
from switchyard.services.engine.schedules.firing import ScheduleRunner
from switchyard.services.engine.wings import load_contributions

GENERATION_INTERVAL = 10.0
"""Seconds between two generations of ledger and broker (`SystemMark.generation`), by which a
restored copy of the ledger is recognised."""
HISTORY_INTERVAL = 1.0
"""Seconds after a minute was recorded, before the recorder waits for the end of the next."""


@dataclass(frozen=True, slots=True)
class SchedulerIntervals:
    """Poll intervals of a scheduler, and times after which it steps in; all in seconds."""

    turn: float = 0.5
    """Between polls for due jobs."""
    lease: float = 6.0
    """Until a scheduler that has died is replaced."""
    pending: float = 15.0
    """Until a job that was recorded and not confirmed is published again: a crash left it
    behind."""
    silent: float = 60.0
    """Until the running jobs of a silent worker are published again, in case the broker has lost
    them; if it has not, the ledger lets only one copy run."""
    displaced: float = RETURN_INTERVAL
    """Between polls for jobs that the broker threw out of full lanes."""
    leftovers: float = REMOVAL_INTERVAL
    """Between polls for letters that were redriven from the index and are still on the broker."""
    answers: float = 600.0
    """Between polls for answers of models and catalogues that are too old, or too many."""
    client_batches: float = 5.0
    """Between polls of the batches of the OpenAI-compatible API."""
    limit_wakes: float = 1.0
    """Between polls for free permits in named limits that jobs wait for."""
    limits: float = 300.0
    """Between polls for named limits that nobody uses any more."""
    prune: float = 60.0
    """Between polls for rows that are old enough to be removed; more where that costs much."""


@dataclass(slots=True)
class DueSignals:
    """Events that are set when there is something to do; the duty that does it clears its own
    first."""

    jobs: asyncio.Event = field(default_factory=asyncio.Event)
    schedules: asyncio.Event = field(default_factory=asyncio.Event)
    limits: asyncio.Event = field(default_factory=asyncio.Event)
    bulk: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class DutyContext:
    """What every duty is given: settings, ledger, publisher and intervals."""

    settings: Settings
    registry: Registry
    ledger: Ledger
    publisher: Publisher
    intervals: SchedulerIntervals
    on_wrong_system: Callable[[WrongSystem], None] = lambda _: None
    """Stops the scheduler, as broker and ledger do not belong together."""
    due: DueSignals = field(default_factory=DueSignals)
    """Set by `DueWatch`."""
    pruned: Counter[str] = field(default_factory=Counter)
    """Rows that were removed for their age, by table."""


@dataclass(frozen=True, slots=True)
class PeriodicDuty:
    """A task that the active scheduler repeats."""

    name: str
    """Name in logs, and of its task."""
    run: Callable[[], Awaitable[None]]
    """Does the duty once; where `interval` is None, it goes on until it is cancelled."""
    interval: float | None = None
    """Seconds between the end of one run and the next."""
    when: asyncio.Event | None = None
    """The next run also waits for this event, and clears it."""


def load_duties(context: DutyContext) -> list[PeriodicDuty]:
    """Return the duties of all wings. Raises InvalidWing."""
    return [duty for duties in load_contributions("periodic_duties") for duty in duties(context)]


async def run_duty(duty: PeriodicDuty, log: structlog.stdlib.BoundLogger) -> None:
    """Run a duty until cancelled. An error of an unavailable service is logged, and the duty tried
    again after its interval; any other error is raised."""
    if duty.interval is None:
        await duty.run()
        return
    while True:
        if duty.when is not None:
            await duty.when.wait()
            duty.when.clear()
        try:
            await duty.run()
        except (BrokerUnavailable, LedgerError, StorageError) as error:
            log.warning("duty postponed", duty=duty.name, error=str(error))
        await asyncio.sleep(duty.interval)


def engine_duties(context: DutyContext) -> Iterator[PeriodicDuty]:
    """Return the engine's own duties."""
    settings, registry, ledger = context.settings, context.registry, context.ledger
    publisher, intervals = context.publisher, context.intervals
    indexer = DeadLetterIndexer(settings, ledger, registry)
    returner = DisplacedJobReturner(
        settings, registry, ledger, publisher, interval=intervals.displaced
    )
    schedules = ScheduleRunner(
        settings,
        registry,
        ledger,
        publisher,
        interval=intervals.turn,
        when_due=context.due.schedules,
    )
    yield PeriodicDuty("look for what is due", DueWatch(context).look, intervals.turn)
    yield PeriodicDuty("index of dead letters", indexer.run)
    yield PeriodicDuty("generations", partial(_advance_generations, context))
    yield PeriodicDuty("displaced jobs", returner.run)
    remover = LeftoverRemover(settings, ledger)
    yield PeriodicDuty("redriven letters", remover.run, intervals.leftovers)
    yield PeriodicDuty("schedules", schedules.run)
    yield PeriodicDuty(
        "wake jobs that wait for limits",
        partial(_wake_waiting, context),
        intervals.limit_wakes,
        when=context.due.limits,
    )
    yield PeriodicDuty("idle limits", partial(_forget_limits, context), intervals.limits)
    recorder = LaneHistoryRecorder(settings, registry, ledger)
    yield PeriodicDuty("lane history", recorder.record, HISTORY_INTERVAL)
    archiver = JobArchiver(settings, ledger, registry) if settings.archive_jobs else None
    pruner = Pruner(ledger, RetentionAges.of(settings), removed=context.pruned, archiver=archiver)
    yield PeriodicDuty("retention", pruner.run, intervals.prune)
    if settings.keep_archive is not None:
        remove_files = partial(_remove_old_archive, context, settings.keep_archive)
        yield PeriodicDuty("age of the archive", remove_files, ARCHIVE_INTERVAL)
    if settings.alert_webhook is not None:
        yield PeriodicDuty("alerts", Alerter(settings, ledger).run)


class DueWatch:
    """Finds out by one query what is due, and wakes the duties that do it. Queries of each duty
    would be many, and mostly find nothing."""

    def __init__(self, context: DutyContext) -> None:
        self._ledger = context.ledger
        self._intervals = context.intervals
        self._due = context.due
        self._pauses = ActivePauses()

    async def look(self) -> None:
        """Set the signals of what is due. Raises LedgerError."""
        moment = self._ledger.clock.time()
        due_work = await self._ledger.due_work.find_due(
            moment,
            unconfirmed_before=moment - self._intervals.pending,
            silent_for=self._intervals.silent,
        )
        if due_work.jobs or due_work.pauses != self._pauses:
            self._due.jobs.set()
        self._pauses = due_work.pauses
        if due_work.schedules:
            self._due.schedules.set()
        if due_work.limits:
            self._due.limits.set()
        if due_work.bulk:
            self._due.bulk.set()


async def _advance_generations(context: DutyContext) -> None:
    """Begin new generations until cancelled, on one connection: opening one for each took more
    than anything else that an idle scheduler does."""
    log = structlog.get_logger("scheduler")
    reconnector = Reconnector(context.settings.require_amqp_url(), CONNECTION, log)
    advance = partial(_advance_generation, context, reconnector)
    try:
        await run_duty(PeriodicDuty("generations", advance, GENERATION_INTERVAL), log)
    finally:
        await reconnector.close()


async def _advance_generation(context: DutyContext, reconnector: Reconnector) -> None:
    try:
        await begin_generation(context.settings, context.ledger, reconnector)
    except WrongSystem as error:
        context.on_wrong_system(error)


async def _wake_waiting(context: DutyContext) -> None:
    """Wake jobs that wait for a named limit in which time alone frees a permit."""
    log = structlog.get_logger("scheduler")
    await wake(context.publisher, await context.ledger.limits.wake_waiting(), log)


async def _forget_limits(context: DutyContext) -> None:
    limits = context.ledger.limits
    await SmallSteps.yielding_to_hot_jobs(context.ledger).remove_all(
        lambda limit: limits.forget_idle_limits(limit=limit)
    )


async def _remove_old_archive(context: DutyContext, age: float) -> None:
    files = await remove_old(context.ledger, Storage(context.settings.files_url), age)
    if files:
        structlog.get_logger("scheduler").info("old files of the archive removed", files=len(files))


def bulk_handlers(
    settings: Settings, registry: Registry, ledger: Ledger, modules: Iterable[str]
) -> list[BulkHandler]:
    """Return a handler for each kind of bulk operation; `modules` may declare sources of backfills.
    Raises InvalidBackfill."""
    traffic = HotTraffic(ledger.workers)
    return [
        BackfillHandler(settings, registry, ledger, Sources.load(modules), traffic=traffic),
        RedriveHandler(settings, registry, ledger, traffic=traffic),
        PurgeHandler(settings, ledger),
        *action_handlers(settings, registry, ledger, traffic=traffic),
    ]

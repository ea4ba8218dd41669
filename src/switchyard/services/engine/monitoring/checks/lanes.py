"""Check the lanes: they have room, workers consume them, and the broker still has the jobs that the
ledger lists as waiting.

Deleting or purging a queue deletes its jobs, also those in a retry queue that wait for their next
attempt. The broker tells nobody, and the ledger would list them as waiting for ever.
"""

from __future__ import annotations

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.broker.lanes import retry_name
from switchyard.broker.wire.depths import query_queues
from switchyard.broker.wording import pluralize
from switchyard.services.common.durations import duration_text
from switchyard.services.engine.monitoring.check import (
    Diagnostic,
    Finding,
    failure,
    first_few,
    ok,
    warning,
)
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.checks.workers import (
    advice,
    advise_on_causes,
    advise_on_held_jobs,
)
from switchyard.services.engine.monitoring.lane_report import (
    LanesReport,
    QueueReport,
    make_lane_report,
)
from switchyard.services.engine.monitoring.pressure_thresholds import LLM_WORKER
from switchyard.services.engine.records.results import WorkerRecord

FILLING_PERCENT = 80.0
"""Percent of a queue's limit from which the doctor warns."""
STALLED_SECONDS = 60.0
"""Seconds that a job may wait while slots are free."""


async def lanes(context: DoctorContext) -> list[Diagnostic]:
    """Check every queue of every lane."""
    report = await make_lane_report(context.settings, context.registry, None, clock=context.now)
    queues = [queue for lane in report.lanes if lane.priority is not None for queue in lane.queues]
    diagnostics = (
        await _check_full(context, queues)
        + await _check_unworked(context, queues)
        + await missing_jobs(context, report)
    )
    waiting = sum(queue.ready for queue in queues)
    worked = "" if context.ledger is None else ", and every queue with jobs is worked"
    return diagnostics or [ok("lanes", f"{_count_waiting(waiting)}, there is room{worked}")]


async def _check_full(context: DoctorContext, queues: list[QueueReport]) -> list[Diagnostic]:
    checks = []
    full = [queue for queue in queues if (queue.percent_full or 0) >= 100]
    filling = [queue for queue in queues if FILLING_PERCENT <= (queue.percent_full or 0) < 100]
    for diagnose, affected, finding, what in (
        (failure, full, Finding.LANE_FULL, "is full and takes no new jobs"),
        (warning, filling, Finding.LANE_FILLING, "fills up"),
    ):
        if affected:
            detail = first_few(
                [f"{each.name} {what}: {each.ready:,} of {each.limit:,}" for each in affected]
            )
            # More workers do not help where nothing can run.
            remedy = (
                advise_on_causes(context)
                or await _advise_on_pauses(context, affected)
                or _advise_on_room(affected)
            )
            checks.append(diagnose("lanes", finding, detail, remedy))
    return checks


async def _advise_on_pauses(context: DoctorContext, queues: list[QueueReport]) -> str | None:
    """Return the advice where one of these queues, or its lane, is paused."""
    if context.ledger is None:
        return None
    names = {name for each in queues for name in (each.name, each.name.partition(".")[0])}
    for pause in (await context.ledger.pauses.active()).pauses:
        if pause.target in names:
            return f"{pause} is paused: as soon as it need not be any more, {pause.remedy}"
    return None


def _advise_on_room(queues: list[QueueReport]) -> str:
    """Return the advice to make room in these queues."""
    others = [each for each in queues if _worker_kind(each) != LLM_WORKER]
    remedies = []
    if others:
        remedies.append(f"more workers: `jobctl worker {_worker_kinds(others)} --concurrency 8`")
    if len(others) < len(queues):  # its workers wait for servers; more of them wait, too
        remedies.append(
            "`jobctl llm status` shows whether a server is paused or at its limit: publish less "
            "until it has caught up, or add a server"
        )
    return "; ".join(remedies)


async def _check_unworked(context: DoctorContext, queues: list[QueueReport]) -> list[Diagnostic]:
    """Check for queues without consumers, whose workers are all silent, or with idle workers."""
    if context.ledger is None:
        return []  # without a ledger no worker takes jobs: more workers would not help
    checks = []
    occupied = [queue for queue in queues if queue.ready or queue.unacked]
    unworked = [queue for queue in occupied if queue.ready and not queue.consumers]
    if unworked:
        detail = first_few(
            [
                f"{_count_waiting(each.ready)} in {each.name}, and no worker takes them"
                for each in unworked
            ]
        )
        remedy = f"start `jobctl worker {_worker_kinds(unworked)}`"
        checks.append(failure("consumers", Finding.QUEUE_UNWORKED, detail, remedy))
    alive, silent = await context.workers()
    alive_kinds = {kind for worker in alive for kind in worker.kinds}
    frozen = [
        each for each in occupied if each not in unworked and _worker_kind(each) not in alive_kinds
    ]
    remaining = [each for each in occupied if each.ready and each not in unworked + frozen]
    checks += await _check_stalled(context, remaining, alive)
    if frozen:
        kinds = {_worker_kind(each) for each in frozen}
        silent_workers = [worker for worker in silent if kinds & set(worker.kinds)]
        detail = first_few(
            [
                f"{pluralize(each.ready + (each.unacked or 0), 'job is', 'jobs are')} in "
                f"{each.name}, whose workers give no sign of life"
                for each in frozen
            ]
        )
        start = f"start `jobctl worker {_worker_kinds(frozen)}`"
        remedy = advise_on_held_jobs(context, _worker_kinds(frozen)) if silent_workers else start
        checks.append(failure("consumers", Finding.QUEUE_FROZEN, detail, remedy))
    return checks


async def _check_stalled(
    context: DoctorContext, queues: list[QueueReport], alive: list[WorkerRecord]
) -> list[Diagnostic]:
    """Check for queues whose jobs wait although all their workers have free slots."""
    if not queues:
        return []
    oldest = (await context.need_ledger().gauges.gauges()).oldest
    busy = await context.running_by_worker()
    checks = []
    for queue in queues:
        lane, _, kind = queue.name.partition(".")
        waited = context.now() - oldest.get((lane, kind), context.now())
        workers = [each for each in alive if kind in each.kinds]
        # One slot of each may be kept for the most urgent lane.
        idle = all(busy[each.worker_id] < each.concurrency - 1 for each in workers)
        if waited > STALLED_SECONDS and idle:
            detail = (
                f"{_count_waiting(queue.ready)} in {queue.name}, the oldest for "
                f"{duration_text(waited)}, although all its workers have free slots"
            )
            remedy = await advice(context, workers)
            checks.append(failure("consumers", Finding.QUEUE_STALLED, detail, remedy))
    return checks


def _worker_kind(queue: QueueReport) -> str:
    return queue.name.partition(".")[2]


def _worker_kinds(queues: list[QueueReport]) -> str:
    return " ".join(sorted({_worker_kind(queue) for queue in queues}))


def _count_waiting(number: int) -> str:
    return pluralize(number, "job waits", "jobs wait")


UNCHANGED_SECONDS = 60.0
"""Seconds since the last change of a job in the ledger after which the broker's numbers must
include it."""


async def missing_jobs(context: DoctorContext, report: LanesReport) -> list[Diagnostic]:
    """Check for queues with fewer jobs on the broker than the ledger lists as waiting. The ledger
    is read last, so that jobs that have started meanwhile do not count as waiting."""
    queues = [queue for lane in report.lanes if lane.priority is not None for queue in lane.queues]
    [dead] = [queue for lane in report.lanes if lane.priority is None for queue in lane.queues]
    if context.ledger is None or report.management_error is not None:
        return []
    elsewhere = await _in_retry_queues(context) + await _unread_letters(context, dead)
    # Read again, for jobs that came back from a retry queue between the two readings.
    ready_again = await _ready_by_queue(context, [queue.name for queue in queues])
    waiting = await context.ledger.gauges.queued_since(context.now() - UNCHANGED_SECONDS)
    short_queues = []
    for queue in queues:
        lane, _, kind = queue.name.partition(".")
        number = waiting.get((lane, kind), 0)
        on_broker = max(queue.ready, ready_again[queue.name]) + (queue.unacked or 0) + elsewhere
        if queue.exists and number > on_broker:
            short_queues.append(
                (lane, f"{on_broker:,} of {pluralize(number, 'job')} of {queue.name}")
            )
    if not short_queues:
        return []
    lanes = list(dict.fromkeys(lane for lane, _ in short_queues))
    commands = " and ".join(f"`jobctl jobs republish --lane {lane}`" for lane in lanes)
    examples = first_few([text for _, text in short_queues])
    return [
        failure(
            "missing jobs",
            Finding.JOBS_MISSING,
            f"the broker holds no more than {examples}, which wait by the ledger: somebody deleted "
            "or purged their queue, or the one of retries that they were in",
            f"{commands}: publishes them again, and a job that is there after all runs only once",
        )
    ]


async def _in_retry_queues(context: DoctorContext) -> int:
    """Return how many jobs wait in retry queues for their next attempt."""
    names = [retry_name(delay) for delay in context.settings.retry_delays]
    return sum((await _ready_by_queue(context, names)).values())


async def _ready_by_queue(context: DoctorContext, names: list[str]) -> dict[str, int]:
    depths = await query_queues(context.settings.require_amqp_url(), names)
    return {name: 0 if each is None else each.ready for name, each in depths.items()}


async def _unread_letters(context: DoctorContext, dead: QueueReport) -> int:
    """Return how many dead letters the ledger has not indexed, or are displaced: their jobs may
    still be queued in the ledger."""
    dead_counts = (await context.need_ledger().gauges.gauges()).dead
    indexed = sum(
        number for (_, reason), number in dead_counts.items() if reason != Reason.DISPLACED
    )
    return max(0, dead.ready - indexed)

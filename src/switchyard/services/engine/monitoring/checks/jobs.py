"""Check jobs: those that run or wait too long, dead letters, stopped operations, pauses, retention,
the archive, and schedules."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from switchyard.broker.dead.dead_letter_headers import UNBOUND, Reason
from switchyard.broker.wording import pluralize
from switchyard.services.common.durations import duration_text
from switchyard.services.common.files.errors import StorageUnavailable
from switchyard.services.common.files.storage import Storage
from switchyard.services.engine.archive.contents import read_contents
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.check import (
    Diagnostic,
    Finding,
    failure,
    first_few,
    ok,
    warning,
)
from switchyard.services.engine.monitoring.checks.doctor_context import MAX_EXAMINED, DoctorContext
from switchyard.services.engine.monitoring.checks.workers import advice
from switchyard.services.engine.monitoring.lane_report import count_unlisted_letters
from switchyard.services.engine.monitoring.schedule_status import lateness
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.records.pauses import PauseRecord
from switchyard.services.engine.records.requests import DeadLetterFilter, JobFilter
from switchyard.services.engine.records.results import DeadGroup, JobSummary
from switchyard.services.engine.records.retention import RetentionAges
from switchyard.services.engine.records.schedules import FiringOutcome
from switchyard.services.engine.records.states import State

RECENT_SECONDS = 3600.0
"""Seconds for which a time-out of a job is reported."""
TIMEOUT_GRACE = 30.0
"""Seconds after its time limit from which a running job is reported."""
CANCEL_GRACE = 30.0
"""Seconds after its cancellation from which a running job is reported."""
PENDING_GRACE = 60.0
"""Seconds from which a recorded but unpublished job is reported. By then the broker has refused it
many times: the scheduler publishes it every half second, from 15 s on."""
STOPPED_SECONDS = 7 * 24 * 3600.0
"""Seconds for which a stopped backfill or redrive is reported."""
REMOVAL_GRACE = 24 * 3600.0
"""Seconds beyond its retention age after which a removable job is reported."""
ARCHIVE_TIMEOUT = 20.0
"""Seconds to list the archive."""
LEFTOVER_SECONDS = 3600.0
"""Seconds after which an unregistered file is left over from an interrupted step, and not of one
under way."""
GROWING_SECONDS, GROWING_LETTERS = 900.0, 20
"""Seconds, and new dead letters within them from which the doctor reports more than a few bad
jobs."""


async def pauses(context: DoctorContext) -> list[Diagnostic]:
    """Report the pauses in force."""
    ledger = context.need_ledger()
    held = await ledger.pauses.held_by_pause()
    if not held:
        return [ok("pauses", "nothing is paused")]
    now = ledger.clock.time()
    examples = first_few([_describe_pause(pause, number, now) for pause, number in held])
    remedy = f"nothing, if that is meant; else {held[0][0].remedy}: `jobctl pauses` lists all"
    return [warning("pauses", Finding.PAUSED, examples, remedy)]


def _describe_pause(pause: PauseRecord, number: int, now: float) -> str:
    lasted = duration_text(now - pause.created_at)
    ends = "" if pause.ends_at is None else f", ends in {duration_text(pause.ends_at - now)}"
    reason = f" ({pause.reason})" if pause.reason else ""
    return (
        f"{pause} has been paused for {lasted} by {pause.created_by}{reason}{ends}"
        f", and holds {pluralize(number, 'job')}"
    )


async def retention(context: DoctorContext) -> list[Diagnostic]:
    """Check that jobs are removed once they are old enough."""
    ledger = context.need_ledger()
    ages = RetentionAges.of(context.settings)
    number = await ledger.retention.overdue(ages, by=REMOVAL_GRACE, sample=MAX_EXAMINED)
    if number:
        many = " or more" if number >= MAX_EXAMINED else ""
        detail = (
            f"{pluralize(number, 'job')}{many} should have been removed for more than a day by the "
            "JOBS_KEEP_… settings of this process"
        )
        remedy = (
            "run `jobctl scheduler`, with the same settings as here; `jobctl prune --dry-run` "
            "counts them, `jobctl prune` removes them now"
        )
        return [warning("retention", Finding.RETENTION_BEHIND, detail, remedy)]
    oldest = await ledger.retention.oldest_job()
    if oldest is None:
        return []
    age = duration_text(ledger.clock.time() - oldest)
    return [ok("retention", f"the oldest job is {age} old, and none stays beyond its age")]


async def archive(context: DoctorContext) -> list[Diagnostic]:
    """Check for files of the archive that are missing, damaged or not registered."""
    ledger, storage = context.need_ledger(), Storage(context.settings.files_url)
    try:
        async with asyncio.timeout(ARCHIVE_TIMEOUT):
            contents = await read_contents(ledger, storage)
    except (TimeoutError, StorageUnavailable):
        return []  # the check of the storage reports it
    diagnostics = []
    if contents.missing:
        number = pluralize(len(contents.missing), "file")
        detail = (
            f"{number} missing, or damaged: {first_few([file.key for file in contents.missing])}"
        )
        remedy = (
            "is JOBS_STORAGE_URL right? Put them back from a backup; where they are lost, remove "
            "what is left of them, and then `jobctl archive forget`: queries go on without them"
        )
        diagnostics.append(failure("archive", Finding.ARCHIVE_DAMAGED, detail, remedy))
    modified_before = ledger.clock.time() - LEFTOVER_SECONDS
    left = [each.key for each in contents.leftovers if each.modified.timestamp() < modified_before]
    if left:
        detail = f"{pluralize(len(left), 'file')} of an interrupted step: {first_few(left)}"
        remedy = "delete them from the storage: nobody reads them, and their jobs are in the ledger"
        diagnostics.append(warning("archive", Finding.ARCHIVE_LEFTOVER, detail, remedy))
    if contents.files and not diagnostics:
        diagnostics.append(ok("archive", f"{pluralize(len(contents.files), 'file')}, all there"))
    return diagnostics


async def timeouts(context: DoctorContext) -> list[Diagnostic]:
    """Check for job types whose jobs exceed their time limit."""
    ledger = context.need_ledger()
    timeouts_by_type = await ledger.job_reads.timed_out(ledger.clock.time() - RECENT_SECONDS)
    if not timeouts_by_type:
        return [ok("time limits", "no job has run into its limit within an hour")]
    examples = first_few(
        [
            f"{pluralize(number, 'job')} of {name} ran into the time limit{_limit(context, name)} "
            "within an hour, and have not succeeded since"
            for name, number in timeouts_by_type.items()
        ]
    )
    name = next(iter(timeouts_by_type))
    remedy = (
        "see what they wait for (`jobctl jobs list --type "
        f"{name}`), or raise `timeout` in their @job and start their workers again; then "
        f"`jobctl dead redrive --type {name} --yes`"
    )
    return [failure("time limits", Finding.TYPE_TIMES_OUT, examples, remedy)]


def _limit(context: DoctorContext, name: str) -> str:
    job_type = context.registry.find_publishable(name)
    return "" if job_type is None else f" of {job_type.timeout:g} s"


async def overdue(context: DoctorContext) -> list[Diagnostic]:
    """Check for jobs that run beyond their time limit."""
    ledger = context.need_ledger()
    page = await ledger.job_reads.list_jobs(JobFilter(state=State.RUNNING), limit=MAX_EXAMINED)
    late = [job for job in page.items if _is_late(context, job, ledger.clock.time())]
    if not late:
        return [ok("running jobs", "none runs longer than its type may")]
    examples = first_few([f"{job.job_type} {job.id} on {job.worker_id}" for job in late])
    remedy = (
        "the worker's log says whether the handler goes on, or its end can't be published or "
        f"recorded: {await _advise_on_workers(context, late)}; another worker takes the job over; "
        'isolation="process" lets a handler be killed at its limit'
    )
    return [
        failure(
            "running jobs", Finding.JOB_OVERDUE, f"beyond their time limit run: {examples}", remedy
        )
    ]


async def _advise_on_workers(context: DoctorContext, running: list[JobSummary]) -> str:
    """Return the advice for the workers that run these jobs."""
    workers = {each.worker_id: each for each in await context.need_ledger().workers.list_workers()}
    ids = dict.fromkeys(job.worker_id for job in running)
    return await advice(context, [workers[each] for each in ids if each in workers], start=False)


async def cancels(context: DoctorContext) -> list[Diagnostic]:
    """Check for cancelled jobs that still run."""
    ledger = context.need_ledger()
    now = ledger.clock.time()
    running = await ledger.job_reads.ignored_cancels(now - CANCEL_GRACE, MAX_EXAMINED)
    if not running:
        return [ok("cancelled jobs", "none runs on")]
    examples = first_few(
        [
            f"{job.job_type} {job.id} on {job.worker_id}, for "
            f"{duration_text(now - job.cancel_asked_at)}"
            for job in running
            if job.cancel_asked_at is not None
        ]
    )
    remedy = (
        f"tell its worker again: `jobctl jobs cancel {running[0].id}`; where that does not help: "
        f"{await _advise_on_workers(context, running)}; nobody runs the job again"
    )
    return [
        failure(
            "cancelled jobs",
            Finding.CANCEL_UNHEEDED,
            f"cancelled, and still running: {examples}",
            remedy,
        )
    ]


def _is_late(context: DoctorContext, job: JobSummary, now: float) -> bool:
    job_type = context.registry.find_publishable(job.job_type)
    if job_type is None or job.started_at is None:
        return False
    return now - job.started_at > job_type.timeout + TIMEOUT_GRACE


async def joins(context: DoctorContext) -> list[Diagnostic]:
    """Check for jobs that wait only for dead jobs."""
    stuck = await context.need_ledger().joins.stuck_joins(MAX_EXAMINED)
    if not stuck:
        return [ok("joins", "no job waits for dead ones alone")]
    examples = first_few(
        [f"{each.id} waits for {each.dead:,} dead of {each.total:,}" for each in stuck]
    )
    remedy = (
        f"look: `jobctl jobs show {stuck[0].id}`; redrive the dead, or without them: "
        f"`jobctl jobs release {stuck[0].id}`"
    )
    return [warning("joins", Finding.JOIN_STUCK, examples, remedy)]


async def outbox(context: DoctorContext) -> list[Diagnostic]:
    """Check for recorded jobs that the broker does not accept at present."""
    ledger = context.need_ledger()
    now = ledger.clock.time()
    late = await ledger.job_reads.late_pending(now - PENDING_GRACE)
    if not late:
        return [ok("outbox", "no job waits for over a minute to be published")]
    examples = first_few(
        [
            f"{pluralize(number, 'job')} of {key}, for {duration_text(now - at)}"
            for key, number, at in late
        ]
    )
    remedy = (
        "no worker is at fault. `jobctl scheduler` publishes them and logs why it can't (`not "
        "published`): a full lane (`jobctl lanes`), a missing queue (`jobctl topology apply`), a "
        "broker's user who may not publish (`jobctl topology users`), an alarm (above). To give "
        "one up: `jobctl jobs list --state pending`, then `jobctl jobs cancel ID`"
    )
    return [failure("outbox", Finding.JOBS_PENDING, f"not taken by the broker: {examples}", remedy)]


async def operations(context: DoctorContext) -> list[Diagnostic]:
    """Check for backfills or redrives that have failed or halted within a week."""
    ledger = context.need_ledger()
    page = await ledger.bulk.list_bulk(states=(BulkState.FAILED, BulkState.HALTED))
    since = ledger.clock.time() - STOPPED_SECONDS
    stopped = [each for each in page.items if each.updated_at >= since]
    if not stopped:
        return [ok("operations", "no backfill or redrive has stopped by itself within a week")]
    detail = first_few(
        [f"{each.id} has {each.state}: {each.note or 'no reason is known'}" for each in stopped]
    )
    command = "backfill" if stopped[0].kind == "backfill" else "dead redrives"
    remedy = (
        f"`jobctl {command} show {stopped[0].id}`; when the reason is gone, `jobctl {command} "
        f"resume {stopped[0].id}`; to give it up, `jobctl {command} cancel {stopped[0].id}`"
    )
    return [warning("operations", Finding.OPERATION_STOPPED, detail, remedy)]


def _refused_letters(number: int) -> Diagnostic:
    """Return the diagnostic for dead jobs whose letters only the ledger has."""
    return warning(
        "refused jobs",
        Finding.JOBS_REFUSED,
        f"the broker never takes the messages of {pluralize(number, 'job')}, which are dead: too "
        "large for it, or not to be put into AMQP; the ledger has their letters",
        "why: `jobctl dead groups`; make the input smaller (large ones go to storage), or raise "
        "`max_message_size` of the broker, then `jobctl dead redrive --reason refused "
        "--from-ledger`",
    )


async def dead(context: DoctorContext) -> list[Diagnostic]:
    """Check for dead letters: displaced, refused, unlisted, and those that wait for an operator."""
    ledger = context.need_ledger()
    count = ledger.dead_letters.count_dead
    all_waiting = DeadLetterFilter(state="waiting")
    all_displaced = replace(all_waiting, reason=Reason.DISPLACED)
    displaced = await count(all_displaced)
    unbound = await count(replace(all_displaced, error_type=UNBOUND)) if displaced else 0
    checks = [_unbound(unbound)] if unbound else []
    if displaced > unbound:
        checks.append(_displaced_letters(displaced - unbound))
    refused = await count(replace(all_waiting, reason=Reason.REFUSED))
    checks += [_refused_letters(refused)] if refused else []
    waiting = await count(all_waiting) - displaced - refused
    unlisted = (
        0 if context.broker is None else await count_unlisted_letters(context.settings, ledger)
    )
    checks += [_unlisted_letters(unlisted)] if unlisted > 0 else []
    if waiting > 0:
        checks.append(await _waiting_letters(ledger, waiting, displaced, unlisted))
    elif unlisted <= 0:
        checks.append(ok("dead letters", "none waits"))
    return checks


async def _waiting_letters(
    ledger: Ledger, waiting: int, displaced: int, unlisted: int
) -> Diagnostic:
    """Return the diagnostic for dead letters that wait for an operator."""
    count = ledger.dead_letters.count_dead
    all_waiting = DeadLetterFilter(state="waiting")
    since = ledger.clock.time() - GROWING_SECONDS
    recent = replace(all_waiting, since=since)
    recent_count = await count(recent)
    is_growing = recent_count >= GROWING_LETTERS
    remedy = "look: `jobctl dead groups`; send back: `jobctl dead redrive --group ID`"
    detail = f"{waiting:,} {'waits' if waiting == 1 else 'wait'} for somebody"
    if is_growing:
        [largest] = await ledger.dead_letters.dead_groups(letter_filter=recent, limit=1)
        remedy = (
            "their causes: `jobctl dead groups`; mend the first, then `jobctl dead redrive --group "
            f"{largest.fingerprint}`"
        )
        detail = (
            f"{recent_count:,} jobs died within a quarter of an hour, {largest.count:,} of them "
            f"{_describe_group(largest)}; {detail}"
        )
    elif largest_waiting := await _largest_group(ledger):
        first = duration_text(ledger.clock.time() - largest_waiting.first_at)
        number = "all" if largest_waiting.count == waiting else f"{largest_waiting.count:,}"
        detail += f": {number} {_describe_group(largest_waiting)}, the first {first} ago"
        remedy = (
            "look: `jobctl dead groups`; mend the cause, then send them back: `jobctl dead redrive "
            f"--group {largest_waiting.fingerprint}`"
        )
    letter_count = waiting + displaced
    # A message may have been indexed twice: the broker's number counts where it is smaller.
    messages = await ledger.dead_letters.count_messages() + min(unlisted, 0)
    if messages > letter_count:
        detail += f", {messages:,} messages in jobs.dead: identical ones count once"
    if invalid := await count(replace(all_waiting, reason=Reason.INVALID_PAYLOAD)):
        detail += f"; of these, {invalid:,} had a payload that their worker did not accept"
        remedy += (
            "; was that worker older than the publisher? Then start the new one and `jobctl dead "
            "redrive --reason invalid_payload --canary 5`"
        )
    if messages < letter_count:
        detail += f"; the broker has lost {letter_count - messages:,} of these"
        remedy += "; what it has lost: `jobctl dead redrive --all --from-ledger`"
    if is_growing:
        return failure("dead letters", Finding.DEAD_GROWING, detail, remedy)
    return warning("dead letters", Finding.DEAD_WAITING, detail, remedy)


async def _largest_group(ledger: Ledger) -> DeadGroup | None:
    """Return the largest group of letters that wait for an operator; None where there is none."""
    groups = await ledger.dead_letters.dead_groups(
        letter_filter=DeadLetterFilter(state="waiting"), limit=3
    )
    of_others = (Reason.DISPLACED, Reason.REFUSED)  # reported by checks of their own
    return next((each for each in groups if each.sample.reason not in of_others), None)


def _describe_group(group: DeadGroup) -> str:
    job_type = f"of type {group.sample.job_type}" if group.sample.job_type else "of an unknown type"
    return f"{job_type} with {group.sample.error_type or group.sample.reason}"


def _unlisted_letters(number: int) -> Diagnostic:
    return warning(
        "unlisted letters",
        Finding.DEAD_UNLISTED,
        f"jobs.dead has {pluralize(number, 'message')} more than the ledger lists: no scheduler "
        "has indexed them yet, or the ledger was set back to an older copy",
        "list them: `jobctl dead index`",
    )


def _unbound(number: int) -> Diagnostic:
    return warning(
        "unbound jobs",
        Finding.DISPLACED,
        f"no queue was bound for {pluralize(number, 'accepted job')}",
        "make what is missing: `jobctl topology apply`. They go into their queues by themselves "
        "where a scheduler runs, as soon as these are there and have room",
    )


def _displaced_letters(number: int) -> Diagnostic:
    return warning(
        "displaced jobs",
        Finding.DISPLACED,
        f"the broker threw {number:,} out of full lanes that it had taken, as a restart does",
        "they go back by themselves where a scheduler runs and there is room: `jobctl lanes`",
    )


SCHEDULE_LATE = 60.0
"""Seconds after which a due schedule is reported: longer than a change of schedulers takes."""


async def schedules(context: DoctorContext) -> list[Diagnostic]:
    """Check for schedules that are overdue, or whose last job was refused."""
    ledger = context.need_ledger()
    entries = await ledger.schedules.schedules()
    if not entries:
        return []
    _, now = await ledger.schedules.due_schedules(1)
    waiting = await ledger.schedules.waiting_firings()
    last = await ledger.schedules.last_firings(settled=True)
    late = {
        name for name, since in lateness(entries, waiting, now).items() if since > SCHEDULE_LATE
    }
    checks = []
    if late:
        reasons = {name: each.note for name, each in waiting.items() if each.note is not None}
        names = [f"{name} ({reasons[name]})" if name in reasons else name for name in sorted(late)]
        remedy = "`jobctl scheduler`; where one runs, its log says why"
        if late <= reasons.keys():
            remedy = "mend what is said: it is tried again every few seconds"
        checks.append(
            failure(
                "schedules",
                Finding.SCHEDULE_OVERDUE,
                f"due and not fired for over {SCHEDULE_LATE:g} s: {first_few(names)}",
                remedy,
            )
        )
    refused = [each for each in last.values() if each.outcome is FiringOutcome.REFUSED]
    if refused:
        refused_names = first_few([f"{each.schedule} ({each.note})" for each in refused])
        checks.append(
            failure(
                "schedules",
                Finding.SCHEDULE_REFUSED,
                f"the last job was refused of {refused_names}",
                f"mend what is said, then `jobctl schedules run {refused[0].schedule}`",
            )
        )
    return checks or [ok("schedules", f"{len(entries):,} fire when they are due")]

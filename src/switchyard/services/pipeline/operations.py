"""What the document pipeline adds to running a system: periodic duties, default schedules and
doctor's checks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial

import structlog

from switchyard.services.common.durations import DAY
from switchyard.services.common.settings import Settings
from switchyard.services.engine.monitoring.check import Diagnostic, Finding, failure, ok, warning
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.doctor import DoctorStep
from switchyard.services.engine.scheduler.duties import DutyContext, PeriodicDuty
from switchyard.services.engine.scheduler.small_steps import SmallSteps
from switchyard.services.engine.schedules.entry import ScheduleEntry
from switchyard.services.pipeline.classes.class_definitions import BadClasses, read_definitions
from switchyard.services.pipeline.index.index_check import check_index
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.sources.throttle import pause_remaining

LONG_SOURCE_PAUSE = 120.0
"""A pause with at least this many seconds left is reported."""
_DOCUMENT_SERVERS = ("arxiv", "github", "huggingface")
_KEY_SETTINGS = {
    "openalex": "JOBS_OPENALEX_API_KEY",
    "github": "JOBS_GITHUB_TOKEN",
    "huggingface": "JOBS_HF_TOKEN",
}
"""The setting of each server's key, with which it answers more requests."""

DEFAULT_SCHEDULES = (
    ScheduleEntry(
        name="compute-similarity", cron="0 1 * * *", job="maintenance.compute_similarity"
    ),
    ScheduleEntry(name="recompute-graph", cron="30 2 * * *", job="maintenance.recompute_graph"),
    ScheduleEntry(name="compact-storage", cron="30 3 * * *", job="maintenance.compact_storage"),
    ScheduleEntry(name="cleanup-expired", cron="0 4 * * *", job="maintenance.cleanup_expired"),
)


def doctor_steps() -> Iterable[DoctorStep]:
    """Return the checks of the index, of the file of classes and of pauses that servers ask for."""
    return [
        DoctorStep(lambda system: check_index(system.settings), on_demand=True),
        DoctorStep(lambda system: check_class_definitions(system.settings), on_demand=True),
        DoctorStep(check_source_pauses, ledger=True),
    ]


async def check_source_pauses(system: DoctorContext) -> list[Diagnostic]:
    """Return a warning for each server of documents and each catalogue that has asked for a long
    pause."""
    ledger = system.need_ledger()
    checks = []
    for name in (*system.settings.link_catalogues, *_DOCUMENT_SERVERS):
        seconds_left = await pause_remaining(ledger, name)
        if seconds_left < LONG_SOURCE_PAUSE:
            continue
        pause_end = datetime.fromtimestamp(ledger.clock.time() + seconds_left, UTC)
        is_catalogue = name in system.settings.link_catalogues
        key_hint = (
            f"; with {_KEY_SETTINGS[name]} it answers more requests"
            if name in _KEY_SETTINGS
            else ""
        )
        checks.append(
            warning(
                "sources",
                Finding.SOURCE_PAUSED,
                f"{name} asked for a pause: nothing is sent to it until "
                f"{pause_end:%Y-%m-%d %H:%M:%S} UTC; "
                + (
                    "references are linked by the other catalogues meanwhile"
                    if is_catalogue
                    else "its jobs wait, and go on then"
                ),
                "wait"
                + (", then publish `link_citations` again" if is_catalogue else "")
                + key_hint,
            )
        )
    return checks


def periodic_duties(context: DutyContext) -> Iterator[PeriodicDuty]:
    """Return the duty that deletes answers of catalogues that are too old."""
    run = partial(_drop_catalogue_answers, context)
    yield PeriodicDuty("old catalogue answers", run, context.intervals.answers)


async def _drop_catalogue_answers(context: DutyContext) -> None:
    max_age = context.settings.link_answers_days * DAY
    answers = PipelineLedger(context.ledger).catalogue_answers
    deleted = await SmallSteps.yielding_to_hot_jobs(context.ledger).remove_all(
        lambda limit: answers.drop_catalogue_answers(max_age=max_age, limit=limit)
    )
    if deleted:
        count = deleted.total()
        structlog.get_logger("scheduler").info("catalogue answers deleted", answers=count)


async def check_class_definitions(settings: Settings) -> list[Diagnostic]:
    """Check that the file of JOBS_CLASSES can be used; without one there is nothing to check."""
    if settings.classes is None:
        return []
    try:
        definitions = await asyncio.to_thread(read_definitions, settings.classes)
    except BadClasses as error:
        remedy = "correct the file, then `jobctl dead redrive --type classify_document`"
        return [failure("classes", Finding.CLASSES_INVALID, str(error), remedy)]
    return [ok("classes", f"{str(settings.classes)!r} defines {', '.join(definitions.kinds)}")]

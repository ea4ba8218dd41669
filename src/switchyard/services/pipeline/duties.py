"""What the scheduler does for the document pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import structlog

from switchyard.services.common.durations import DAY
from switchyard.services.engine.scheduler.duties import DutyContext, PeriodicDuty
from switchyard.services.pipeline.ledger.ledger import PipelineLedger


def periodic_duties(context: DutyContext) -> Iterator[PeriodicDuty]:
    """Return the duties: delete catalogues' answers that are too old."""
    run = partial(_drop_catalogue_answers, context)
    yield PeriodicDuty("old catalogue answers", run, context.pace.answers)


async def _drop_catalogue_answers(context: DutyContext) -> None:
    max_age = context.settings.link_answers_days * DAY
    if number := await PipelineLedger(context.ledger).catalogue_answers.drop_catalogue_answers(
        max_age=max_age
    ):
        structlog.get_logger("scheduler").info("catalogue answers deleted", answers=number)

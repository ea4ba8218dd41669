"""What the scheduler does for the lane of language models."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import structlog

from switchyard.services.engine.scheduler.duties import DutyContext, PeriodicDuty
from switchyard.services.llm.answers import drop_old_answers
from switchyard.services.llm.batch_sending import BatchSender
from switchyard.services.llm.spending import tidy_spending


def periodic_duties(context: DutyContext) -> Iterator[PeriodicDuty]:
    """Return the duties: send and collect batches, delete what is too old."""
    sender = BatchSender(context.settings, context.ledger, context.publisher)
    yield PeriodicDuty("batches", sender.run)
    yield PeriodicDuty("old answers", partial(_drop_answers, context), context.pace.answers)


async def _drop_answers(context: DutyContext) -> None:
    """Delete models' answers and records of cost that are too old, or too many."""
    log = structlog.get_logger("scheduler")
    if number := await drop_old_answers(context.settings, context.ledger):
        log.info("model answers deleted", answers=number)
    if number := await tidy_spending(context.settings, context.ledger):
        log.info("cost records deleted", calls=number)

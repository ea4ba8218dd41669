"""Estimate the cost of a backfill's jobs, where a wing can, and check it against the budget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import JobType
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.wings import brought


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The most that a backfill's calls of language models are likely to come to."""

    jobs: int | None
    """Jobs that it would publish; None where the source does not know: then the other numbers are
    for one job."""
    input_tokens: int
    output_tokens: int
    cost: float | None
    """At the most expensive server of the lowest order; None where that has no price."""
    currency: str
    assumption: str


CostEstimator = Callable[[Settings, JobType, Sequence[NewJob], int | None], CostEstimate | None]
"""Guesses from settings, job type, first jobs and their total number; None for jobs that are not
the wing's."""
BudgetCheck = Callable[[Settings, Ledger, str, bool], Awaitable[str | None]]
"""Says, for settings, ledger, operation id and whether its jobs ask models, what keeps more jobs
from being paid for; None where nothing does."""


def estimate_cost(
    settings: Settings, job_type: JobType, jobs: Sequence[NewJob], total: int | None
) -> CostEstimate | None:
    """Guess the cost of a backfill by its first jobs; None where no wing knows any."""
    estimators: list[CostEstimator] = list(brought("cost_estimate"))
    estimates = (estimate(settings, job_type, jobs, total) for estimate in estimators)
    return next((each for each in estimates if each is not None), None)


async def find_short_budget(
    settings: Settings, ledger: Ledger, operation_id: str, *, asks_models: bool
) -> str | None:
    """Say which budget has too little left for more jobs; None where none has. Raises
    LedgerError."""
    checks: list[BudgetCheck] = list(brought("short_budget"))
    for check in checks:
        if (short := await check(settings, ledger, operation_id, asks_models)) is not None:
            return short
    return None

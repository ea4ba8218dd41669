"""Estimate the cost of a backfill's jobs, where a wing can, and check it against the budget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import JobType
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.wings import load_contributions


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Estimated upper bound of the cost of a backfill's calls of language models."""

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
"""Estimates from settings, job type, first jobs and their total number; returns None for jobs of
other wings."""
BudgetCheck = Callable[[Settings, Ledger, str, bool], Awaitable[str | None]]
"""Describes, for settings, ledger, operation id and whether its jobs ask models, a budget that is
too low for more jobs; returns None where none is."""


def estimate_cost(
    settings: Settings, job_type: JobType, jobs: Sequence[NewJob], total: int | None
) -> CostEstimate | None:
    """Estimate the cost of a backfill from its first jobs; None where no wing knows it."""
    estimators: list[CostEstimator] = list(load_contributions("cost_estimate"))
    estimates = (estimate(settings, job_type, jobs, total) for estimate in estimators)
    return next((each for each in estimates if each is not None), None)


async def find_short_budget(
    settings: Settings, ledger: Ledger, operation_id: str, *, asks_models: bool
) -> str | None:
    """Describe a budget that is too low for more jobs; None where none is. Raises LedgerError."""
    checks: list[BudgetCheck] = list(load_contributions("short_budget"))
    for check in checks:
        if (short := await check(settings, ledger, operation_id, asks_models)) is not None:
            return short
    return None

"""Estimate the cost of a backfill's calls of language models before it starts.

Only the first jobs are known. The estimate assumes that every other job is like them, that every
answer is as long as allowed, and that no answer is stored already. It is an upper bound if the
first items are typical and the servers of the lowest order answer: it counts neither a dearer
server that answers in their place, nor a second request for a late answer. Documents are not
read for an estimate: each text counts as the longest that a model gets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pydantic import BaseModel

from switchyard.services.common.settings import Settings
from switchyard.services.engine.backfill.costs import CostEstimate
from switchyard.services.engine.jobs.registry import JobType
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.llm.budget_account import max_usage_of
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.llm_requests import LlmQuestion, LlmRequest

_ASSUMPTION = (
    "every item is like the average of the first {number}, a question has a token for 3 bytes, "
    "answers are as long as they may be (max_tokens), and none is stored already"
)


def estimate(
    settings: Settings, job_type: JobType, jobs: Sequence[NewJob], total: int | None
) -> CostEstimate | None:
    """Estimate the cost of a backfill from its first jobs; None if they ask no model
    themselves."""
    if not jobs or not issubclass(job_type.payload_model, LlmRequest):
        return None
    questions = [_question_of(job_type.payload_model, job) for job in jobs]
    usages = [max_usage_of(each.request_body()) for each in questions]
    models = {each.model for each in questions}
    assumption = _ASSUMPTION.format(number=len(jobs))
    return estimate_from_usages(settings, usages, total, assumption, models)


def estimate_from_usages(
    settings: Settings,
    usages: Sequence[Mapping[str, int]],
    total: int | None,
    assumption: str,
    models: Collection[str | None] = (None,),
) -> CostEstimate | None:
    """Estimate the cost of `total` calls with the mean of these usages; None without servers. Of
    several models, the dearest counts; None is the model of the first servers."""
    if not settings.llm_servers:
        return None
    mean_usage = {name: sum(each[name] for each in usages) / len(usages) for name in usages[0]}
    usage = {
        name: round(each * (1 if total is None else total)) for name, each in mean_usage.items()
    }
    return CostEstimate(
        total,
        usage["prompt_tokens"],
        usage["completion_tokens"],
        _max_cost(settings, usage, models),
        settings.prices.currency,
        assumption,
    )


async def short_budget_note(
    settings: Settings, ledger: Ledger, backfill_id: str, asks_models: bool
) -> str | None:
    """Say which budget, of a backfill or of the day, had too little left for the last call that
    needed it; None if all had enough. Raises LedgerError."""
    prefixes = ("day:", f"backfill:{backfill_id}")
    per_day = settings.llm_budget_per_day if asks_models else None
    for budget in await LlmLedger(ledger).spending.llm_budgets(per_day=per_day):
        if budget.is_short and budget.key.startswith(prefixes):
            return f"{budget.name} has too little left"
    return None


def _question_of(model: type[BaseModel], job: NewJob) -> LlmQuestion:
    request = model.model_validate(job.message.payload)
    assert isinstance(request, LlmRequest)
    return request.question()


def _max_cost(
    settings: Settings, usage: dict[str, int], models: Collection[str | None]
) -> float | None:
    """Return the highest cost at the servers that are asked first for these models; None where the
    price of one is not known, or no server has a model."""
    costs = []
    for model in models:
        servers_of_model = [each for each in settings.llm_servers if each.serves(model)]
        lowest_order = min((each.order for each in servers_of_model), default=None)
        prices = [
            settings.prices.of(each.model)
            for each in servers_of_model
            if each.order == lowest_order
        ]
        if not prices or None in prices:
            return None
        costs += [price.cost(usage) for price in prices if price is not None]
    return max(costs)

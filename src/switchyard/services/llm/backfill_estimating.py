"""What a backfill's calls of language models will come to, guessed before it starts.

Known is what its first jobs would ask. So the guess takes all others for such as these, answers for
as long as they may be, and nothing for answered before: it is an upper bound where the first items
are typical. Of documents' texts, which nobody reads for a guess, it takes as much as is ever shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import JobType
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.llm.prompts import SUMMARY_MAX_TOKENS, summary_messages
from switchyard.services.llm.requests import LlmRequest
from switchyard.services.llm.spending import most_tokens
from switchyard.services.pipeline.workers.llm import TEXT_BUDGET

SUMMARY = "summarize_content"
_OF_REQUESTS = (
    "every item is taken for the average of the first {number}, a token for 3 bytes of a question, "
    "answers as long as they may be (max_tokens), and none is there already"
)
_OF_SUMMARIES = (
    f"every document is taken for one of {TEXT_BUDGET:,} characters or more, summaries as long as "
    "they may be, and none is there already"
)


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The most that a backfill's calls are likely to come to."""

    jobs: int | None
    """All that it would publish; None where the source does not know: the rest is for one job."""
    input_tokens: int
    output_tokens: int
    cost: float | None
    """At the most expensive server of the lowest order; None where that has no price."""
    currency: str
    assumption: str


def estimate(
    settings: Settings, job_type: JobType, jobs: Sequence[NewJob], total: int | None
) -> CostEstimate | None:
    """The guess by a backfill's first jobs; None for jobs that ask no model themselves."""
    if not jobs or not settings.llm_servers:
        return None
    if issubclass(job_type.payload_model, LlmRequest):
        found = [_of_request(job_type.payload_model, job) for job in jobs]
        assumption = _OF_REQUESTS.format(number=len(jobs))
    elif job_type.name == SUMMARY:
        asked = {"messages": summary_messages("", "x" * TEXT_BUDGET)}
        found = [most_tokens({**asked, "max_tokens": SUMMARY_MAX_TOKENS})]
        assumption = _OF_SUMMARIES
    else:
        return None
    usage = {name: sum(each[name] for each in found) / len(found) for name in found[0]}
    whole = {name: round(each * (1 if total is None else total)) for name, each in usage.items()}
    return CostEstimate(
        total,
        whole["prompt_tokens"],
        whole["completion_tokens"],
        _most(settings, whole),
        settings.prices.currency,
        assumption,
    )


def _of_request(model: type[BaseModel], job: NewJob) -> dict[str, int]:
    request = model.model_validate(job.message.payload)
    assert isinstance(request, LlmRequest)
    return most_tokens(request.question().asked())


def _most(settings: Settings, usage: dict[str, int]) -> float | None:
    first = min(each.order for each in settings.llm_servers)
    prices = settings.prices
    costs = []
    for server in settings.llm_servers:
        price = prices.of(server.model)
        if server.order == first:
            if price is None:
                return None
            costs.append(price.cost(usage))
    return max(costs)

"""Describe calls that ask language models, and that read answers and costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from switchyard.api.client.call import Call, get, in_path, operation, without_none
from switchyard.api.client.times import Day, day
from switchyard.api.models import llm as models
from switchyard.services.llm.records.llm_spend import SpentBy

_TRANSFER_TIMEOUT = 30.0
"""Seconds that an answer may take to arrive, after the `wait` for it."""


class AskStreamOptions(TypedDict, total=False):
    """The keyword arguments of `ask`, without `wait`, for a streamed answer."""

    type: str | None
    lane: Literal["hot", "backfill"] | None
    priority: int | None
    expires_in: float | None
    source: str | None
    idempotency_key: str | None


@operation("llm-ask")
def ask(
    payload: Mapping[str, Any],
    *,
    type: str | None = None,  # noqa: A002 - the field's name
    lane: Literal["hot", "backfill"] | None = None,
    priority: int | None = None,
    expires_in: float | None = None,
    wait: float | None = None,
    source: str | None = None,
    idempotency_key: str | None = None,
) -> Call[models.AnswerOfModel]:
    """Ask a language model; the result has the answer if it came within `wait` seconds. With an
    `idempotency_key`, a repeated call does not ask the model again, so it may be retried."""
    body = {
        "payload": dict(payload),
        "type": type,
        "lane": lane,
        "priority": priority,
        "expires_in": expires_in,
        "wait": wait,
        "source": source,
    }
    read = models.AnswerOfModel.model_validate_json
    return Call(
        "POST",
        "/llm/requests",
        read,
        headers=without_none({"Idempotency-Key": idempotency_key}),
        json=without_none(body),
        repeatable=idempotency_key is not None,
        read_timeout=_read_timeout(wait),
    )


@operation("llm-answer")
def answer(job_id: str, *, wait: float | None = None) -> Call[models.AnswerOfModel]:
    """Return the answer to an earlier question, or its state."""
    return Call(
        "GET",
        f"/llm/requests/{in_path(job_id)}",
        models.AnswerOfModel.model_validate_json,
        {"wait": wait},
        repeatable=True,
        read_timeout=_read_timeout(wait),
    )


@operation("llm-spend")
def llm_spend(
    *,
    by: SpentBy | None = None,
    since: Day | None = None,
    until: Day | None = None,
    limit: int | None = None,
) -> Call[models.SpendReport]:
    """Show the cost of language model calls, and what is left of the budgets."""
    return get(
        "/llm/spend",
        models.SpendReport,
        by=by,
        since=day("since", since),
        until=day("until", until),
        limit=limit,
    )


def _read_timeout(wait: float | None) -> float | None:
    return wait + _TRANSFER_TIMEOUT if wait else None

"""Limits of API keys on the OpenAI-compatible API: models, priority, rates, budgets.

This is the one place for all endpoints below `/v1`. A key without limits costs no query of the
ledger.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import structlog
from fastapi import Depends, Request

from switchyard.api.http.problems import Problem
from switchyard.api.llm.llm_endpoints import priority_or_default
from switchyard.api.middleware.openai_error_rewriter import LIMIT_HEADERS_KEY
from switchyard.api.state import ApiState, Shared
from switchyard.services.engine.access.api_keys import Principal
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.system import KeyAllowance, KeyLimits
from switchyard.services.llm.budget_account import ANSWER_LIMITS, max_usage_of
from switchyard.services.llm.ledger import LlmLedger

NO_RETRY = {"x-should-retry": "false"}
"""Header that keeps OpenAI's clients from repeating a request that would fail again."""


@dataclass(slots=True)
class AdmittedRequest:
    """A request within the limits of its key, whose tokens were counted by estimate."""

    state: ApiState
    key_id: str
    taken_tokens: int = 0

    async def settle(self, result: Mapping[str, Any] | None) -> None:
        """Replace the estimated tokens by those that the request has used; a stored answer uses
        none. The estimate stays if the server has not counted them. A failure is only logged."""
        if not self.taken_tokens or result is None:
            return
        is_reused, usage = result.get("answer_reused"), result.get("usage")
        if is_reused:
            await self._replace(0)
        elif usage:
            counts = (usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens"))
            await self._replace(sum(counts))

    @asynccontextmanager
    async def returned_on_error(self) -> AsyncIterator[None]:
        """Give the estimated tokens back if the request is refused after all, as by a full lane."""
        try:
            yield
        except Exception:
            if self.taken_tokens:
                await self._replace(0)
            raise

    async def _replace(self, used_tokens: int) -> None:
        unused_tokens, self.taken_tokens = self.taken_tokens - used_tokens, 0
        try:
            await self.state.ledger.api_keys.return_tokens(self.key_id, unused_tokens)
        except LedgerError as error:
            structlog.get_logger("api").warning("tokens not returned", error=str(error))


async def admit(
    state: ApiState,
    request: Request,
    *,
    body: Mapping[str, Any] | None = None,
) -> AdmittedRequest:
    """Count a request against the rate limits of its key; with `body`, first check its model and
    the budgets, and count its tokens, too. Raises Problem (403, 429), LedgerError."""
    principal: Principal = request.state.principal
    admission = AdmittedRequest(state, principal.id)
    limits = principal.limits
    if limits is None:
        return admission
    if body is not None:
        check_model_allowed(limits, str(body.get("model")))
        await _check_budgets(state, principal.id, limits)
        admission.taken_tokens = _estimate_tokens(body) if limits.tokens_per_minute else 0
    if limits.requests_per_minute is None and limits.tokens_per_minute is None:
        return admission
    allowance = await state.ledger.api_keys.take_allowance(
        principal.id, limits, admission.taken_tokens
    )
    setattr(request.state, LIMIT_HEADERS_KEY, limit_headers(limits, allowance))
    if allowance.short_of is not None:
        admission.taken_tokens = 0
        per_minute = getattr(limits, f"{allowance.short_of}_per_minute")
        text = f"this key may use {per_minute:,} {allowance.short_of} a minute"
        raise Problem("rate-limited", text, retry_after=allowance.retry_after)
    return admission


async def count_request(state: Shared, request: Request) -> None:
    """Count a request to an endpoint that does not call a model itself."""
    await admit(state, request)


CountedForRateLimit = Depends(count_request)


def check_model_allowed(limits: KeyLimits | None, model: str) -> None:
    """Raise Problem (403) for a model that a key may not name."""
    if limits is not None and not limits.allows(model):
        text = f"this key may not use the model {model!r}, but: {', '.join(limits.models)}"
        raise Problem("forbidden", text, headers=NO_RETRY, error_code="model_not_allowed")


def allowed_priority(limits: KeyLimits | None, priority: int | None, lane: str) -> int:
    """Return the priority of a request: that which it names, else the default, capped at its key's
    maximum. Raises Problem (403) if it names a higher one."""
    max_priority = None if limits is None else limits.max_priority
    if max_priority is None:
        return priority_or_default(priority, lane)
    if priority is not None and priority > max_priority:
        text = f"this key has at most the priority {max_priority}"
        raise Problem("forbidden", text, headers=NO_RETRY, error_code="priority_not_allowed")
    return min(max_priority, priority_or_default(priority, lane))


def limit_headers(limits: KeyLimits, allowance: KeyAllowance) -> dict[str, str]:
    """Return the limits of a key as the headers of OpenAI's API."""
    headers = {}
    rates = (
        ("requests", limits.requests_per_minute, allowance.requests),
        ("tokens", limits.tokens_per_minute, allowance.tokens),
    )
    for name, per_minute, remaining in rates:
        if per_minute is None or remaining is None:
            continue
        headers[f"x-ratelimit-limit-{name}"] = str(per_minute)
        headers[f"x-ratelimit-remaining-{name}"] = str(int(remaining))
        headers[f"x-ratelimit-reset-{name}"] = f"{(per_minute - remaining) * 60 / per_minute:.3f}s"
    return headers


async def _check_budgets(state: ApiState, key_id: str, limits: KeyLimits) -> None:
    """Raise Problem (429) if a budget is spent; the reservations of calls under way count. Each
    call is checked against the budgets once more, exactly, before it is made."""
    if limits.budget_per_day is None and limits.budget_per_month is None:
        return
    for budget, seconds_to_reset in await LlmLedger(state.ledger).spending.api_key_budgets(
        key_id, limits
    ):
        if budget.left <= 0:
            currency = state.settings.prices.currency
            text = f"{budget.name} is spent: {budget.limit:g} {currency}".rstrip()
            raise Problem("budget-spent", text, retry_after=seconds_to_reset, headers=NO_RETRY)


def _estimate_tokens(body: Mapping[str, Any]) -> int:
    """Estimate the tokens of a request: of its question, and of its answer if the request limits
    that."""
    max_usage = max_usage_of(body)
    answer_tokens = (
        max_usage["completion_tokens"] if any(body.get(each) for each in ANSWER_LIMITS) else 0
    )
    return max_usage["prompt_tokens"] + answer_tokens


def limits_of(request: Request) -> KeyLimits | None:
    """Return the limits of the key that makes a request."""
    principal: Principal = request.state.principal
    return principal.limits


async def limits_dependency(request: Request) -> KeyLimits | None:
    """Do what `limits_of` does, as a dependency; async, or FastAPI would run it in a thread."""
    return limits_of(request)


LimitsOf = Annotated[KeyLimits | None, Depends(limits_dependency)]

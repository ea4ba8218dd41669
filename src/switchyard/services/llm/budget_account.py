"""Reserve the cost of each call in the budgets before it, and record the actual cost after it.

The estimate is an upper bound for the answer (`max_tokens`), and in nearly all scripts also for the
question (a token for every three bytes). Only questions in the other scripts can overrun a budget,
by as much as their estimate was too low.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeGuard
from uuid import uuid4

import structlog

from switchyard.services.common.durations import DAY
from switchyard.services.common.errors import RetryableError
from switchyard.services.common.prices import ModelPrices, format_money
from switchyard.services.common.settings import LlmServer, Settings
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.scheduler.small_steps import SmallSteps
from switchyard.services.llm.completion_reader import Completion, field_of
from switchyard.services.llm.endpoint_requests import count_inputs, input_tokens
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.llm_errors import LlmRefused, LlmUnavailable
from switchyard.services.llm.model_api import DEFAULT_ANSWER_TOKENS
from switchyard.services.llm.records.llm_spend import (
    BudgetState,
    CallState,
    LlmCall,
    NoBudgetLeft,
    Requester,
    Reservation,
)

RECHECK_INTERVAL = 300.0
"""Seconds after which a job whose budget is spent tries again: the budget may have been raised."""
PENDING_RECHECK_INTERVAL = 15.0
"""Seconds after which such a job tries again while calls under way may cost less than is reserved
for them."""
BYTES_PER_TOKEN = 3
"""Bytes of text counted as one token: fewer than in English text (4), so that an estimate is too
high rather than too low."""
TOKENS_PER_PICTURE = 1_500
"""Tokens that a picture counts as, whatever its size."""
EMBEDDER = "embeddings"
"""Name of the provider under which calls of the server of JOBS_EMBED_BASE_URL are recorded."""
ANSWER_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Parameters that limit the tokens of an answer, of all endpoints."""
TEMPLATE_TOKENS = 8
"""Tokens that a model's chat template adds to each message."""


class NoBudget(RetryableError):
    """A budget has too little left for a call: its job waits until there is more, and this time
    does not count towards its maximum age."""

    def __init__(self, message: str, *, after: float) -> None:
        super().__init__(message, after=after, counts=False, ages=False)


def requester_of(ctx: JobContext) -> Requester:
    """Describe the job as the requester of a call."""
    metadata = ctx.message.metadata
    document = ctx.message.payload.get("document_id")
    return Requester(
        job_id=ctx.job_id,
        job_type=ctx.message.job_type,
        source=metadata.source,
        document_id=document[:200] if isinstance(document, str) else None,
        backfill_id=metadata.operation_id,
    )


def max_usage_of(chat: Mapping[str, Any], *, has_answer: bool = True) -> dict[str, int]:
    """Estimate the most tokens that a question and its answer may have; without `has_answer`, such
    as for vectors, those of the question alone."""
    pictures = 0

    def text_of(content: Any) -> Any:
        nonlocal pictures
        if not isinstance(content, list):
            return content
        texts = [part for part in content if field_of(part, "type") == "text"]
        pictures += len(content) - len(texts)
        return texts

    messages = [
        {**each, "content": text_of(each.get("content"))} for each in chat.get("messages", ())
    ]
    other_inputs = [chat.get(name) for name in ("response_format", "tools", "functions")]
    if "instructions" in chat:
        other_inputs.append(chat["instructions"])
    length = len(json.dumps([messages, *other_inputs], ensure_ascii=False).encode())
    limits = [chat.get(name) for name in ANSWER_LIMITS]
    max_tokens = max((each for each in limits if _is_count(each)), default=DEFAULT_ANSWER_TOKENS)
    answer_counts = [each for each in (chat.get("n"), chat.get("best_of")) if _is_count(each)]
    prompt_count = count_inputs(chat.get("prompt"))
    prompt_tokens = -(-length // BYTES_PER_TOKEN) + input_tokens(chat, BYTES_PER_TOKEN)
    prompt_tokens += len(messages) * TEMPLATE_TOKENS
    return {
        "prompt_tokens": prompt_tokens + pictures * TOKENS_PER_PICTURE,
        "completion_tokens": (
            max_tokens * max(answer_counts, default=1) * prompt_count if has_answer else 0
        ),
    }


def _is_count(value: object) -> TypeGuard[int]:
    """Return whether a parameter that a client has sent is a usable count."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31


@dataclass(slots=True)
class CallCharge:
    """How a call and its tries ended, from which its cost follows."""

    answer: Completion | None = None
    """None until the call has ended, and if it failed."""
    error: BaseException | None = None
    """The error in which the call ended."""
    broken_tries: int = 0
    """Tries before the last one that were broken off, and may have been charged as well."""

    def count_broken(self) -> None:
        self.broken_tries += 1


@dataclass(frozen=True, slots=True)
class EmbeddingBudget:
    """Charges the cost of embedding calls to one requester."""

    account: BudgetAccount
    asked_by: Requester

    def charge_embedding(
        self, model: str, texts: Sequence[str]
    ) -> AbstractAsyncContextManager[CallCharge]:
        """Charge one call, as `BudgetAccount.charge_embedding` does."""
        return self.account.charge_embedding(model, texts, self.asked_by)


class BudgetAccount:
    """Reserves and settles the cost of model calls against budgets; without a ledger, it does
    neither."""

    def __init__(self, ledger: Ledger | None, prices: ModelPrices, per_day: float | None) -> None:
        self._repository = None if ledger is None else LlmLedger(ledger).spending
        self._prices = prices
        self._per_day = per_day
        self._log = structlog.get_logger("llm")

    @classmethod
    def from_settings(cls, settings: Settings, ledger: Ledger | None) -> BudgetAccount:
        return cls(ledger, settings.prices, settings.llm_budget_per_day)

    @asynccontextmanager
    async def charge_embedding(
        self, model: str, texts: Sequence[str], requester: Requester
    ) -> AsyncIterator[CallCharge]:
        """Reserve the cost of a call for the vectors of texts, and record it after the context, in
        which the caller makes the call. Raises NoBudget, LedgerError, before anything is paid."""
        length = sum(len(text.encode()) for text in texts)
        usage = {"prompt_tokens": -(-length // BYTES_PER_TOKEN), "completion_tokens": 0}
        price = self._prices.of(model)
        cost = None if price is None else price.cost(usage)
        call = LlmCall(uuid4().hex, CallState.OPEN, requester, EMBEDDER, model, usage, cost)
        charge = CallCharge()
        try:
            await self.reserve(call)
        except asyncio.CancelledError:
            # The reservation may have been committed, and would count as spent in two hours.
            await asyncio.shield(self.settle(replace(call, state=CallState.FREE)))
            raise
        try:
            yield charge
        except BaseException as error:
            charge.error = error
            raise
        finally:
            # Also when the job is cancelled: a reservation that stays is missing in the budget.
            for each in self.ended_calls(call, charge):
                await asyncio.shield(self.settle(each))

    def reservation(self, call: LlmCall) -> Reservation:
        """Return the reservation that a call needs."""
        return Reservation(call, self._per_day)

    def ended_calls(self, call: LlmCall, charge: CallCharge) -> list[LlmCall]:
        """Return the call with its actual cost, and a call for each try before it that was broken
        off."""
        if charge.answer is not None:
            ended_call = self.with_actual_cost(call, charge.answer)
        elif charge.error is not None and _may_have_cost(charge.error):
            ended_call = replace(call, state=CallState.UNSURE)
        else:
            ended_call = replace(call, state=CallState.FREE)
        unsure_call = replace(call, state=CallState.UNSURE)
        return [
            ended_call,
            *(replace(unsure_call, id=uuid4().hex) for _ in range(charge.broken_tries)),
        ]

    def estimate(
        self,
        server: LlmServer,
        chat: Mapping[str, Any],
        requester: Requester,
        *,
        batch: bool = False,
        has_answer: bool = True,
    ) -> LlmCall:
        """Return the record of a call that is to be made, with the most that it can cost."""
        usage = max_usage_of(chat, has_answer=has_answer)
        price = self._prices.of(server.model)
        cost = None if price is None else price.cost(usage, batch=batch)
        model = server.model
        return LlmCall(
            uuid4().hex, CallState.OPEN, requester, server.name, model, usage, cost, batch=batch
        )

    def with_actual_cost(self, call: LlmCall, answer: Completion) -> LlmCall:
        """Return the call with its actual cost. If the server does not count tokens, those of the
        question are estimated as before, and those of the answer by its pieces or its length, up to
        the call's own limit."""
        usage = dict(answer.usage)
        usage.setdefault("prompt_tokens", call.usage.get("prompt_tokens", 0))
        if "completion_tokens" not in usage:
            text = answer.text if answer.body is None else json.dumps(answer.body.get("choices"))
            tokens = max(answer.chunks, 0) or -(-len(text.encode()) // BYTES_PER_TOKEN)
            usage["completion_tokens"] = min(tokens, call.usage.get("completion_tokens", tokens))
        price = self._prices.of(call.model, answer.model)
        cost = None if price is None else price.cost(usage, batch=call.batch)
        return replace(call, state=CallState.PAID, usage=usage, cost=cost)

    async def reserve(self, call: LlmCall, *, ttl: float | None = None) -> None:
        """Reserve what a call costs at most. `ttl` is the seconds that the call may take, if longer
        than a job. Raises NoBudget, LedgerError."""
        if self._repository is None or not self.reservation(call).is_needed:
            return
        refusal = await self._repository.reserve_llm_call(call, per_day=self._per_day, ttl=ttl)
        if isinstance(refusal, NoBudgetLeft):
            raise self.no_budget_error(refusal, call.model)

    async def settle(self, call: LlmCall) -> None:
        """Record what a call has cost, in place of its reservation; a failure is only logged."""
        if self._repository is None:
            return
        try:
            await self._repository.settle_llm_call(call)
        except LedgerError as error:
            # The answer must not be lost because of this. The reservation counts as spent in two
            # hours.
            self._log.warning("call cost not recorded", call=call.id, error=str(error))

    async def record_cache_saving(
        self, answer: Completion, requester: Requester, models: list[str], *, soon: bool
    ) -> None:
        """Record what a stored answer, given by one of `models`, would have cost; `soon`: with the
        ledger's next write, for which the caller does not wait."""
        price = self._prices.of(answer.model, *models)
        cost = None if price is None else price.cost(answer.usage)
        call = LlmCall(
            uuid4().hex, CallState.SAVED, requester, "", answer.model, dict(answer.usage), cost
        )
        if soon and self._repository is not None:
            self._repository.settle_llm_call_soon(call)
        else:
            await self.settle(call)

    def no_budget_error(self, refusal: NoBudgetLeft, model: str) -> NoBudget:
        """Make the error of a call for which one of its budgets has too little left."""
        budget, currency = refusal.budget, self._prices.currency
        if refusal.needed is None:
            return NoBudget(
                f"there is {budget.name}, and JOBS_LLM_PRICES has no price for the model {model}: "
                "add one (0 for a model of your own) and start the workers again",
                after=RECHECK_INTERVAL,
            )
        retry_delay = PENDING_RECHECK_INTERVAL
        if refusal.is_spent:
            retry_delay = (
                RECHECK_INTERVAL
                if refusal.seconds is None
                else min(RECHECK_INTERVAL, refusal.seconds + 1)
            )
        return NoBudget(
            f"{budget.name} has too little left: {format_budget(budget, currency)}; "
            f"this call may cost {format_money(refusal.needed, currency)}. {_advice(budget)}",
            after=retry_delay,
        )


def format_budget(budget: BudgetState, currency: str) -> str:
    """Describe the state of a budget for people."""
    reserved = f", {format_money(budget.reserved, '')} set aside" if budget.reserved > 0 else ""
    limit = format_money(budget.limit, currency)
    return f"{format_money(budget.spent, '')} of {limit} spent{reserved}"


def _advice(budget: BudgetState) -> str:
    if budget.key.startswith("day:"):
        return f"It goes on at 00:00 UTC, or when {budget.raised_by} is raised"
    return f"It goes on when that is raised: {budget.raised_by}"


def _may_have_cost(error: BaseException) -> bool:
    if isinstance(error, LlmUnavailable | LlmRefused):
        return error.may_cost
    return True


async def clean_up_spending(settings: Settings, ledger: Ledger) -> int:
    """Record calls whose process has died with their estimates, and delete calls beyond the
    settings' age, in small steps. Returns how many were deleted. Raises LedgerError."""
    repository, steps = LlmLedger(ledger).spending, SmallSteps.yielding_to_hot_jobs(ledger)
    await steps.remove_all(repository.settle_lost_llm_calls)
    max_age = settings.llm_spend_days * DAY
    deleted_rows = await steps.remove_all(
        lambda limit: repository.drop_llm_calls(max_age=max_age, limit=limit)
    )
    return deleted_rows["llm_calls"]


def first_day(ledger: Ledger, days: int = 30) -> str:
    """Return the first of the last `days` days, today included: `2026-11-22`."""
    return (ledger.clock.now() - timedelta(days=days - 1)).date().isoformat()

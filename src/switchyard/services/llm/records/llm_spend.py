"""The cost of language models' calls, and their budgets, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, get_args

SpentBy = Literal["day", "model", "provider", "type", "source", "document", "job", "backfill"]
SPENT_BY: tuple[SpentBy, ...] = get_args(SpentBy)


@dataclass(frozen=True, slots=True)
class Requester:
    """For whom a call is made. A field is None if the call has no such origin."""

    job_id: str | None = None
    job_type: str | None = None
    source: str | None = None
    document_id: str | None = None
    backfill_id: str | None = None

    @property
    def is_api_key(self) -> bool:
        """Whether an API key has requested it, which may have budgets of its own."""
        return (self.source or "").startswith("api:")


class CallState(StrEnum):
    """State of the record of a call."""

    OPEN = "open"
    """Under way; its estimate is reserved."""
    PAID = "paid"
    UNSURE = "unsure"
    """Broken off, or its process died: it may have been paid for, and counts by its estimate."""
    FREE = "free"
    """Refused, or never begun: it has cost nothing, and is not recorded."""
    SAVED = "saved"
    """Answered by a stored answer: its cost was saved."""


@dataclass(frozen=True, slots=True)
class LlmCall:
    """One call of a model, or one that a stored answer has saved."""

    id: str
    state: CallState
    asked_by: Requester
    provider: str
    """The server's name; empty for a saved call."""
    model: str
    usage: Mapping[str, int]
    """Tokens: prompt_tokens, cached_tokens of these, completion_tokens."""
    cost: float | None
    """In the prices' currency: paid, reserved or saved; None if the model has no price."""
    batch: bool = False


@dataclass(frozen=True, slots=True)
class Reservation:
    """The cost to reserve for a call before it is made."""

    call: LlmCall
    """The call; its `cost` is the most that it can cost."""
    per_day: float | None
    """The budget of the day; None if there is none."""

    @property
    def freed(self) -> LlmCall:
        """The call as one that was not made after all: it ends the reservation."""
        return replace(self.call, state=CallState.FREE)

    @property
    def is_needed(self) -> bool:
        """Whether there may be a budget that the call counts against."""
        requester = self.call.asked_by
        return self.per_day is not None or requester.backfill_id is not None or requester.is_api_key


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A budget as it is now."""

    key: str
    """`day:2026-11-22`, `backfill:ID`, `key:ID/2026-11-22` or `key:ID/2026-11`."""
    limit: float
    spent: float
    reserved: float
    """Reserved for calls under way."""
    is_short: bool = False
    """Whether the budget had too little left for a call, and no later call has found enough."""

    @property
    def left(self) -> float:
        return max(0.0, self.limit - self.spent - self.reserved)

    @property
    def name(self) -> str:
        """The budget in words, for people."""
        kind, _, id_and_time = self.key.partition(":")
        if kind == "key":
            key_id, _, period = id_and_time.partition("/")
            return f"the budget of the API key {key_id} for {period}"
        return f"the budget of {id_and_time if kind == 'backfill' else f'the day {id_and_time}'}"

    @property
    def raised_by(self) -> str:
        """The command that raises the budget, or the setting of which it is made."""
        kind, _, id_and_time = self.key.partition(":")
        if kind == "day":
            return "JOBS_LLM_BUDGET_PER_DAY"
        if kind == "key":
            key_id, _, period = id_and_time.partition("/")
            unit = "day" if period.count("-") == 2 else "month"
            return f"jobctl keys limit {key_id} --budget-per-{unit} AMOUNT"
        return f"jobctl backfill set {id_and_time} --budget AMOUNT"


@dataclass(frozen=True, slots=True)
class NoBudgetLeft:
    """A budget has too little left for a call, which is not to be made now."""

    budget: BudgetState
    needed: float | None
    """What the call would cost at most; None if its model has no price."""
    seconds: float | None
    """Seconds until the budget begins anew; None if it never does, and must be raised."""

    @property
    def is_spent(self) -> bool:
        """Whether the budget would be too small even if all calls under way cost nothing."""
        return self.needed is None or self.budget.spent + self.needed > self.budget.limit


@dataclass(frozen=True, slots=True)
class SpendRow:
    """The cost of the calls of one day, model, job type …"""

    name: str | None
    """The day, model, job type …; None for calls without one."""
    calls: int
    saved_calls: int
    """Answered by stored answers."""
    unsure_calls: int
    """Counted by their estimate: broken off, or their process died."""
    unpriced_calls: int
    """Calls of models without a price: their cost is not in `cost`."""
    input_tokens: int
    cached_tokens: int
    """Tokens of the input that the server had in its cache."""
    output_tokens: int
    cost: float
    reserved: float
    """Reserved for calls under way."""
    saved: float
    """What the saved calls would have cost."""

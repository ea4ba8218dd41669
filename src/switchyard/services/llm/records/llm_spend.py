"""What is known of the cost of language models' calls, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, get_args

SpentBy = Literal["day", "model", "provider", "type", "source", "document", "job", "backfill"]
SPENT_BY: tuple[SpentBy, ...] = get_args(SpentBy)


@dataclass(frozen=True, slots=True)
class Requester:
    """For whom a call is made; None where that is nobody's."""

    job_id: str | None = None
    job_type: str | None = None
    source: str | None = None
    document_id: str | None = None
    backfill_id: str | None = None

    @property
    def is_api_key(self) -> bool:
        """Whether it is a key of the HTTP API, which may have budgets of its own."""
        return (self.source or "").startswith("api:")


class CallState(StrEnum):
    """What is known of a call."""

    OPEN = "open"
    """Under way; its estimate is set aside."""
    PAID = "paid"
    UNSURE = "unsure"
    """Broken off, or its process died: it may have been paid for, and counts by its estimate."""
    FREE = "free"
    """Refused, or never begun: it has cost nothing, and is not kept."""
    SAVED = "saved"
    """Answered from what is kept."""


@dataclass(frozen=True, slots=True)
class LlmCall:
    """One call of a model, or one that was saved."""

    id: str
    state: CallState
    asked_by: Requester
    provider: str
    """The server's name; empty for one that was saved."""
    model: str
    usage: Mapping[str, int]
    """Tokens: prompt_tokens, cached_tokens of these, completion_tokens."""
    cost: float | None
    """In the prices' currency: paid, or set aside, or saved; None where the model has no price."""
    batch: bool = False


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is to be set aside for a call before it is made."""

    call: LlmCall
    """With the most that it can cost."""
    per_day: float | None
    """The budget of the day, where there is one."""

    @property
    def freed(self) -> LlmCall:
        """The call, where it is not made after all."""
        return replace(self.call, state=CallState.FREE)

    @property
    def is_needed(self) -> bool:
        """Whether there may be a budget that the call counts against."""
        by = self.call.asked_by
        return self.per_day is not None or by.backfill_id is not None or by.is_api_key


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A budget as it is now."""

    key: str
    """`day:2026-11-22`, `backfill:ID`, `key:ID/2026-11-22` or `key:ID/2026-11`."""
    limit: float
    spent: float
    reserved: float
    """Set aside for calls under way."""
    is_short: bool = False
    """A call has found too little in it, and none has found enough since."""

    @property
    def left(self) -> float:
        return max(0.0, self.limit - self.spent - self.reserved)

    @property
    def name(self) -> str:
        """For people."""
        kind, _, rest = self.key.partition(":")
        if kind == "key":
            key_id, _, time = rest.partition("/")
            return f"the budget of the API key {key_id} for {time}"
        return f"the budget of {rest if kind == 'backfill' else f'the day {rest}'}"


@dataclass(frozen=True, slots=True)
class NoBudgetLeft:
    """The call is not to be made now."""

    budget: BudgetState
    needed: float | None
    """What the call would cost at most; None where its model has no price."""
    seconds: float | None
    """Until there is a new budget; None where there will be one only when somebody raises it."""

    @property
    def is_spent(self) -> bool:
        """Also when all calls under way turn out to cost nothing."""
        return self.needed is None or self.budget.spent + self.needed > self.budget.limit


@dataclass(frozen=True, slots=True)
class SpendRow:
    """The cost of the calls that have one thing in common."""

    name: str | None
    """The day, model, job type …; None for calls that have none."""
    calls: int
    saved_calls: int
    """Answered from what is kept."""
    unsure_calls: int
    """Counted by their estimate: broken off, or their process died."""
    unpriced_calls: int
    """Of models without a price: their cost is not in `cost`."""
    input_tokens: int
    cached_tokens: int
    """Of the input."""
    output_tokens: int
    cost: float
    reserved: float
    """Set aside for calls under way."""
    saved: float
    """What the saved calls would have cost."""

"""What the ledger keeps of questions that are sent to a provider's Batch API, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from switchyard.services.llm.records.llm_spend import LlmCall


class ItemState(StrEnum):
    """Where a question stands."""

    COLLECTED = "collected"
    """It waits for others to be sent with."""
    SENT = "sent"
    """It belongs to a batch, which is sent or about to be."""
    ANSWERED = "answered"
    """Its answer is kept; its jobs have not come for it yet."""
    LIVE = "live"
    """No batch will answer it: its jobs ask for themselves."""


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One question."""

    key: str
    """Of the question, as kept answers have it; its `custom_id` in the batch's file."""
    state: ItemState
    provider: str
    question: Mapping[str, Any]
    """As `StoredAnswers` knows it: `servers`, `asked`."""
    call: LlmCall
    """For whom it is asked first, and what is set aside for it."""


class BatchState(StrEnum):
    """Where a batch stands."""

    SENDING = "sending"
    """Its questions are chosen; the provider may have it already."""
    SENT = "sent"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class LlmBatch:
    """Questions that are sent together. Times are the database's, in seconds since the epoch."""

    id: str
    """In the metadata of the provider's batch, so that it is found there."""
    provider: str
    state: BatchState
    remote_id: str | None
    """The provider's own id; None until it is known."""
    questions: int
    created_at: float
    note: str | None
    """What the provider says of it, or what went wrong."""

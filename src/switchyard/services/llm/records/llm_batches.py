"""Questions for a provider's Batch API and their batches, as the ledger records them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from switchyard.services.llm.records.llm_spend import LlmCall


class ItemState(StrEnum):
    """State of a question."""

    COLLECTED = "collected"
    """The question waits for a batch to be opened."""
    SENT = "sent"
    """The question is in a batch, which is sent or about to be."""
    ANSWERED = "answered"
    """The answer is stored; not all waiting jobs have read it yet."""
    LIVE = "live"
    """No batch will answer the question: its jobs ask live."""


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A question that is collected for a batch, or in one."""

    key: str
    """The key of its stored answer; also its `custom_id` in the batch's file."""
    state: ItemState
    provider: str
    question: Mapping[str, Any]
    """What the key is made of: `servers`, `asked` (the chat), `endpoint`, `keeps_all`; see
    `ModelClient.answer_key_fields`."""
    call: LlmCall
    """The requester that was the first to ask it, and the cost that is reserved for it."""


class BatchState(StrEnum):
    """State of a batch."""

    SENDING = "sending"
    """The questions are chosen; the provider may have the batch already."""
    SENT = "sent"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class LlmBatch:
    """Questions that are sent together. Times are the database's, in seconds since the epoch."""

    id: str
    """Also in the metadata of the provider's batch, by which our batch is found there."""
    provider: str
    state: BatchState
    remote_id: str | None
    """The provider's own id; None until it is known."""
    questions: int
    created_at: float
    note: str | None
    """The provider's status, or the last error."""

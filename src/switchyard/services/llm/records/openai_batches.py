"""Files and batches of the OpenAI-compatible API, as plain values. Times are seconds since the
epoch, by the ledger's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

FilePurpose = Literal["batch", "batch_output"]


class OpenAiBatchState(StrEnum):
    """State of a batch, by its name in OpenAI's API."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    """Its requests have ended, and its files are being written."""
    COMPLETED = "completed"
    FAILED = "failed"
    """Its input is invalid, and nothing was asked; or its backfill failed."""
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


OPEN_STATES = frozenset(
    {
        OpenAiBatchState.VALIDATING,
        OpenAiBatchState.IN_PROGRESS,
        OpenAiBatchState.FINALIZING,
        OpenAiBatchState.CANCELLING,
    }
)
"""States of a batch that has not ended."""


def storage_key_of(file_id: str) -> str:
    """Return the key of a file's content in the file storage."""
    return f"openai/{file_id}.jsonl"


@dataclass(frozen=True, slots=True)
class OpenAiFile:
    """A file that a client has uploaded, or a batch has written."""

    id: str
    owner: str
    """The API key that alone may see it."""
    filename: str
    purpose: str
    created_at: float
    expires_at: float | None
    """None if it is kept for ever."""
    size: int | None
    """Bytes; None while it is being written."""

    @property
    def storage_key(self) -> str:
        """Key of its content in the file storage."""
        return storage_key_of(self.id)


@dataclass(frozen=True, slots=True)
class OpenAiBatch:
    """A batch of requests that a client has handed in."""

    id: str
    owner: str
    """The API key that alone may see it."""
    state: OpenAiBatchState
    created_at: float
    endpoint: str
    input_file_id: str
    completion_window: str
    expires_at: float
    operation_id: str
    """The backfill that publishes its requests as jobs."""
    metadata: Mapping[str, str] | None = None
    source: str = "api"
    """The source of its jobs."""
    total: int = 0
    """Requests in its input; 0 until that is validated."""
    completed: int = 0
    failed: int = 0
    outcome: OpenAiBatchState | None = None
    """The state in which it will end; None until its requests have ended."""
    errors: tuple[Mapping[str, Any], ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    moments: Mapping[str, float] = field(default_factory=dict)
    """When the batch entered each state, by the state's name."""

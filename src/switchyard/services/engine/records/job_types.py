"""Job types as the ledger keeps them: what a process has to know of one whose module it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_SCHEMA_BYTES = 64 * 1024
"""Of a payload's JSON Schema. The largest one of the built-in types has 3 KiB."""
MAX_JOB_TYPES = 500
"""Those that were not seen for longest are removed beyond that."""
KEPT_FOR = 7 * 24 * 3600.0
"""Seconds for which a type is kept after the last process that knew it was there."""
TOUCH_INTERVAL = 600.0
"""Seconds between two signs that a process still knows its types."""
ANY_KEY = "*"
"""Among `local_keys`: the payload has no fields of its own, and all that it holds is local."""


@dataclass(frozen=True, slots=True)
class JobTypeRecord:
    """A job type that a process with its module has registered."""

    name: str
    worker: str
    lanes: tuple[str, ...]
    timeout: float
    """Seconds that one attempt may take."""
    max_attempts: int
    payload_schema: Mapping[str, Any]
    """JSON Schema of the payload, draft 2020-12."""
    local_keys: Mapping[str, str]
    """Keys of the payload that only the system's hosts may set, and what others do instead."""
    module: str
    """Python module that declares it."""
    digest: str
    """Another one where anything above is another."""
    registered_by: str
    """Worker or other process that registered it last."""
    registered_at: float
    """By the ledger's clock, as the next: seconds since the epoch."""
    seen_at: float
    """When a process that knows it last said so, within TOUCH_INTERVAL."""

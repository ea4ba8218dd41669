"""Records of job types in the ledger, for processes without the types' modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_SCHEMA_BYTES = 64 * 1024
"""Bytes of a payload's JSON Schema, at most. The largest of the built-in types has 3 KiB."""
MAX_JOB_TYPES = 500
"""Job types in the ledger at most; beyond that, those seen least recently are removed."""
TYPE_TTL = 7 * 24 * 3600.0
"""Seconds for which a type is kept after the last report of a process that has it."""
TOUCH_INTERVAL = 600.0
"""Seconds between two reports of a process that it still has its types."""
ANY_KEY = "*"
"""Key in `local_keys` for a payload without declared fields: only the system's hosts may set any of
it."""


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
    """Hash of the fields above: it changes when any of them does."""
    registered_by: str
    """Worker or other process that registered it last."""
    registered_at: float
    """Seconds since the epoch, by the ledger's clock."""
    seen_at: float
    """When a process last reported that it has this type, as `registered_at`; up to TOUCH_INTERVAL
    seconds too old."""

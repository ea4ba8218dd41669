"""Derive the ids of jobs that follow from another job, a schedule's due time, an item of a
backfill, or a client's idempotency key. They are the same each time, so that a repeat makes no
second job."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from uuid import UUID, uuid5


@dataclass(frozen=True, slots=True)
class JobIds:
    """The ids of one system.

    Anybody who may publish over AMQP can choose the id of a message. If the id of a future job
    could be computed, a message could take it, and the job would count as published without ever
    being so. So ids are derived with a key that only the ledger has. Others learn a job's id (from
    events, messages) only after its record exists, which no message changes.
    """

    key: bytes | None = field(repr=False)
    """Secret for ids; None for a ledger from before there were keys, and without a ledger. Then ids
    can be computed by anyone who knows what they are made of."""

    def derive(self, namespace: UUID, name: str) -> str:
        """Return the id, a UUID, that belongs to the name within the namespace."""
        if self.key is None:
            return str(uuid5(namespace, name))
        digest = hmac.digest(self.key, namespace.bytes + name.encode(), "sha256")
        return str(UUID(bytes=digest[:16], version=5))


PUBLIC_IDS = JobIds(None)

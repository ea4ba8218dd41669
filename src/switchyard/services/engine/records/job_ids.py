"""Ids of jobs that follow from something: another job, a schedule's time, an item of a backfill, a
client's idempotency key. The same each time, so that a repeat makes no second job."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from uuid import UUID, uuid5


@dataclass(frozen=True, slots=True)
class JobIds:
    """The ids of one system.

    Anybody who may publish over AMQP can choose the id of a message, and would take that of a job
    to come if it could be worked out: that job would count as published, and never be. So ids are
    made with a key that only the ledger has. A job's own id is told to others (events, messages)
    when its record is there, which no message changes.
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

"""Alerts that were sent, so that each is sent once."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, delete, insert, select

from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.tables import alerts


class SentAlerts(Repository):
    """Stores which alerts were sent. All methods raise LedgerUnavailable when the database is
    away."""

    @read
    def sent_alerts(self, connection: Connection) -> dict[str, float]:
        """Return when each remembered alert was sent, in seconds since the epoch."""
        query = select(alerts.c.key, alerts.c.told_at)
        return {row.key: row.told_at for row in connection.execute(query)}

    @write
    def remember_alert(self, connection: Connection, key: str, now: float) -> None:
        """Record that an alert was sent."""
        forget = delete(alerts).where(alerts.c.key == key)
        keep = insert(alerts).values(key=key, told_at=now)
        connection.execute(forget)
        connection.execute(keep)

    @write
    def forget_alert(self, connection: Connection, key: str) -> None:
        """Forget an alert that is over: it may be sent again."""
        statement = delete(alerts).where(alerts.c.key == key)
        connection.execute(statement)

    @write
    def forget_alerts_before(
        self, connection: Connection, moment: float, *, keep: Collection[str]
    ) -> None:
        """Forget alerts sent before a time, except those named, which are not over."""
        statement = delete(alerts).where(alerts.c.told_at < moment, alerts.c.key.not_in(keep))
        connection.execute(statement)

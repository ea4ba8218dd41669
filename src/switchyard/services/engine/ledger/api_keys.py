"""Keys of the HTTP API: their hashes and scopes. A key itself is never written anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, exists, insert, select, update

from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.tables import api_keys, sessions
from switchyard.services.engine.records.system import ApiKeyRecord


class ApiKeyRepository(Repository):
    """All raise LedgerUnavailable when the database is away."""

    @write
    def add_api_key(
        self,
        connection: Connection,
        key_id: str,
        *,
        name: str,
        key_hash: str,
        scopes: Sequence[str],
        now: float,
    ) -> None:
        """Keep a new key. Raises RowRejected for an id or a key that is there already."""
        values = {
            "id": key_id,
            "name": name,
            "key_hash": key_hash,
            "scopes": json.dumps(list(scopes)),
            "created_at": now,
        }
        connection.execute(insert(api_keys).values(**values))

    @read
    def find_api_key(self, connection: Connection, key_hash: str) -> ApiKeyRecord | None:
        """Return the key of that hash, revoked or not."""
        query = select(api_keys).where(api_keys.c.key_hash == key_hash)
        row = connection.execute(query).one_or_none()
        return None if row is None else _key(row)

    @read
    def list_api_keys(self, connection: Connection) -> list[ApiKeyRecord]:
        """Return all keys, the newest first, revoked ones included."""
        query = select(api_keys).order_by(api_keys.c.created_at.desc(), api_keys.c.id)
        return [_key(row) for row in connection.execute(query)]

    async def has_api_keys(self) -> bool:
        """Tell whether there is a key at all, revoked ones included."""
        query = select(exists(select(api_keys.c.id)))
        return await self._database.read(lambda connection: bool(connection.scalar(query)))

    @write
    def revoke_api_key(self, connection: Connection, key_id: str, now: float) -> bool:
        """Make a key useless, for good. False when there is none of that id; a key that was
        revoked before stays as it was."""
        mine = api_keys.c.id == key_id
        connection.execute(
            update(api_keys).where(mine, api_keys.c.revoked_at.is_(None)).values(revoked_at=now)
        )
        return connection.execute(select(api_keys.c.id).where(mine)).first() is not None

    @write
    def note_api_key_used(self, connection: Connection, key_id: str, now: float) -> None:
        """Record that the key was used at that time."""
        connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(last_used_at=now))

    @write
    def add_session(
        self,
        connection: Connection,
        token_hash: str,
        *,
        key_hash: str,
        now: float,
        expires_at: float,
    ) -> None:
        """Keep a session of whoever has that key, and forget those that are over. Times are seconds
        since the epoch."""
        connection.execute(delete(sessions).where(sessions.c.expires_at <= now))
        connection.execute(
            insert(sessions).values(
                token_hash=token_hash, key_hash=key_hash, created_at=now, expires_at=expires_at
            )
        )

    @read
    def session_key(self, connection: Connection, token_hash: str, now: float) -> str | None:
        """Return the hash of the key that a session was begun with; None where it is over."""
        found: str | None = connection.scalar(
            select(sessions.c.key_hash).where(
                sessions.c.token_hash == token_hash, sessions.c.expires_at > now
            )
        )
        return found

    @write
    def end_session(self, connection: Connection, token_hash: str) -> None:
        """Forget a session."""
        connection.execute(delete(sessions).where(sessions.c.token_hash == token_hash))


def _key(row: Row[Any]) -> ApiKeyRecord:
    fields = {column.name: row._mapping[column.name] for column in api_keys.c}
    return ApiKeyRecord(**{**fields, "scopes": tuple(json.loads(fields["scopes"]))})

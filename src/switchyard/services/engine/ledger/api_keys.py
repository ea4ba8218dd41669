"""Keys of the HTTP API: their hashes and scopes. A key itself is never written anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Row, delete, exists, insert, select, update

from switchyard.services.engine.ledger.sql.dialect import db_now, insert_into
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.tables import api_key_allowances, api_keys, sessions
from switchyard.services.engine.records.system import ApiKeyRecord, KeyAllowance, KeyLimits


class ApiKeyRepository(Repository):
    """Stores API keys, their allowances, and sessions of the dashboard. All methods raise
    LedgerUnavailable when the database is away."""

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
        limits: KeyLimits | None = None,
    ) -> None:
        """Store a new key. Raises RowRejected for an id or key that exists already."""
        values = {
            "id": key_id,
            "name": name,
            "key_hash": key_hash,
            "scopes": json.dumps(list(scopes)),
            "created_at": now,
            "limits": None if limits is None else json.dumps(asdict(limits)),
        }
        connection.execute(insert(api_keys).values(**values))

    @write
    def set_key_limits(self, connection: Connection, key_id: str, limits: KeyLimits | None) -> bool:
        """Set the limits of a key, or lift them. False when there is none of that id."""
        condition = api_keys.c.id == key_id
        values = {"limits": None if limits is None else json.dumps(asdict(limits))}
        connection.execute(update(api_keys).where(condition).values(values))
        return connection.execute(select(api_keys.c.id).where(condition)).first() is not None

    @write
    def take_allowance(
        self, connection: Connection, key_id: str, limits: KeyLimits, tokens: int
    ) -> KeyAllowance:
        """Take one request and `tokens` from the key's two buckets. A bucket holds the amount of
        one minute, and fills up within a minute. A request for more tokens than a bucket holds is
        allowed once it is full; later requests then wait longer."""
        sizes = (limits.requests_per_minute, limits.tokens_per_minute)
        now = db_now(connection)
        condition = api_key_allowances.c.key_id == key_id
        full_buckets = {
            "key_id": key_id,
            "at": now,
            "requests": sizes[0] or 0,
            "tokens": sizes[1] or 0,
        }
        connection.execute(
            insert_into(connection, api_key_allowances)
            .values(full_buckets)
            .on_conflict_do_nothing()
        )
        row = connection.execute(
            select(api_key_allowances).where(condition).with_for_update()
        ).one()
        waits, left = [], []
        for size, stored, needed in zip(
            sizes, (row.requests, row.tokens), (1, tokens), strict=True
        ):
            rate = (size or 0) / 60
            amount = min(size or 0, stored + max(0.0, now - row.at) * rate)
            missing = min(needed, size or 0) - amount
            waits.append(missing / rate if missing > 1e-9 and rate else 0.0)
            left.append(amount)
        refused = max(waits) > 0
        if not refused:
            left = [left[0] - 1, left[1] - tokens]
        values = {"at": now, "requests": left[0], "tokens": left[1]}
        connection.execute(update(api_key_allowances).where(condition).values(values))
        return KeyAllowance(
            requests=None if sizes[0] is None else max(0.0, left[0]),
            tokens=None if sizes[1] is None else max(0.0, left[1]),
            retry_after=max(waits),
            short_of=(None if not refused else "requests" if waits[0] >= waits[1] else "tokens"),
        )

    @write
    def return_tokens(self, connection: Connection, key_id: str, tokens: int) -> None:
        """Give back tokens that a request has not used; negative where it has used more."""
        connection.execute(
            update(api_key_allowances)
            .where(api_key_allowances.c.key_id == key_id)
            .values(tokens=api_key_allowances.c.tokens + tokens)
        )

    @read
    def get_api_key(self, connection: Connection, key_id: str) -> ApiKeyRecord | None:
        """Return the key of that id, revoked or not."""
        row = connection.execute(select(api_keys).where(api_keys.c.id == key_id)).one_or_none()
        return None if row is None else _key(row)

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

    @read
    def has_api_keys(self, connection: Connection) -> bool:
        """Tell whether there is a key at all, revoked ones included."""
        query = select(exists(select(api_keys.c.id)))
        return bool(connection.scalar(query))

    @write
    def revoke_api_key(self, connection: Connection, key_id: str, now: float) -> bool:
        """Revoke a key permanently. False for an unknown id; a key that was revoked before is not
        changed."""
        condition = api_keys.c.id == key_id
        connection.execute(
            update(api_keys)
            .where(condition, api_keys.c.revoked_at.is_(None))
            .values(revoked_at=now)
        )
        return connection.execute(select(api_keys.c.id).where(condition)).first() is not None

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
        """Store a session of the user with that key, and remove sessions that are over. Times are
        seconds since the epoch."""
        connection.execute(delete(sessions).where(sessions.c.expires_at <= now))
        connection.execute(
            insert(sessions).values(
                token_hash=token_hash, key_hash=key_hash, created_at=now, expires_at=expires_at
            )
        )

    @read
    def session_key_hash(self, connection: Connection, token_hash: str, now: float) -> str | None:
        """Return the hash of the API key that began the session; None where the session is over or
        unknown."""
        key_hash: str | None = connection.scalar(
            select(sessions.c.key_hash).where(
                sessions.c.token_hash == token_hash, sessions.c.expires_at > now
            )
        )
        return key_hash

    @write
    def end_session(self, connection: Connection, token_hash: str) -> None:
        """Forget a session."""
        connection.execute(delete(sessions).where(sessions.c.token_hash == token_hash))


def _key(row: Row[Any]) -> ApiKeyRecord:
    fields = {column.name: row._mapping[column.name] for column in api_keys.c}
    limits = fields["limits"]
    return ApiKeyRecord(
        **{
            **fields,
            "scopes": tuple(json.loads(fields["scopes"])),
            "limits": None if limits is None else KeyLimits.from_json(json.loads(limits)),
        }
    )

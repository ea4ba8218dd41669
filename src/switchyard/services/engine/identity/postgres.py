"""Addresses of PostgreSQL databases with a search index, and the mark of such a database."""

from __future__ import annotations

from typing import Any

SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")
TABLE = "chunk_index_system"
"""The table with the mark: the system that the database belongs to."""


def is_postgres(url: str) -> bool:
    """Tell whether the address is that of a PostgreSQL database."""
    return url.partition("://")[0] in SCHEMES and "://" in url


def dsn(url: str) -> str:
    """Return the address as asyncpg takes it, without the name of SQLAlchemy's driver."""
    return f"postgresql://{url.partition('://')[2]}"


def without_credentials(url: str) -> str:
    """Return the address of a database, an object store or a directory as it may be shown."""
    scheme, is_address, rest = url.partition("://")
    if not is_address:
        return url
    rest = rest.partition("?")[0]
    if is_postgres(url):
        return f"postgresql://{rest.rpartition('@')[2]}"
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


async def claim_database(url: str, mark: str, *, take: bool) -> str:
    """Write the mark if the database has none, or, with `take`, in any case. Return the mark that
    it has then. Raises OSError and asyncpg's errors."""
    # Imported here: modules of job types import this one, and load no database library.
    from switchyard.services.engine.ledger.sql.postgres_servers import (
        connection_options,
        open_connection,
    )

    connection: Any = await open_connection(dsn(url), **connection_options())
    try:
        await connection.execute(
            f"CREATE TABLE IF NOT EXISTS {TABLE} (single bool PRIMARY KEY CHECK (single), "
            "told text)"
        )
        conflict = "DO UPDATE SET told = excluded.told" if take else "DO NOTHING"
        await connection.execute(
            f"INSERT INTO {TABLE} VALUES (true, $1) ON CONFLICT (single) {conflict}", mark
        )
        return str(await connection.fetchval(f"SELECT left(told, 1000) FROM {TABLE}"))
    finally:
        await connection.close(timeout=1)

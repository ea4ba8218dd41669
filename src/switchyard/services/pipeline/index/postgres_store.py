"""Keep an index in PostgreSQL: a database with a table for each generation.

The catalogue of generations is a table with a row for each of its states, with the state's number
as primary key, so that only one process can write it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.library_loading import load
from switchyard.services.engine.identity.postgres import dsn, without_credentials
from switchyard.services.engine.ledger.sql.postgres_servers import (
    connection_options,
    is_demoted,
    open_connection,
)
from switchyard.services.pipeline.index.chunk_index import (
    ChunkIndex,
    IndexMismatch,
    IndexUnavailable,
)
from switchyard.services.pipeline.index.generations import (
    FIRST_TABLE,
    Generation,
    Generations,
    decode_state,
    encode_state,
)
from switchyard.services.pipeline.index.lance_store import mismatch
from switchyard.services.pipeline.index.postgres_counts import counts_of
from switchyard.services.pipeline.index.postgres_table import (
    SELECT_DESCRIPTION,
    PostgresTable,
    TableDescription,
    create_table,
    description_of,
    fetch_description,
)

CONNECTIONS = 8
"""Most connections of one process."""
_TIMEOUT = 60.0
"""Seconds that a statement may take; maintenance has no limit."""
_CATALOGUE = "chunk_index_generations"
_NOTES = "chunk_index_notes"
_SELECT_STATE = (
    f"SELECT * FROM (SELECT (SELECT state FROM {_CATALOGUE} ORDER BY number DESC LIMIT 1)) "
    f"AS latest LEFT JOIN ({SELECT_DESCRIPTION}) AS described ON true"
)
"""The catalogue's last state and the description of a table; NULL for the one that is missing."""
_LOCK = 0x5357_4944
"""Key of the advisory lock of processes that make or drop tables: two at once would conflict."""


class PostgresStore:
    """An index in a database; connects when it is first used."""

    def __init__(self, url: str) -> None:
        self.location = without_credentials(url)
        self._dsn = dsn(url)
        self._pool: Any = None
        self._ready = False

    async def load(self) -> None:
        await load("asyncpg")

    async def generations(self, default: Generation) -> Generations:
        async with self._connection() as connection:
            row = await connection.fetchrow(_SELECT_STATE, FIRST_TABLE)
        if row["state"] is not None:
            return decode_state(row["state"])
        description = description_of(row)
        return Generations(
            default
            if description is None
            else Generation(FIRST_TABLE, description.embedder, description.dimensions)
        )

    async def put_state(self, state: Generations) -> bool:
        async with self._connection() as connection:
            inserted = await connection.fetchval(
                f"INSERT INTO {_CATALOGUE} VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING number",
                state.number,
                encode_state(state).decode(),
            )
        return inserted is not None

    @asynccontextmanager
    async def table(self, generation: Generation) -> AsyncIterator[ChunkIndex]:
        async with self._connection() as connection:
            description = await fetch_description(connection, generation.table)
            if description is None:
                async with self._locked_transaction(connection):
                    description = await fetch_description(connection, generation.table)
                    if description is None:
                        await create_table(connection, generation)
                        description = TableDescription(generation.embedder, generation.dimensions)
        if (description.embedder, description.dimensions) != (
            generation.embedder,
            generation.dimensions,
        ):
            raise mismatch(description.embedder, description.dimensions, generation)
        yield PostgresTable(self._connection, generation, description)

    @asynccontextmanager
    async def compacting(self, generation: Generation) -> AsyncIterator[bool]:
        yield True  # the server itself lets only one process vacuum a table or build its index

    async def text_index_version(self, generation: Generation) -> int | None:
        async with self._connection() as connection:
            description = await fetch_description(connection, generation.table)
        return None if description is None else description.text_index_version

    async def drop(self, generation: Generation) -> None:
        async with self._connection() as connection, self._locked_transaction(connection):
            table = generation.table
            await connection.execute(f"DROP TABLE IF EXISTS {table}, {counts_of(table)}")
            await connection.execute(
                f"DELETE FROM {_NOTES} WHERE name = ANY($1)",
                [table, _probe_name(generation)],
            )

    async def put_progress(self, generation: Generation, text: str) -> None:
        async with self._connection() as connection:
            await connection.execute(
                f"INSERT INTO {_NOTES} VALUES ($1, $2) "
                "ON CONFLICT (name) DO UPDATE SET noted = excluded.noted",
                generation.table,
                text,
            )

    async def progress(self, generation: Generation) -> str | None:
        return await self._read_note(generation.table)

    async def probe(self, generation: Generation) -> str | None:
        return await self._read_note(_probe_name(generation))

    async def put_probe(self, generation: Generation, text: str) -> str:
        name = _probe_name(generation)
        async with self._connection() as connection:
            await connection.execute(
                f"INSERT INTO {_NOTES} VALUES ($1, $2) ON CONFLICT DO NOTHING", name, text
            )
        return await self._read_note(name) or text

    async def _read_note(self, name: str) -> str | None:
        async with self._connection() as connection:
            note: str | None = await connection.fetchval(
                f"SELECT noted FROM {_NOTES} WHERE name = $1", name
            )
        return note

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        """Borrow a connection of the pool. Raises IndexUnavailable where the database does not
        answer, IndexMismatch where its tables were changed by hand, PermanentError where it has no
        pgvector."""
        await self.load()
        import asyncpg

        try:
            if self._pool is None:
                self._pool = asyncpg.create_pool(
                    self._dsn,
                    min_size=0,
                    max_size=CONNECTIONS,
                    command_timeout=_TIMEOUT,
                    connect=open_connection,
                    reset=_reset_nothing,
                    **connection_options(),
                )
            pool = await self._pool
            async with pool.acquire(timeout=_TIMEOUT) as connection:
                try:
                    if not self._ready:
                        await self._prepare(connection)
                        self._ready = True
                    yield connection
                except (TimeoutError, asyncio.CancelledError):
                    # Otherwise the pool would wait as long again, to cancel the statement.
                    connection.terminate()
                    raise
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
            self._ready = False
            raise IndexUnavailable(
                f"the index at {self.location} is being changed: {error}"
            ) from error
        except (asyncpg.DataError, asyncpg.SyntaxOrAccessError) as error:
            raise IndexMismatch(f"the index at {self.location}: {error}") from error
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            if is_demoted(error) or isinstance(error, TimeoutError):
                # New connections lead to the server that takes writes, and answers, now.
                await self._pool.expire_connections()
            reason = str(error) or type(error).__name__
            raise IndexUnavailable(f"the index at {self.location}: {reason}") from error

    async def _prepare(self, connection: Any) -> None:
        import asyncpg

        has_all = await connection.fetchval(
            "SELECT to_regtype('vector') IS NOT NULL AND to_regclass($1) IS NOT NULL "
            "AND to_regclass($2) IS NOT NULL",
            _CATALOGUE,
            _NOTES,
        )
        if has_all:
            return
        async with self._locked_transaction(connection):
            try:
                await connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            except (asyncpg.FeatureNotSupportedError, asyncpg.UndefinedFileError) as error:
                raise PermanentError(
                    f"the server of {self.location} has no pgvector: install it there (on Debian, "
                    "postgresql-NN-pgvector), or set JOBS_INDEX_URL to a directory"
                ) from error
            except asyncpg.InsufficientPrivilegeError as error:
                raise PermanentError(
                    f"the user of JOBS_INDEX_URL may not make the extension: have an administrator "
                    f"run `CREATE EXTENSION vector` in {self.location}"
                ) from error
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS {_CATALOGUE} "
                "(number bigint PRIMARY KEY, state text NOT NULL)"
            )
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS {_NOTES} (name text PRIMARY KEY, noted text NOT NULL)"
            )

    @asynccontextmanager
    async def _locked_transaction(self, connection: Any) -> AsyncIterator[None]:
        """Open a transaction during which no other process makes or drops tables."""
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            yield


async def _reset_nothing(connection: Any) -> None:
    """Reset nothing when a connection goes back to the pool, which saves a round trip for each
    search. Settings hold for one transaction; a connection with settings that would outlast their
    transaction is closed."""


def _probe_name(generation: Generation) -> str:
    return f"{generation.table}.probe"

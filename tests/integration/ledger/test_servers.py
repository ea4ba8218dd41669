"""Ledger and index connect to PostgreSQL by the same rules."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import Connection

from switchyard.broker.wire.tcp_timeout import TCP_OPTIONS
from switchyard.services.engine.identity.postgres import dsn
from switchyard.services.engine.ledger.sql.database import connect
from switchyard.services.engine.ledger.sql.postgres_servers import (
    connection_options,
    open_connection,
)
from switchyard.services.pipeline.index.chunk_index import IndexUnavailable
from switchyard.services.pipeline.index.generations import Generation
from switchyard.services.pipeline.index.postgres_store import PostgresStore

FIRST = Generation("chunks", "test", 8)


@asynccontextmanager
async def home_at(url: str) -> AsyncIterator[PostgresStore]:
    home = PostgresStore(url)
    try:
        yield home
    finally:
        await home.close()


def assert_watched(found: Any) -> None:
    assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    for name, value in TCP_OPTIONS.items():
        assert found.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value


async def test_the_kernel_is_asked_to_notice_that_the_ledgers_server_is_cut_off(
    empty_postgres_url: str,
) -> None:
    def look(connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert driver is not None
        assert_watched(driver._transport.get_extra_info("socket"))

    database = await connect(empty_postgres_url)
    try:
        await database.read(look)
    finally:
        await database.close()


async def test_and_so_on_a_connection_of_the_index(pgvector_url: str) -> None:
    async with home_at(pgvector_url) as home, home._connection() as connection:
        assert_watched(connection._con._transport.get_extra_info("socket"))


async def test_an_index_whose_server_was_demoted_is_away_only_until_another_takes_writes(
    pgvector_url: str,
) -> None:
    """As after a fail-over behind one name: connections that are open lead to the old server."""
    database = pgvector_url.rpartition("/")[2]
    async with home_at(pgvector_url) as home:
        await home.put_progress(FIRST, "before")  # which makes its tables
    administrator = await open_connection(dsn(pgvector_url), **connection_options())
    try:
        await administrator.execute(
            f"ALTER DATABASE {database} SET default_transaction_read_only = on"
        )
        async with home_at(pgvector_url) as home:
            with pytest.raises(IndexUnavailable, match="read-only"):
                await home.put_progress(FIRST, "refused")
            await administrator.execute(f"ALTER DATABASE {database} RESET ALL")
            await home.put_progress(FIRST, "after")
            assert await home.progress(FIRST) == "after"
    finally:
        await administrator.close()


async def test_an_index_on_several_hosts_is_on_the_one_that_takes_writes(
    pgvector_url: str,
) -> None:
    scheme, _, rest = pgvector_url.partition("://")
    login, _, place = rest.rpartition("@")
    async with home_at(f"{scheme}://{login}@127.0.0.1:1,{place}") as home:
        await home.put_progress(FIRST, "there")
        assert await home.progress(FIRST) == "there"

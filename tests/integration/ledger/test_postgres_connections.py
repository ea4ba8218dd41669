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

GENERATION = Generation("chunks", "test", 8)


@asynccontextmanager
async def open_store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    try:
        yield store
    finally:
        await store.close()


def assert_kernel_watches(connection_socket: Any) -> None:
    """Check that the kernel soon notices when the server is cut off."""
    assert connection_socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    for name, value in TCP_OPTIONS.items():
        assert connection_socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value


async def test_the_kernel_watches_connections_of_the_ledger(
    empty_postgres_url: str,
) -> None:
    def check_socket(connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert driver is not None
        assert_kernel_watches(driver._transport.get_extra_info("socket"))

    database = await connect(empty_postgres_url)
    try:
        await database.read(check_socket)
    finally:
        await database.close()


async def test_the_kernel_watches_connections_of_the_index(pgvector_url: str) -> None:
    async with open_store(pgvector_url) as store, store._connection() as connection:
        assert_kernel_watches(connection._con._transport.get_extra_info("socket"))


async def test_an_index_whose_server_was_demoted_is_away_only_until_another_takes_writes(
    pgvector_url: str,
) -> None:
    """As after a fail-over behind one name: connections that are open lead to the old server."""
    database = pgvector_url.rpartition("/")[2]
    async with open_store(pgvector_url) as store:
        await store.put_progress(GENERATION, "before")  # which makes its tables
    administrator = await open_connection(dsn(pgvector_url), **connection_options())
    try:
        await administrator.execute(
            f"ALTER DATABASE {database} SET default_transaction_read_only = on"
        )
        async with open_store(pgvector_url) as store:
            with pytest.raises(IndexUnavailable, match="read-only"):
                await store.put_progress(GENERATION, "refused")
            await administrator.execute(f"ALTER DATABASE {database} RESET ALL")
            await store.put_progress(GENERATION, "after")
            assert await store.progress(GENERATION) == "after"
    finally:
        await administrator.close()


async def test_an_index_on_several_hosts_is_on_the_one_that_takes_writes(
    pgvector_url: str,
) -> None:
    scheme, _, login_and_server = pgvector_url.partition("://")
    login, _, server = login_and_server.rpartition("@")
    async with open_store(f"{scheme}://{login}@127.0.0.1:1,{server}") as store:
        await store.put_progress(GENERATION, "there")
        assert await store.progress(GENERATION) == "there"

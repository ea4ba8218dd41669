"""Errors of the database drivers become errors of the ledger."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine, exc, text
from sqlalchemy.pool import QueuePool

from switchyard.services.engine.ledger.sql.driver_errors import translate
from switchyard.services.engine.records.errors import (
    LedgerLocked,
    LedgerReadOnly,
    LedgerUnavailable,
)


def test_a_pool_whose_connections_are_all_in_use_means_an_unreachable_database() -> None:
    def connection() -> sqlite3.Connection:
        return sqlite3.connect(":memory:")

    pool = QueuePool(connection, pool_size=1, max_overflow=0, timeout=0)  # type: ignore[arg-type]
    only_connection = pool.connect()
    with pytest.raises(exc.TimeoutError) as raised:
        pool.connect()
    error = translate(raised.value)
    assert isinstance(error, LedgerUnavailable)
    assert str(error).startswith("the ledger's database does not answer: all connections of this")
    only_connection.close()
    pool.dispose()


def test_a_read_only_file_has_its_own_error(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE jobs (id TEXT)")
    engine = create_engine(f"sqlite:///file:{file}?mode=ro&uri=true")
    with engine.connect() as connection, pytest.raises(exc.OperationalError) as raised:
        connection.execute(text("DELETE FROM jobs"))
    error = translate(raised.value)
    assert isinstance(error, LedgerReadOnly)
    assert str(error).startswith("the ledger's file takes no writes")
    engine.dispose()


def test_a_locked_file_has_its_own_error(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    engine = create_engine(f"sqlite:///{file}", connect_args={"timeout": 0.01})
    with engine.connect() as connection, pytest.raises(exc.OperationalError) as raised:
        connection.execute(text("CREATE TABLE jobs (id TEXT)"))
    assert isinstance(translate(raised.value), LedgerLocked)
    engine.dispose()
    holder.close()

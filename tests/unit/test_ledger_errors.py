"""What the ledger says of an error of a library under it."""

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


def test_connections_that_all_wait_for_a_frozen_server_are_told_in_plain_words() -> None:
    def connection() -> sqlite3.Connection:
        return sqlite3.connect(":memory:")

    pool = QueuePool(connection, pool_size=1, max_overflow=0, timeout=0)  # type: ignore[arg-type]
    held = pool.connect()
    with pytest.raises(exc.TimeoutError) as raised:
        pool.connect()
    told = translate(raised.value)
    assert isinstance(told, LedgerUnavailable)
    assert str(told).startswith("the ledger's database does not answer: all connections of this")
    held.close()
    pool.dispose()


def test_a_file_that_takes_no_writes_is_told_apart_from_one_that_is_away(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE jobs (id TEXT)")
    engine = create_engine(f"sqlite:///file:{file}?mode=ro&uri=true")
    with engine.connect() as connection, pytest.raises(exc.OperationalError) as raised:
        connection.execute(text("DELETE FROM jobs"))
    told = translate(raised.value)
    assert isinstance(told, LedgerReadOnly)
    assert str(told).startswith("the ledger's file takes no writes")
    engine.dispose()


def test_a_file_that_another_process_holds_is_locked(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    engine = create_engine(f"sqlite:///{file}", connect_args={"timeout": 0.01})
    with engine.connect() as connection, pytest.raises(exc.OperationalError) as raised:
        connection.execute(text("CREATE TABLE jobs (id TEXT)"))
    assert isinstance(translate(raised.value), LedgerLocked)
    engine.dispose()
    holder.close()

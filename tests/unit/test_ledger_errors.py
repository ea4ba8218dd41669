"""What the ledger says of an error of a library under it."""

import sqlite3

import pytest
from sqlalchemy import exc
from sqlalchemy.pool import QueuePool

from switchyard.services.engine.ledger.sql.driver_errors import translate
from switchyard.services.engine.records.errors import LedgerUnavailable


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

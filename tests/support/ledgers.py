"""Ledgers with their tables, copied from one that this process has made.

The migrations would take 0.05 s (SQLite) or 0.2 s (PostgreSQL) of each of a thousand tests. They
are tested in tests/integration/ledger/test_migrations.py.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sqlite3
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path

from sqlalchemy.engine import make_url

from switchyard.services.engine.ledger import Ledger, upgrade
from switchyard.services.engine.ledger.sql.postgres_servers import servers_of
from switchyard.services.engine.ledger.sql.upgrade import ID_BYTES
from switchyard.services.engine.records.errors import LedgerError
from tests.support.postgres import LEDGERS


@cache
def _template() -> Path:
    """Return a new ledger's file, from which the others are copied."""
    folder = Path(_folder().name)
    with ThreadPoolExecutor(1) as pool:  # the caller's own event loop is running
        pool.submit(asyncio.run, upgrade(f"sqlite+aiosqlite:///{folder / 'ledger.db'}")).result()
    return folder / "ledger.db"


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="switchyard-ledger-")


async def make_ledger(url: str) -> None:
    """Make a ledger as `upgrade` does, with the tables and an id of its own. An existing one stays
    unchanged."""
    address = make_url(servers_of(url)[0])
    if (address.database or "").startswith(LEDGERS):
        return  # checking for its tables would take two connections
    if address.get_backend_name() != "sqlite":
        try:
            await (await Ledger.open(url, check=True)).close()
        except LedgerError:
            await upgrade(url)
        return
    path = Path(address.database or "")
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(_template(), path)
    with closing(sqlite3.connect(path)) as connection, connection:
        id_and_name = (secrets.token_hex(ID_BYTES), path.parent.name)
        connection.execute("UPDATE system_id SET id = ?, name = ?", id_and_name)

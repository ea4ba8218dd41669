"""Ledgers with their tables, copied from one that this process has made.

The migrations take a twentieth of a second of SQLite and a fifth of PostgreSQL, for each of a
thousand tests; tests/integration/ledger/test_migrations.py is where they run themselves.
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
    """Return a file that nobody uses, removed with this process's other temporary files."""
    folder = Path(_folder().name)
    with ThreadPoolExecutor(1) as pool:  # the loop of whoever asks is running
        pool.submit(asyncio.run, upgrade(f"sqlite+aiosqlite:///{folder / 'ledger.db'}")).result()
    return folder / "ledger.db"


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="switchyard-ledger-")


async def make_ledger(url: str) -> None:
    """Make what `upgrade` makes: the tables, and an id of its own. An existing one stays as it
    is."""
    address = make_url(servers_of(url)[0])
    if (address.database or "").startswith(LEDGERS):
        return  # to look whether its tables are there takes two connections
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
        own = (secrets.token_hex(ID_BYTES), path.parent.name)
        connection.execute("UPDATE system_id SET id = ?, name = ?", own)

"""Bring a database's tables up to date."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from switchyard.services.ledger.sql.database import connect

_LOCK = 0x5377697463687964
"""PostgreSQL's advisory lock that one upgrade at a time holds."""


@dataclass(frozen=True, slots=True)
class Upgraded:
    """A ledger whose tables are those of this program."""

    where: str
    """Its file, or server and database, without credentials."""
    is_new: bool
    """There was none before."""


async def upgrade(url: str) -> Upgraded:
    """Create the tables, or migrate them to this program's version. Nothing happens when they
    are up to date. Two at the same time wait for each other. Raises LedgerError.

    This alone makes a ledger where there is none."""
    database = connect(url, create=True)
    try:
        is_new = await database.write(_migrate)
        return Upgraded(database.where, is_new=is_new)
    finally:
        await database.close()


def _migrate(connection: Connection) -> bool:
    """True where there were no tables."""
    # Imported here: nothing else needs it, and it takes its time.
    from alembic import command
    from alembic.config import Config

    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
    is_new = not inspect(connection).has_table("alembic_version")
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    return is_new

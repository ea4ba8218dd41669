"""Bring a database's tables up to date."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, text

from switchyard.services.ledger.sql.database import connect

_LOCK = 0x5377697463687964
"""PostgreSQL's advisory lock that one upgrade at a time holds."""


async def upgrade(url: str) -> None:
    """Create the tables, or migrate them to this program's version. Nothing happens when they
    are up to date. Two at the same time wait for each other. Raises LedgerError."""
    database = connect(url)
    try:
        await database.write(_migrate)
    finally:
        await database.close()


def _migrate(connection: Connection) -> None:
    # Imported here: nothing else needs it, and it takes its time.
    from alembic import command
    from alembic.config import Config

    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")

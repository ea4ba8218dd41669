"""Bring a database's tables up to date."""

from __future__ import annotations

import re
import secrets
import socket
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, text

from switchyard.services.common.library_loading import load
from switchyard.services.engine.ledger.sql.database import connect
from switchyard.services.engine.ledger.sql.tables_version import has_tables, read_tables_version

LOCK = 0x5377697463687964
"""PostgreSQL's advisory lock that one change of tables or their users at a time holds."""

ID_BYTES = 6
"""Bytes of a system's id, which has twice as many hexadecimal digits."""
KEY_BYTES = 32
"""Bytes of the key with which ids of its jobs are made."""
FIRST_WITH_KEY = "0039"
"""The version of the tables that brought the key. Programs of earlier versions derive ids without
it, and so may not use a ledger that has one."""
MAX_NAME_LENGTH = 40
"""Characters of a system's name."""


@dataclass(frozen=True, slots=True)
class UpgradeResult:
    """A ledger whose tables are those of this program."""

    location: str
    """Location of the ledger: its file, or server and database, without credentials."""
    is_new: bool
    """Whether this call has created the ledger."""


async def upgrade(url: str) -> UpgradeResult:
    """Create the tables, or migrate them to this program's version. Does nothing when they are up
    to date, or newer and this program may use them. Concurrent calls wait for each other. Raises
    LedgerError.

    Nothing else creates a ledger."""
    await load("alembic.command", "alembic.config", "alembic.script")
    database = await connect(url, create=True)
    try:
        is_new = await database.write(partial(_migrate, _name_system(database.location)))
        return UpgradeResult(database.location, is_new=is_new)
    finally:
        await database.close()


def _name_system(location: str) -> str:
    """Return a name for the system of that ledger: its folder or database, and the host."""
    if location.startswith("postgresql://"):
        host, _, base = location.removeprefix("postgresql://").partition("/")
    else:
        folder = Path(location).parent
        base = (folder.parent if folder.name.startswith(".") else folder).name
        host = socket.gethostname()
    return re.sub(r"[^A-Za-z0-9@_-]", "-", f"{base or 'root'}@{host.partition(':')[0]}")[
        :MAX_NAME_LENGTH
    ]


def _migrate(name: str, connection: Connection) -> bool:
    """Migrate the tables; return True where there were none."""
    # Imported here: nothing else needs it, and it takes its time.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
    is_new = not has_tables(connection)
    if not is_new and (version := read_tables_version(connection)) and version.is_newer:
        version.require_usable()
        return False
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    if connection.scalar(text("SELECT count(*) FROM system_id")) == 0:
        connection.execute(
            text(
                "INSERT INTO system_id (id, name, generation, created_at, job_id_key) "
                "VALUES (:id, :name, 0, :now, :key)"
            ),
            {
                "id": secrets.token_hex(ID_BYTES),
                "name": name,
                "now": time.time(),
                "key": secrets.token_hex(KEY_BYTES),
            },
        )
    migrations = ScriptDirectory.from_config(config).walk_revisions()
    oldest = max(getattr(each.module, "oldest_program", "") for each in migrations)
    connection.execute(
        text(
            "UPDATE system_id SET oldest_program = CASE "
            "WHEN job_id_key IS NOT NULL AND :oldest < :keyed THEN :keyed ELSE :oldest END"
        ),
        {"oldest": oldest, "keyed": FIRST_WITH_KEY},
    )
    return is_new

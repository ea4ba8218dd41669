"""Read the version of a ledger's tables, and decide which programs may use them.

Migrations change the tables while processes of the release before are running. So a migration
either keeps all that those processes use, or removes something. One that removes something names in
`oldest_program` the first version of the tables whose programs no longer use it. The ledger stores
the newest `oldest_program`, so that a program knows whether it may use tables that are newer than
itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, inspect, text

from switchyard.services.engine.ledger.sql.tables import SCHEMA_REVISION
from switchyard.services.engine.records.errors import ProgramOutdated, SchemaOutdated


@dataclass(frozen=True, slots=True)
class TablesVersion:
    """The version of a ledger's tables."""

    revision: str
    oldest_program: str | None
    """The oldest version whose programs may use these tables. None where the ledger does not store
    it."""

    @property
    def is_newer(self) -> bool:
        """Whether they are newer than this program."""
        return self.revision > SCHEMA_REVISION

    def require_usable(self) -> None:
        """Raise SchemaOutdated or ProgramOutdated unless this program may use the tables."""
        if self.revision < SCHEMA_REVISION:
            raise SchemaOutdated("the ledger's tables are old: run `jobctl db upgrade`")
        if self.is_newer and (self.oldest_program or self.revision) > SCHEMA_REVISION:
            raise ProgramOutdated(
                f"the ledger's tables are of version {self.revision}, this program knows "
                f"{SCHEMA_REVISION}: install a newer one"
            )


def read_tables_version(connection: Connection) -> TablesVersion | None:
    """Return the version of the tables; None where no migration was recorded. Raises SchemaOutdated
    where there are no tables."""
    revision = connection.scalar(text("SELECT version_num FROM alembic_version"))
    if revision is None:
        return None
    oldest = None
    if revision > SCHEMA_REVISION:
        # Only then: tables from before 0034 have no such column.
        oldest = connection.scalar(text("SELECT oldest_program FROM system_id"))
    return TablesVersion(str(revision), oldest)


def has_tables(connection: Connection) -> bool:
    """Tell whether a ledger was made in this database."""
    return inspect(connection).has_table("alembic_version")

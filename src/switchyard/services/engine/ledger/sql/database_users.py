"""Users of the ledger's database, each with no more rights than its processes need.

The user that makes the tables owns them. Whoever owns a table may drop it; so the processes have
another one, which may only read and write rows.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from sqlalchemy import Connection, text

from switchyard.services.engine.ledger.sql.database import connect
from switchyard.services.engine.ledger.sql.upgrade import LOCK
from switchyard.services.engine.records.errors import LedgerMisconfigured, SchemaOutdated

PASSWORD_BYTES = 24
_SALT_BYTES, _ITERATIONS = 16, 4096
"""PostgreSQL's own, of a password that it is told."""
_VERSION = "alembic_version"
"""The table that says of which version the others are."""


@dataclass(frozen=True, slots=True)
class DatabaseRole:
    """Rights of one kind of process for each table."""

    name: str
    purpose: str
    rights: str


DATABASE_ROLES = (
    DatabaseRole(
        "application",
        "API, workers, schedulers, `jobctl` by hand: read and write rows",
        "SELECT, INSERT, UPDATE, DELETE",
    ),
    DatabaseRole("reader", "psql and reports: read rows", "SELECT"),
)


@dataclass(frozen=True, slots=True)
class MadeDatabaseUser:
    """A user of the database, as `make_database_users` leaves it."""

    name: str
    role: DatabaseRole
    password: str | None
    """Password to show; None where the user existed and keeps its own, or where it was given."""


async def make_database_users(
    url: str,
    prefix: str,
    *,
    renew: bool = False,
    passwords: Mapping[str, str] = MappingProxyType({}),
) -> list[MadeDatabaseUser]:
    """Make a user for each role, `<prefix>_<role>`, or give one that is there its rights again;
    they hold for tables that later upgrades make, too. `url` is that of the tables' owner, who
    must be allowed to make users.

    `passwords` are passwords by role: such a user has that one from now on. With `renew` the others
    that are there get new passwords, too. Raises LedgerError.
    """
    database = await connect(url)
    try:
        return await database.write(partial(_make, prefix, renew, passwords))
    finally:
        await database.close()


def _make(
    prefix: str, renew: bool, passwords: Mapping[str, str], connection: Connection
) -> list[MadeDatabaseUser]:
    if connection.dialect.name != "postgresql":
        raise LedgerMisconfigured("the ledger is a file of SQLite, which has no users")
    connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
    _must_own(connection)
    # Before PostgreSQL 15 everybody may make tables there.
    _run(connection, "REVOKE CREATE ON SCHEMA %I FROM PUBLIC", _schema(connection))
    made_users = []
    for role in DATABASE_ROLES:
        name = f"{prefix}_{role.name}"
        there = connection.scalar(
            text("SELECT count(*) FROM pg_roles WHERE rolname = :name"), {"name": name}
        )
        notice = None
        if role.name not in passwords and (renew or not there):
            notice = secrets.token_urlsafe(PASSWORD_BYTES)
        if (password := passwords.get(role.name, notice)) is not None:
            verb = "ALTER" if there else "CREATE"
            _run(connection, f"{verb} ROLE %I LOGIN PASSWORD %L", name, scram_verifier(password))
        _grant(connection, name, role.rights)
        made_users.append(MadeDatabaseUser(name, role, notice))
    return made_users


def scram_verifier(password: str) -> str:
    """Return what PostgreSQL keeps of a password (RFC 5803). It is made here, so that the password
    itself is in no statement, which the server may log.

    Raises LedgerMisconfigured for other characters than printable ASCII: how they are compared
    is not the same in all clients.
    """
    if not (password.isascii() and password.isprintable()):
        raise LedgerMisconfigured("passwords of database users are of printable ASCII characters")
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    client, server = (hmac.digest(salted, of, "sha256") for of in (b"Client Key", b"Server Key"))
    stored_keys = (salt, hashlib.sha256(client).digest(), server)
    salt64, stored64, server64 = (b64encode(each).decode() for each in stored_keys)
    return f"SCRAM-SHA-256${_ITERATIONS}:{salt64}${stored64}:{server64}"


def _must_own(connection: Connection) -> None:
    owner = connection.scalar(
        text(
            "SELECT tableowner FROM pg_tables "
            f"WHERE schemaname = current_schema() AND tablename = '{_VERSION}'"
        )
    )
    if owner is None:
        raise SchemaOutdated("the ledger has no tables yet: run `jobctl db upgrade` first")
    if owner != (me := connection.scalar(text("SELECT current_user"))):
        raise LedgerMisconfigured(
            f"the ledger's tables belong to {owner!r}, and JOBS_DATABASE_URL names {me!r}: "
            "only the owner can let others use them"
        )


def _grant(connection: Connection, name: str, rights: str) -> None:
    schema = _schema(connection)
    database = connection.scalar(text("SELECT current_database()"))
    _run(connection, "GRANT CONNECT ON DATABASE %I TO %I", database, name)
    _run(connection, "GRANT USAGE ON SCHEMA %I TO %I", schema, name)
    ours = text(
        "SELECT tablename FROM pg_tables "
        "WHERE schemaname = current_schema() AND tableowner = current_user"
    )
    for table in connection.scalars(ours).all():
        _run(connection, "REVOKE ALL ON %I.%I FROM %I", schema, table, name)
        allowed = "SELECT" if table == _VERSION else rights
        _run(connection, f"GRANT {allowed} ON %I.%I TO %I", schema, table, name)
    coming = "ALTER DEFAULT PRIVILEGES IN SCHEMA %I"
    _run(connection, f"{coming} GRANT {rights} ON TABLES TO %I", schema, name)
    if rights != "SELECT":
        _run(connection, f"{coming} GRANT USAGE ON SEQUENCES TO %I", schema, name)
        _run(connection, "GRANT USAGE ON ALL SEQUENCES IN SCHEMA %I TO %I", schema, name)


def _schema(connection: Connection) -> str:
    return str(connection.scalar(text("SELECT current_schema()")))


def _run(connection: Connection, statement: str, *values: str) -> None:
    """Run a statement that takes no parameters; the server quotes names (%I) and texts (%L)."""
    quoted = connection.scalar(
        text("SELECT format(CAST(:form AS text), VARIADIC CAST(:given AS text[]))"),
        {"form": statement, "given": list(values)},
    )
    connection.exec_driver_sql(str(quoted))

"""Users of the ledger's database, each with no more rights than its processes need.

The user that makes the tables owns them, and an owner may drop tables. So processes use other
users, which may only read and write rows.
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
"""As PostgreSQL itself chooses them."""
_VERSION_TABLE = "alembic_version"
"""The table with the version of the others."""


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
    """Make a user for each role, `<prefix>_<role>`, or give an existing one its rights again; they
    also hold for tables that later upgrades make. `url` is that of the tables' owner, who must be
    allowed to make users.

    `passwords` are passwords to set, by role. With `renew`, other existing users get new passwords.
    Raises LedgerError.
    """
    database = await connect(url)
    try:
        return await database.write(partial(_make_users, prefix, renew, passwords))
    finally:
        await database.close()


def _make_users(
    prefix: str, renew: bool, passwords: Mapping[str, str], connection: Connection
) -> list[MadeDatabaseUser]:
    if connection.dialect.name != "postgresql":
        raise LedgerMisconfigured("the ledger is a file of SQLite, which has no users")
    connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
    _require_owner(connection)
    # Before PostgreSQL 15 everybody may make tables there.
    _run_quoted(connection, "REVOKE CREATE ON SCHEMA %I FROM PUBLIC", _schema(connection))
    made_users = []
    for role in DATABASE_ROLES:
        name = f"{prefix}_{role.name}"
        exists = connection.scalar(
            text("SELECT count(*) FROM pg_roles WHERE rolname = :name"), {"name": name}
        )
        new_password = None
        if role.name not in passwords and (renew or not exists):
            new_password = secrets.token_urlsafe(PASSWORD_BYTES)
        if (password := passwords.get(role.name, new_password)) is not None:
            verb = "ALTER" if exists else "CREATE"
            _run_quoted(
                connection, f"{verb} ROLE %I LOGIN PASSWORD %L", name, scram_verifier(password)
            )
        _grant(connection, name, role.rights)
        made_users.append(MadeDatabaseUser(name, role, new_password))
    return made_users


def scram_verifier(password: str) -> str:
    """Return what PostgreSQL keeps of a password (RFC 5803). It is made here, so that the password
    itself is in no statement, which the server may log.

    Raises LedgerMisconfigured for other characters than printable ASCII, which clients normalise
    differently.
    """
    if not (password.isascii() and password.isprintable()):
        raise LedgerMisconfigured("passwords of database users are of printable ASCII characters")
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    client, server = (
        hmac.digest(salted, label, "sha256") for label in (b"Client Key", b"Server Key")
    )
    stored_keys = (salt, hashlib.sha256(client).digest(), server)
    salt64, stored64, server64 = (b64encode(each).decode() for each in stored_keys)
    return f"SCRAM-SHA-256${_ITERATIONS}:{salt64}${stored64}:{server64}"


def _require_owner(connection: Connection) -> None:
    owner = connection.scalar(
        text(
            "SELECT tableowner FROM pg_tables "
            f"WHERE schemaname = current_schema() AND tablename = '{_VERSION_TABLE}'"
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
    _run_quoted(connection, "GRANT CONNECT ON DATABASE %I TO %I", database, name)
    _run_quoted(connection, "GRANT USAGE ON SCHEMA %I TO %I", schema, name)
    own_tables = text(
        "SELECT tablename FROM pg_tables "
        "WHERE schemaname = current_schema() AND tableowner = current_user"
    )
    for table in connection.scalars(own_tables).all():
        _run_quoted(connection, "REVOKE ALL ON %I.%I FROM %I", schema, table, name)
        allowed = "SELECT" if table == _VERSION_TABLE else rights
        _run_quoted(connection, f"GRANT {allowed} ON %I.%I TO %I", schema, table, name)
    default_privileges = "ALTER DEFAULT PRIVILEGES IN SCHEMA %I"
    _run_quoted(connection, f"{default_privileges} GRANT {rights} ON TABLES TO %I", schema, name)
    if rights != "SELECT":
        _run_quoted(
            connection, f"{default_privileges} GRANT USAGE ON SEQUENCES TO %I", schema, name
        )
        _run_quoted(connection, "GRANT USAGE ON ALL SEQUENCES IN SCHEMA %I TO %I", schema, name)


def _schema(connection: Connection) -> str:
    return str(connection.scalar(text("SELECT current_schema()")))


def _run_quoted(connection: Connection, statement: str, *values: str) -> None:
    """Run a statement that takes no parameters; the server quotes names (%I) and texts (%L)."""
    quoted = connection.scalar(
        text("SELECT format(CAST(:form AS text), VARIADIC CAST(:given AS text[]))"),
        {"form": statement, "given": list(values)},
    )
    connection.exec_driver_sql(str(quoted))

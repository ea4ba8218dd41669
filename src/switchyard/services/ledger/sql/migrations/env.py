"""Runs migrations on the connection, and in the transaction, that `upgrade` hands over."""

from __future__ import annotations

from alembic import context

from switchyard.services.ledger.sql.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=False,  # the caller's transaction is around all of it
)
context.run_migrations()

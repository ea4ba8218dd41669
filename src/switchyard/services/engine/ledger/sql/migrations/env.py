"""Runs migrations on the connection, and in the transaction, that `upgrade` hands over."""

from __future__ import annotations

from alembic import context

from switchyard.services.engine.ledger.sql.tables import limits

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=limits.metadata,  # all tables: this module comes last
    transactional_ddl=False,  # the caller's transaction is around all of it
)
context.run_migrations()

"""Migrations of the ledger, for Alembic."""

"""The tables of what running jobs say of themselves. Apart from `jobs`, whose rows every job
writes and reads: few jobs say anything."""

from __future__ import annotations

from sqlalchemy import Column, Double, Table, Text

from switchyard.services.engine.ledger.sql.tables import metadata

job_progress = Table(
    "job_progress",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("claim_id", Text, nullable=False),
    Column("fraction", Double),
    Column("note", Text, nullable=False),
    Column("reported_at", Double, nullable=False),
)

job_checkpoints = Table(
    "job_checkpoints",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("work", Text, nullable=False),
    Column("kept_at", Double, nullable=False),
    Column("data", Text, nullable=False),
)

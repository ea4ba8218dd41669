"""Named limits: what runs under them, what started in the last minute, and what waits."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_table(
        "limits",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("concurrency", sa.Integer()),
        sa.Column("per_minute", sa.Integer()),
        sa.Column("tokens_per_minute", sa.BigInteger()),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("bins", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", "key"),
    )
    op.create_table(
        "limit_holds",
        sa.Column("hold", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("second", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hold", "name", "key"),
    )
    op.create_index("ix_limit_holds_job_id", "limit_holds", ["job_id"])
    op.create_index("ix_limit_holds_holder", "limit_holds", ["holder"])
    op.create_index("ix_limit_holds_limit", "limit_holds", ["name", "key", "expires_at"])
    op.create_table(
        "limit_waits",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("times", sa.Integer(), nullable=False),
        sa.Column("back_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("called_until", sa.Double(), nullable=False),
        sa.Column("call_after", sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_index("ix_limit_waits_queue", "limit_waits", ["queue"])
    op.create_index("ix_limit_waits_expires_at", "limit_waits", ["expires_at"])
    op.create_index("ix_limit_waits_limit", "limit_waits", ["name", "key", "since"])

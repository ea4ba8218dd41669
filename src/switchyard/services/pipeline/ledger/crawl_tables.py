"""The tables of crawls. As in `tables`: a change here needs a migration."""

from __future__ import annotations

from sqlalchemy import Column, Double, Index, Integer, Table, Text

from switchyard.services.engine.ledger.sql.tables import metadata

crawls = Table(
    "crawls",
    metadata,
    Column("id", Text, primary_key=True),
    Column("start", Text, nullable=False),
    Column("hosts", Text, nullable=False),
    Column("max_pages", Integer, nullable=False),
    Column("max_depth", Integer, nullable=False),
    Column("deadline", Double, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("claimed", Integer, nullable=False),
    Column("cancelled_at", Double),
    Column("idempotency_key", Text),
)
Index("ix_crawls_created", crawls.c.created_at, crawls.c.id)
Index("uq_crawls_idempotency_key", crawls.c.idempotency_key, unique=True)

crawl_pages = Table(
    "crawl_pages",
    metadata,
    Column("crawl_id", Text, primary_key=True),
    Column("address", Text, primary_key=True),
    Column("job_id", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("depth", Integer, nullable=False),
    Column("found_by", Text),
    Column("due_at", Double, nullable=False),
    Column("main", Integer, nullable=False),
    Column("url", Text, nullable=False),
)
Index("ix_crawl_pages_host", crawl_pages.c.crawl_id, crawl_pages.c.host, crawl_pages.c.due_at)
Index("ix_crawl_pages_due", crawl_pages.c.crawl_id, crawl_pages.c.due_at, crawl_pages.c.job_id)

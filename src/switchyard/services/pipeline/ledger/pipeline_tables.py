"""The tables of documents, crawls, catalogues' answers and the knowledge graph.

As in the engine's `tables`, a change here needs a migration.

A graph node's id is never used twice and is only known in the ledger: elsewhere a node is named by
its keys. An edge's `owner` is the document that it comes from (`graph_documents.id`), or 0 where it
describes a work that is only cited. An owner's edges all begin at the node of its document.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, Table, Text

from switchyard.services.engine.ledger.sql.tables import metadata

# Record: `Document`.
documents = Table(
    "documents",
    metadata,
    Column("id", Text, primary_key=True),
    # Hash of the file.
    Column("content_hash", Text, nullable=False, unique=True),
    # Address or name under which it can be found.
    Column("source", Text, unique=True),
    Column("filename", Text),
    Column("title", Text),
    Column("media_type", Text),
    Column("size_bytes", BigInteger),
    # Id of the first job of its latest run.
    Column("pipeline", Text),
    # `completed`, `failed`, `needs_ocr`, or the state of its current stage (`Stage.state`).
    Column("state", Text, nullable=False),
    Column("current_stage", Text),
    # Job types, JSON.
    Column("completed_stages", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
)

Index("ix_documents_created", documents.c.created_at, documents.c.id)

# Record: `DocumentClass`.
document_classes = Table(
    "document_classes",
    metadata,
    Column("document_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("label", Text, primary_key=True),
    # By method: the points of its keywords, or the similarity.
    Column("score", Double, nullable=False),
    # The method and its evidence, JSON.
    Column("why", Text, nullable=False),
    Column("updated_at", Double, nullable=False),
)
Index(
    "ix_document_classes_label",
    document_classes.c.kind,
    document_classes.c.label,
    document_classes.c.document_id,
)

# Record: `CrawlRecord`.
crawls = Table(
    "crawls",
    metadata,
    Column("id", Text, primary_key=True),
    # JSON lists: the addresses where it begins, and the hosts whose pages belong to it.
    Column("start", Text, nullable=False),
    Column("hosts", Text, nullable=False),
    Column("max_pages", Integer, nullable=False),
    # Links on the way from a start address to a page, at most.
    Column("max_depth", Integer, nullable=False),
    # It visits no pages after this time.
    Column("deadline", Double, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    # Pages that have a job.
    Column("claimed", Integer, nullable=False),
    Column("cancelled_at", Double),
    Column("idempotency_key", Text),
)
Index("ix_crawls_created", crawls.c.created_at, crawls.c.id)
Index("uq_crawls_idempotency_key", crawls.c.idempotency_key, unique=True)

# Addresses of a crawl: each belongs to one job, so that a page is visited once.
# Record: `CrawlPage`.
crawl_pages = Table(
    "crawl_pages",
    metadata,
    Column("crawl_id", Text, primary_key=True),
    # Hash of the URL, short enough for an index.
    Column("address", Text, primary_key=True),
    Column("job_id", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("depth", Integer, nullable=False),
    # Job of the page that has the link; NULL for a start address.
    Column("found_by", Text),
    # The page is not visited before this time.
    Column("due_at", Double, nullable=False),
    # 1: the address by which the page was found; 0: one to which it redirects.
    Column("main", Integer, nullable=False),
    Column("url", Text, nullable=False),
)
Index("ix_crawl_pages_host", crawl_pages.c.crawl_id, crawl_pages.c.host, crawl_pages.c.due_at)
Index("ix_crawl_pages_due", crawl_pages.c.crawl_id, crawl_pages.c.due_at, crawl_pages.c.job_id)

# Answers of catalogues of works, and claims to ask a question.
catalogue_answers = Table(
    "catalogue_answers",
    metadata,
    Column("key", Text, primary_key=True),
    # When the answer was stored; NULL while it is only being asked for.
    Column("created_at", Double),
    # The process that asks the question, and until when no other does.
    Column("holder", Text),
    Column("lease_until", Double),
    Column("answer", Text),
)
Index("ix_catalogue_answers_created", catalogue_answers.c.created_at)

# One row, named `id`: the last id that was given. Who writes the graph locks it.
graph_counters = Table(
    "graph_counters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

# Record: `GraphNode`.
graph_nodes = Table(
    "graph_nodes",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    # A `NodeKind`.
    Column("kind", Text, nullable=False),
    # Its best key; `graph_keys` has all.
    Column("key", Text, nullable=False),
    Column("label", Text, nullable=False),
    # A work's title and its first author's family name, in the form in which they are compared.
    Column("title", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("year", Integer),
    # A `Provenance`: the origin of the node's description.
    Column("provenance", Text, nullable=False),
    # Number of works that cite it.
    Column("cited", BigInteger, nullable=False),
)
Index("ix_graph_nodes_title", graph_nodes.c.title)
Index("ix_graph_nodes_cited", graph_nodes.c.cited, graph_nodes.c.id)

graph_keys = Table(
    "graph_keys",
    metadata,
    Column("key", Text, primary_key=True),
    Column("node_id", BigInteger, nullable=False, index=True),
)

# Documents in the ledger, each with the node of its work.
graph_documents = Table(
    "graph_documents",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("document_id", Text, nullable=False, unique=True),
    Column("node_id", BigInteger, nullable=False, index=True),
)

# Record: `GraphEdge`.
graph_edges = Table(
    "graph_edges",
    metadata,
    Column("source", BigInteger, primary_key=True, autoincrement=False),
    # An `EdgeKind`.
    Column("kind", Text, primary_key=True),
    Column("target", BigInteger, primary_key=True, autoincrement=False),
    Column("owner", BigInteger, primary_key=True, autoincrement=False),
    Column("weight", Double, nullable=False),
    # `reference`, `metadata`, `similarity`, or the service that linked it.
    Column("provenance", Text, nullable=False),
    sqlite_with_rowid=False,
)
Index("ix_graph_edges_target", graph_edges.c.target, graph_edges.c.kind, graph_edges.c.source)

# Computations of ranks over the whole graph; the last finished one is used. Record: `Ranking`.
graph_rankings = Table(
    "graph_rankings",
    metadata,
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    # NULL while it is being computed.
    Column("finished_at", Double),
    Column("nodes", BigInteger, nullable=False),
    Column("edges", BigInteger, nullable=False),
    Column("communities", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
)

# Ranks of nodes.
graph_ranks = Table(
    "graph_ranks",
    metadata,
    # The computation (`graph_rankings`).
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("node_id", BigInteger, primary_key=True, autoincrement=False),
    # PageRank among all works, whose sum is 1.
    Column("rank", Double, nullable=False),
    # Number of its community, 0 the largest.
    Column("community", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
Index("ix_graph_ranks_rank", graph_ranks.c.generation, graph_ranks.c.rank, graph_ranks.c.node_id)

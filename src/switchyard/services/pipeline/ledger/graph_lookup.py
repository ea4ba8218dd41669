"""Find nodes of the graph by their keys, read them, and encode the cursors of listings."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from switchyard.services.engine.ledger.sql.dialect import among
from switchyard.services.engine.ledger.sql.paging import MAX_PAGE
from switchyard.services.engine.records.errors import InvalidCursor
from switchyard.services.pipeline.ledger.graph_rankings import is_current_rank
from switchyard.services.pipeline.ledger.pipeline_tables import (
    graph_documents,
    graph_edges,
    graph_keys,
    graph_nodes,
    graph_ranks,
)
from switchyard.services.pipeline.records.graph import (
    Direction,
    EdgeKind,
    GraphEdge,
    GraphNode,
    NodeKind,
)

EDGE_DIRECTIONS = (
    (Direction.OUT, graph_edges.c.source, graph_edges.c.target),
    (Direction.IN, graph_edges.c.target, graph_edges.c.source),
)
"""The directions in which edges are followed, each with the columns of their near and far ends."""
MERGED_EDGE = (
    func.max(graph_edges.c.weight).label("weight"),
    func.min(graph_edges.c.provenance).label("provenance"),
)
"""Weight and provenance of a group of edges that counts as one: two documents of one work may both
have an edge."""


def node_of(connection: Connection, key: str) -> int | None:
    """Return the id of the node with this key, or of the document with this id. DOIs may also be in
    capital letters."""
    spellings = (key, key.casefold())
    node_id: int | None = connection.scalar(
        select(graph_keys.c.node_id).where(graph_keys.c.key.in_(spellings)).limit(1)
    )
    if node_id is None:
        document_id = key.removeprefix("document:")
        query = select(graph_documents.c.node_id)
        node_id = connection.scalar(query.where(graph_documents.c.document_id == document_id))
    return node_id


def nodes_of(
    connection: Connection, ids: Collection[int], *, with_keys: bool = False
) -> dict[int, GraphNode]:
    """Return the nodes with these ids; ids without a node are absent."""
    if not ids:
        return {}
    query: Select[Any] = (
        select(graph_nodes, graph_ranks.c.rank, graph_ranks.c.community)
        .select_from(graph_nodes)
        .outerjoin(graph_ranks, is_current_rank())
        .where(among(connection, graph_nodes.c.id, ids))
    )
    document_rows = select(graph_documents.c.node_id, graph_documents.c.document_id).where(
        among(connection, graph_documents.c.node_id, ids)
    )
    documents: dict[int, list[str]] = {}
    for node_id, document_id in connection.execute(document_rows):
        documents.setdefault(node_id, []).append(document_id)
    keys: dict[int, list[str]] = {}
    if with_keys:
        key_rows = select(graph_keys.c.node_id, graph_keys.c.key).where(
            among(connection, graph_keys.c.node_id, ids)
        )
        for node_id, key in connection.execute(key_rows):
            keys.setdefault(node_id, []).append(key)
    return {
        row.id: GraphNode(
            key=row.key,
            kind=NodeKind(row.kind),
            label=row.label,
            year=row.year,
            provenance=row.provenance,
            cited=row.cited,
            rank=row.rank,
            community=row.community,
            documents=tuple(sorted(documents.get(row.id, ()))),
            keys=tuple(sorted(keys.get(row.id, ()))),
        )
        for row in connection.execute(query)
    }


def keys_of(connection: Connection, ids: Iterable[int]) -> dict[int, str]:
    """Return the best key of each node."""
    query = select(graph_nodes.c.id, graph_nodes.c.key)
    rows = connection.execute(query.where(among(connection, graph_nodes.c.id, ids)))
    return {row.id: row.key for row in rows}


def filter_kinds(query: Select[Any], kinds: Collection[EdgeKind]) -> Select[Any]:
    """Restrict a query to edges of these kinds; without kinds, return it unchanged."""
    return query.where(graph_edges.c.kind.in_(sorted(map(str, kinds)))) if kinds else query


def edge_between(source: str, target: str, row: Row[Any]) -> GraphEdge:
    """Return the edge that a row describes, between the keys of two nodes."""
    return GraphEdge(source, target, EdgeKind(row.kind), row.weight, row.provenance)


def check_limit(limit: int) -> None:
    """Check a limit. Raises ValueError outside 1 to MAX_PAGE."""
    if not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"limit must be 1 to {MAX_PAGE}")


def encode_cursor(*position: object) -> str:
    """Encode a position in a listing as a cursor."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode()


def decode_cursor(cursor: str, value_types: Sequence[type]) -> list[Any]:
    """Decode a cursor. Raises InvalidCursor for one that is not of this listing."""
    invalid = InvalidCursor(f"{cursor!r} is not a cursor of this listing")
    try:
        position = json.loads(base64.urlsafe_b64decode(cursor))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise invalid from error
    if not isinstance(position, list) or len(position) != len(value_types):
        raise invalid
    for each, value_type in zip(position, value_types, strict=True):
        is_number = isinstance(each, int | float) and not isinstance(each, bool)
        is_of_kind = (
            is_number
            if value_type is float
            else isinstance(each, value_type) and not isinstance(each, bool)
        )
        if not is_of_kind or (is_number and not -(2**63) < each < 2**63):
            raise invalid
        if isinstance(each, str) and not (each.isascii() and each.isprintable()):
            raise invalid
    return position

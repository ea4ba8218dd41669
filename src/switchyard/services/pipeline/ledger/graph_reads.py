"""Read the graph: around one node, and as a whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    func,
    literal,
    select,
    tuple_,
    union_all,
)

from switchyard.services.engine.ledger.sql.dialect import among
from switchyard.services.engine.ledger.sql.repository import Repository, read
from switchyard.services.engine.records.results import Page
from switchyard.services.pipeline.ledger.graph_lookup import (
    EDGE_DIRECTIONS,
    MERGED_EDGE,
    check_limit,
    decode_cursor,
    edge_between,
    encode_cursor,
    filter_kinds,
    keys_of,
    node_of,
    nodes_of,
)
from switchyard.services.pipeline.ledger.graph_rankings import current_generation, is_current_rank
from switchyard.services.pipeline.ledger.pipeline_tables import (
    graph_documents,
    graph_edges,
    graph_nodes,
    graph_rankings,
    graph_ranks,
)
from switchyard.services.pipeline.records.graph import (
    Direction,
    EdgeKind,
    GraphEdge,
    GraphNode,
    GraphSummary,
    Neighbour,
    NodeKind,
    Ranking,
    Related,
    RelatedWorks,
)

MAX_SAMPLED_WORKS = 2_000
"""Most works citing a work, or cited by it, that a comparison reads."""
MAX_SAMPLED_EDGES = 100_000
"""Most citations that a comparison reads."""
MAX_CITING_DOCUMENTS = 10_000
"""Most documents that one work cites, or that cite it, by which a search is filtered."""

_CITES = str(EdgeKind.CITES)


class GraphReads(Repository):
    """Reads the graph. Each method takes any key of a node, or the id of its document, and returns
    None if there is no such node. All methods raise LedgerUnavailable when the database is
    unreachable."""

    @read
    def graph_node(self, connection: Connection, key: str) -> GraphNode | None:
        """Return one node, with all its keys."""
        node_id = node_of(connection, key)
        if node_id is None:
            return None
        return nodes_of(connection, [node_id], with_keys=True).get(node_id)

    @read
    def graph_neighbours(
        self,
        connection: Connection,
        key: str,
        *,
        kinds: Collection[EdgeKind] = (),
        direction: Direction = Direction.BOTH,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Neighbour] | None:
        """List the neighbours of a node by edges of these kinds; without kinds, of all kinds.
        Raises ValueError for a limit outside 1 to 1,000, InvalidCursor."""
        check_limit(limit)
        after = None if cursor is None else decode_cursor(cursor, (int, str, int))
        node_id = node_of(connection, key)
        if node_id is None:
            return None
        rows = _fetch_neighbours(connection, node_id, kinds, direction, limit + 1, after)
        has_more, rows = len(rows) > limit, rows[:limit]
        nodes = nodes_of(connection, {node_id, *(row.other for row in rows)})
        return Page(
            items=tuple(_neighbour(nodes, node_id, row) for row in rows if row.other in nodes),
            next_cursor=encode_cursor(rows[-1].direction_index, rows[-1].kind, rows[-1].other)
            if has_more
            else None,
        )

    @read
    def graph_cited(
        self,
        connection: Connection,
        *,
        kind: NodeKind | None = None,
        community: int | None = None,
        by_rank: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[GraphNode]:
        """List works of that kind and community, the most cited first; with `by_rank`, those with
        the highest PageRank first. Raises ValueError for a limit outside 1 to 1,000,
        InvalidCursor."""
        check_limit(limit)
        order_column = graph_ranks.c.rank if by_rank else graph_nodes.c.cited
        query = select(graph_nodes.c.id, order_column.label("by")).select_from(graph_nodes)
        if by_rank or community is not None:
            query = query.join(graph_ranks, is_current_rank())
        if not by_rank:
            query = query.where(graph_nodes.c.cited > 0)
        if community is not None:
            query = query.where(graph_ranks.c.community == community)
        if kind is not None:
            query = query.where(graph_nodes.c.kind == str(kind))
        if cursor is not None:
            query = query.where(
                tuple_(order_column, graph_nodes.c.id)
                < tuple_(*decode_cursor(cursor, (float, int)))
            )
        query = query.order_by(order_column.desc(), graph_nodes.c.id.desc()).limit(limit + 1)
        rows = connection.execute(query).all()
        has_more, rows = len(rows) > limit, rows[:limit]
        nodes = nodes_of(connection, [row.id for row in rows])
        return Page(
            items=tuple(nodes[row.id] for row in rows if row.id in nodes),
            next_cursor=encode_cursor(rows[-1].by, rows[-1].id) if has_more else None,
        )

    async def graph_cocited(self, key: str, limit: int = 20) -> RelatedWorks | None:
        """List works that are cited together with this one, ordered by how many works cite both.
        Raises ValueError as `graph_cited`."""
        check_limit(limit)
        return await self._related_works(key, graph_edges.c.source, graph_edges.c.target, limit)

    async def graph_coupled(self, key: str, limit: int = 20) -> RelatedWorks | None:
        """List works that cite the same works as this one, ordered by how many they have in common.
        Raises ValueError as `graph_cited`."""
        check_limit(limit)
        return await self._related_works(key, graph_edges.c.target, graph_edges.c.source, limit)

    @read
    def documents_by_citation(
        self, connection: Connection, key: str, *, cites: bool
    ) -> set[str] | None:
        """Return the documents that cite the work; without `cites`, those that the work cites. At
        most MAX_CITING_DOCUMENTS."""
        near, far = (
            (graph_edges.c.target, graph_edges.c.source)
            if cites
            else (graph_edges.c.source, graph_edges.c.target)
        )
        node_id = node_of(connection, key)
        if node_id is None:
            return None
        query = (
            select(graph_documents.c.document_id)
            .distinct()
            .join(graph_edges, far == graph_documents.c.node_id)
            .where(near == node_id, graph_edges.c.kind == _CITES)
            .limit(MAX_CITING_DOCUMENTS)
        )
        return set(connection.scalars(query))

    @read
    def graph_labels(self, connection: Connection, document_ids: Collection[str]) -> dict[str, str]:
        """Return the labels of the documents' nodes; documents that the graph does not know are
        absent."""
        query = (
            select(graph_documents.c.document_id, graph_nodes.c.label)
            .join(graph_nodes, graph_nodes.c.id == graph_documents.c.node_id)
            .where(among(connection, graph_documents.c.document_id, document_ids))
        )
        return {row.document_id: row.label for row in connection.execute(query)}

    @read
    def graph_summary(self, connection: Connection) -> GraphSummary:
        """Count the nodes and edges of each kind, by reading them all."""
        current_ranking = select(graph_rankings).where(
            graph_rankings.c.generation == current_generation()
        )
        ranking = connection.execute(current_ranking).mappings().one_or_none()
        return GraphSummary(
            nodes=_count_by_kind(connection, graph_nodes.c.kind),
            edges=_count_by_kind(connection, graph_edges.c.kind),
            ranking=None if ranking is None else Ranking(**ranking),
        )

    @read
    def graph_nodes_after(
        self, connection: Connection, after: int, limit: int
    ) -> list[tuple[int, GraphNode]]:
        """Return up to `limit` nodes with ids above `after`, in the order of their ids."""
        query = select(graph_nodes.c.id).where(graph_nodes.c.id > after)
        query = query.order_by(graph_nodes.c.id).limit(limit)
        ids = list(connection.scalars(query))
        return sorted(nodes_of(connection, ids).items())

    @read
    def graph_edges_after(
        self, connection: Connection, after: Sequence[Any] | None, limit: int
    ) -> tuple[list[GraphEdge], Sequence[Any] | None]:
        """Return up to `limit` edges in a fixed order, and `after` of the next call; None after the
        last edge."""
        edges = graph_edges.c
        order = (edges.source, edges.kind, edges.target, edges.owner)
        query = select(graph_edges).order_by(*order).limit(limit)
        if after is not None:
            query = query.where(tuple_(*order) > tuple_(*after))
        rows = connection.execute(query).all()
        keys = keys_of(connection, {end for row in rows for end in (row.source, row.target)})
        next_position = tuple(rows[-1][:4]) if len(rows) == limit else None
        return [
            edge_between(keys[row.source], keys[row.target], row)
            for row in rows
            if row.source in keys and row.target in keys  # otherwise merged meanwhile
        ], next_position

    @read
    def _related_works(
        self, connection: Connection, key: str, near: Any, far: Any, limit: int
    ) -> RelatedWorks | None:
        """List works at the far end (column `far`) of citations whose near end is also the near end
        of a citation of the node."""
        edges = graph_edges.alias()
        far_end = edges.c[far.name]
        near_end = edges.c[near.name]
        node_id = node_of(connection, key)
        if node_id is None:
            return None
        shared_query = select(near).where(far == node_id, graph_edges.c.kind == _CITES).distinct()
        shared_ids = list(connection.scalars(shared_query.limit(MAX_SAMPLED_WORKS + 1)))
        is_sampled, shared_ids = len(shared_ids) > MAX_SAMPLED_WORKS, shared_ids[:MAX_SAMPLED_WORKS]
        pairs = (
            select(near_end, far_end)
            .where(among(connection, near_end, shared_ids), edges.c.kind == _CITES)
            .distinct()
            .limit(MAX_SAMPLED_EDGES + 1)
            .subquery()
        )
        total = connection.scalar(select(func.count()).select_from(pairs)) or 0
        related_id = pairs.c[far.name]
        shared_count = func.count().label("shared")
        query = (
            select(related_id.label("other"), shared_count)
            .where(related_id != node_id)
            .group_by(related_id)
        )
        query = query.order_by(shared_count.desc(), related_id).limit(limit)
        rows = connection.execute(query).all()
        nodes = nodes_of(connection, [row.other for row in rows])
        works = [Related(nodes[row.other], row.shared) for row in rows if row.other in nodes]
        return RelatedWorks(works, is_sampled or total > MAX_SAMPLED_EDGES)


def _count_by_kind(connection: Connection, kind: Any) -> dict[str, int]:
    rows = connection.execute(select(kind.label("kind"), func.count().label("rows")).group_by(kind))
    return {row.kind: row.rows for row in rows}


def _fetch_neighbours(
    connection: Connection,
    node_id: int,
    kinds: Collection[EdgeKind],
    direction: Direction,
    limit: int,
    after: Sequence[Any] | None,
) -> Sequence[Row[Any]]:
    """Read one row for each neighbour and kind, first those to which edges of the node lead;
    `direction_index` is the index in EDGE_DIRECTIONS."""
    parts = []
    for index, (edge_direction, near, far) in enumerate(EDGE_DIRECTIONS):
        if direction not in (edge_direction, Direction.BOTH):
            continue
        if after is not None and after[0] > index:
            continue
        query = select(
            literal(index).label("direction_index"),
            graph_edges.c.kind,
            far.label("other"),
            *MERGED_EDGE,
        ).where(near == node_id)
        query = filter_kinds(query, kinds)
        if after is not None and after[0] == index:
            query = query.where(tuple_(graph_edges.c.kind, far) > tuple_(*after[1:]))
        grouped = query.group_by(graph_edges.c.kind, far).order_by(graph_edges.c.kind, far)
        parts.append(select(grouped.limit(limit).subquery()))
    if not parts:
        return []
    neighbours = union_all(*parts).subquery()
    ordered = (
        select(neighbours)
        .order_by(neighbours.c.direction_index, neighbours.c.kind, neighbours.c.other)
        .limit(limit)
    )
    return connection.execute(ordered).all()


def _neighbour(nodes: dict[int, GraphNode], node_id: int, row: Row[Any]) -> Neighbour:
    own_key, neighbour_key = nodes[node_id].key, nodes[row.other].key
    direction = EDGE_DIRECTIONS[row.direction_index][0]
    source, target = (
        (own_key, neighbour_key) if direction is Direction.OUT else (neighbour_key, own_key)
    )
    return Neighbour(nodes[row.other], edge_between(source, target, row), direction)

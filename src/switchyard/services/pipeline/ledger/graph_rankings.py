"""Rankings of the whole graph: a new one is written beside the current one, and replaces it at
once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    and_,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)

from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.pipeline.ledger.pipeline_tables import (
    graph_edges,
    graph_nodes,
    graph_rankings,
    graph_ranks,
)
from switchyard.services.pipeline.records.graph import EdgeKind, Ranking

BATCH_SIZE = 20_000
"""Ranks that one transaction writes or deletes, so that others can write in between."""

EdgeMark = tuple[int, str, int, int]
"""The last edge that was read, after which the next page of edges goes on."""


def current_generation() -> ScalarSelect[int]:
    """Return the number of the current ranking, as a part of any query."""
    is_finished = graph_rankings.c.finished_at.is_not(None)
    return select(func.max(graph_rankings.c.generation)).where(is_finished).scalar_subquery()


def is_current_rank() -> ColumnElement[bool]:
    """Return the condition that joins a node with its rank in the current ranking."""
    return and_(
        graph_ranks.c.node_id == graph_nodes.c.id,
        graph_ranks.c.generation == current_generation(),
    )


class GraphRankings(Repository):
    """Rankings of the graph. All methods raise LedgerUnavailable when the database is
    unreachable."""

    @read
    def edges_to_rank(
        self, connection: Connection, after: EdgeMark | None, limit: int
    ) -> tuple[list[tuple[int, int, bool, float]], EdgeMark | None]:
        """Return some of the edges between works (source, target, whether it is a citation,
        weight), and `after` of the next call, None after the last edge."""
        edges = graph_edges.c
        position = tuple_(edges.source, edges.kind, edges.target, edges.owner)
        query = select(edges.source, edges.kind, edges.target, edges.owner, edges.weight)
        query = query.where(edges.kind.in_([str(EdgeKind.CITES), str(EdgeKind.SIMILAR)]))
        if after is not None:
            query = query.where(position > tuple_(*after))
        query = query.order_by(*position.clauses).limit(limit)
        rows = connection.execute(query).all()
        last_position = (rows[-1][0], rows[-1][1], rows[-1][2], rows[-1][3]) if rows else None
        next_position = last_position if len(rows) == limit else None
        return [(row[0], row[2], row[1] == EdgeKind.CITES, row[4]) for row in rows], next_position

    async def begin_ranking(self) -> int:
        """Return the number of a new ranking, which is not shown yet; delete unfinished ones."""
        generation = await self._replace_unfinished()
        await self._drop_ranks()
        return generation

    @write
    def _replace_unfinished(self, connection: Connection) -> int:
        last_generation = connection.scalar(select(func.max(graph_rankings.c.generation))) or 0
        connection.execute(delete(graph_rankings).where(graph_rankings.c.finished_at.is_(None)))
        row = {
            "generation": last_generation + 1,
            "nodes": 0,
            "edges": 0,
            "communities": 0,
            "seconds": 0,
        }
        connection.execute(insert(graph_rankings).values(row))
        return last_generation + 1

    async def put_ranks(self, generation: int, ranks: Sequence[tuple[int, float, int]]) -> None:
        """Add node, PageRank and community of some nodes."""
        for start in range(0, len(ranks), BATCH_SIZE):
            await self._insert_ranks(generation, ranks[start : start + BATCH_SIZE])

    @write
    def _insert_ranks(
        self, connection: Connection, generation: int, ranks: Sequence[tuple[int, float, int]]
    ) -> None:
        rows = [
            {"generation": generation, "node_id": node, "rank": rank, "community": community}
            for node, rank, community in ranks
        ]
        connection.execute(insert(graph_ranks), rows)

    async def finish_ranking(self, ranking: Ranking) -> bool:
        """Make a ranking the current one, all at once. Return False where another has begun
        meanwhile: then this one is never shown."""
        is_shown = await self._show_ranking(ranking)
        await self._drop_ranks()
        return is_shown

    @write
    def _show_ranking(self, connection: Connection, ranking: Ranking) -> bool:
        generation = graph_rankings.c.generation
        values = asdict(ranking)
        statement = (
            update(graph_rankings)
            .where(generation == values.pop("generation"))
            .values(values)
            .returning(generation)
        )
        if connection.execute(statement).first() is None:
            return False
        connection.execute(delete(graph_rankings).where(generation < ranking.generation))
        return True

    async def _drop_ranks(self) -> None:
        """Delete the ranks of rankings that were replaced or abandoned."""
        while await self._drop_some_ranks():
            pass

    @write
    def _drop_some_ranks(self, connection: Connection) -> int:
        columns = graph_ranks.c
        unranked = columns.generation.not_in(select(graph_rankings.c.generation))
        batch = select(columns.generation, columns.node_id).where(unranked).limit(BATCH_SIZE)
        key = tuple_(columns.generation, columns.node_id)
        return connection.execute(delete(graph_ranks).where(key.in_(batch))).rowcount

"""Rankings of the whole graph: written beside the one that is shown, which they replace at once."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, ScalarSelect, delete, func, insert, select, tuple_, update

from switchyard.services.engine.ledger.sql.base import Repository
from switchyard.services.pipeline.ledger.pipeline_tables import (
    graph_edges,
    graph_rankings,
    graph_ranks,
)
from switchyard.services.pipeline.records.graph import EdgeKind, Ranking

BATCH_SIZE = 20_000
"""Ranks that one transaction writes or deletes: others write in between."""

EdgeMark = tuple[int, str, int, int]
"""Where a reading of all edges has come to."""


def current_generation() -> ScalarSelect[int]:
    """The ranking that is shown, as a part of any query."""
    done = graph_rankings.c.finished_at.is_not(None)
    return select(func.max(graph_rankings.c.generation)).where(done).scalar_subquery()


class GraphRankings(Repository):
    """All raise LedgerUnavailable when the database is away."""

    async def edges_to_rank(
        self, after: EdgeMark | None, limit: int
    ) -> tuple[list[tuple[int, int, bool, float]], EdgeMark | None]:
        """Source, target, whether it is a citation, and weight of the edges between works, some of
        them; and the mark to go on from, None behind the last."""
        edges = graph_edges.c
        mark = tuple_(edges.source, edges.kind, edges.target, edges.owner)
        query = select(edges.source, edges.kind, edges.target, edges.owner, edges.weight)
        query = query.where(edges.kind.in_([str(EdgeKind.CITES), str(EdgeKind.SIMILAR)]))
        if after is not None:
            query = query.where(mark > tuple_(*after))
        query = query.order_by(*mark.clauses).limit(limit)

        def work(
            connection: Connection,
        ) -> tuple[list[tuple[int, int, bool, float]], EdgeMark | None]:
            rows = connection.execute(query).all()
            last = (rows[-1][0], rows[-1][1], rows[-1][2], rows[-1][3]) if rows else None
            more = last if len(rows) == limit else None
            return [(row[0], row[2], row[1] == EdgeKind.CITES, row[4]) for row in rows], more

        return await self._database.read(work)

    async def begin_ranking(self) -> int:
        """The number of a new ranking, which nobody sees. What others left unfinished goes."""

        def work(connection: Connection) -> int:
            last = connection.scalar(select(func.max(graph_rankings.c.generation))) or 0
            unfinished = delete(graph_rankings).where(graph_rankings.c.finished_at.is_(None))
            connection.execute(unfinished)
            generation = last + 1
            row = {"generation": generation, "nodes": 0, "edges": 0, "communities": 0, "seconds": 0}
            connection.execute(insert(graph_rankings).values(row))
            return generation

        generation = await self._database.write(work)
        await self._drop_ranks()
        return generation

    async def put_ranks(self, generation: int, ranks: Sequence[tuple[int, float, int]]) -> None:
        """Add node, PageRank and community of some nodes."""
        for start in range(0, len(ranks), BATCH_SIZE):
            rows = [
                {"generation": generation, "node_id": node, "rank": rank, "community": community}
                for node, rank, community in ranks[start : start + BATCH_SIZE]
            ]

            def work(connection: Connection, rows: list[dict[str, float]] = rows) -> None:
                connection.execute(insert(graph_ranks), rows)

            await self._database.write(work)

    async def finish_ranking(self, ranking: Ranking) -> bool:
        """Show it from now on, all at once, in the place of the one before. False where another
        has begun meanwhile: this one is not shown."""
        values = {
            "finished_at": ranking.finished_at,
            "nodes": ranking.nodes,
            "edges": ranking.edges,
            "communities": ranking.communities,
            "seconds": ranking.seconds,
        }
        mine = graph_rankings.c.generation == ranking.generation

        def work(connection: Connection) -> bool:
            shown = update(graph_rankings).where(mine).values(values)
            if connection.execute(shown.returning(graph_rankings.c.generation)).first() is None:
                return False
            before = graph_rankings.c.generation < ranking.generation
            connection.execute(delete(graph_rankings).where(before))
            return True

        shown = await self._database.write(work)
        await self._drop_ranks()
        return shown

    async def _drop_ranks(self) -> None:
        """Delete the ranks of rankings that are not there any more."""
        key = tuple_(graph_ranks.c.generation, graph_ranks.c.node_id)
        there = select(graph_rankings.c.generation)
        some = (
            select(graph_ranks.c.generation, graph_ranks.c.node_id)
            .where(graph_ranks.c.generation.not_in(there))
            .limit(BATCH_SIZE)
        )

        def work(connection: Connection) -> int:
            return connection.execute(delete(graph_ranks).where(key.in_(some))).rowcount

        while await self._database.write(work):
            pass

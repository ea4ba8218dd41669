"""`/graph`: works, who wrote them, what cites what."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import Query

from switchyard.api.http.problems import Problem, responses
from switchyard.api.http.routing import Cursor, Limit, Routes
from switchyard.api.middleware.access import needs
from switchyard.api.models import graph as models
from switchyard.api.state import Shared
from switchyard.broker import patterns
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.graph import (
    MAX_DEPTH,
    MAX_NEARBY_NODES,
    MAX_PATH_EDGES,
    MAX_PATHS,
    Direction,
    EdgeKind,
    NodeKind,
)

router = Routes(prefix="/graph", tags=["graph"], dependencies=[needs(Scope.READ)])

T = TypeVar("T")

NodeKey = Annotated[
    str,
    Query(
        min_length=1,
        max_length=300,
        pattern=patterns.NO_NUL,
        description="Any key of the node, for example `doi:10.1000/182`, or the id of its "
        "document.",
    ),
]
EdgeKinds = Annotated[
    list[EdgeKind] | None,
    Query(alias="kind", max_length=5, description="Only edges of this kind; repeatable."),
]

PROBLEMS = responses("invalid", "ledger-away")
NODE_PROBLEMS = responses("not-found", "invalid", "ledger-away")


@router.get("", responses=PROBLEMS)
async def summary(state: Shared) -> models.GraphView:
    """Show the numbers of nodes and edges by kind, and the age of the ranking. Each request counts
    them again.
    """
    graph_summary = await PipelineLedger(state.ledger).graph_reads.graph_summary()
    return models.GraphView.from_record(graph_summary)


@router.get("/node", responses=NODE_PROBLEMS)
async def show_node(node: NodeKey, state: Shared) -> models.NodeDetailView:
    """Show a node with all its keys."""
    graph_node = _require(await PipelineLedger(state.ledger).graph_reads.graph_node(node), node)
    return models.NodeDetailView.from_record(graph_node)


@router.get("/neighbours", responses=NODE_PROBLEMS)
async def neighbours(
    node: NodeKey,
    state: Shared,
    kind: EdgeKinds = None,
    direction: Direction = Direction.BOTH,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> models.NeighbourList:
    """List the neighbours of a node: outgoing edges first, by kind."""
    page = _require(
        await PipelineLedger(state.ledger).graph_reads.graph_neighbours(
            node, kinds=kind or (), direction=direction, limit=limit, cursor=cursor
        ),
        node,
    )
    views = [models.NeighbourView.from_record(each) for each in page.items]
    return models.NeighbourList(neighbours=views, next_cursor=page.next_cursor)


@router.get("/neighbourhood", responses=NODE_PROBLEMS)
async def neighbourhood(
    node: NodeKey,
    state: Shared,
    kind: EdgeKinds = None,
    direction: Direction = Direction.BOTH,
    depth: Annotated[int, Query(ge=1, le=MAX_DEPTH)] = 1,
    limit: Annotated[int, Query(ge=1, le=MAX_NEARBY_NODES)] = 100,
) -> models.NeighbourhoodView:
    """Show the part of the graph within `depth` edges of a node, at most `limit` nodes."""
    nearby = _require(
        await PipelineLedger(state.ledger).graph_walks.graph_neighbourhood(
            node, depth=depth, kinds=kind or (), direction=direction, limit=limit
        ),
        node,
    )
    nodes = [
        models.NearNodeView.from_record(each, distance=distance)
        for each, distance in zip(nearby.nodes, nearby.distances, strict=True)
    ]
    return models.NeighbourhoodView.from_record(nearby, nodes=nodes)


@router.get("/paths", responses=NODE_PROBLEMS)
async def paths(
    start: Annotated[NodeKey, Query(alias="from")],
    end: Annotated[NodeKey, Query(alias="to")],
    state: Shared,
    kind: EdgeKinds = None,
    direction: Direction = Direction.BOTH,
    longest: Annotated[int, Query(ge=1, le=MAX_PATH_EDGES)] = 6,
    limit: Annotated[int, Query(ge=1, le=MAX_PATHS)] = 3,
) -> models.PathsView:
    """List the shortest paths from one node to another. By default edges are followed in both
    directions.
    """
    graph_paths = await PipelineLedger(state.ledger).graph_walks.graph_paths(
        start, end, kinds=kind or (), direction=direction, longest=longest, limit=limit
    )
    return models.PathsView.from_record(_require(graph_paths, f"{start}, or {end}"))


@router.get("/cocited", responses=NODE_PROBLEMS)
async def cocited(node: NodeKey, state: Shared, limit: Limit = 20) -> models.RelatedList:
    """List works that are cited together with a work, most frequent first."""
    works = await PipelineLedger(state.ledger).graph_reads.graph_cocited(node, limit)
    return models.RelatedList.from_record(_require(works, node))


@router.get("/coupled", responses=NODE_PROBLEMS)
async def coupled(node: NodeKey, state: Shared, limit: Limit = 20) -> models.RelatedList:
    """List works that share references with a work, by number of shared references."""
    works = await PipelineLedger(state.ledger).graph_reads.graph_coupled(node, limit)
    return models.RelatedList.from_record(_require(works, node))


@router.get("/cited", responses=PROBLEMS)
async def most_cited(
    state: Shared,
    kind: Annotated[
        NodeKind | None,
        Query(description="Only documents, or only works that are not stored as a document."),
    ] = None,
    community: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    by_rank: Annotated[
        bool, Query(description="Order by PageRank instead of the number of citations.")
    ] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> models.NodeList:
    """List works by number of citations, or by PageRank."""
    page = await PipelineLedger(state.ledger).graph_reads.graph_cited(
        kind=kind, community=community, by_rank=by_rank, limit=limit, cursor=cursor
    )
    return models.NodeList.from_record(page, nodes=page.items)


def _require(value: T | None, key: str) -> T:
    if value is None:
        raise Problem("not-found", f"the graph has no node {key}")
    return value

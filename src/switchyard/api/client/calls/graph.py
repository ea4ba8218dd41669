"""Describe calls that read the knowledge graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from switchyard.api.client.call import Call, get, operation
from switchyard.api.models import graph as graph_models
from switchyard.services.pipeline.records.graph import Direction, EdgeKind

Kind = EdgeKind | Literal["cites", "similar", "written_by", "published_in", "about"]
Way = Direction | Literal["in", "out", "both"]


@operation("graph-summary")
def graph() -> Call[graph_models.GraphView]:
    """Return the size of the graph."""
    return get("/graph", graph_models.GraphView)


@operation("graph-show_node")
def graph_node(node: str) -> Call[graph_models.NodeDetailView]:
    """Return one node, by any of its keys or by the id of its document."""
    return get("/graph/node", graph_models.NodeDetailView, node=node)


@operation("graph-neighbours")
def neighbours_page(
    node: str,
    *,
    kinds: Sequence[Kind] = (),
    direction: Way | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[graph_models.NeighbourList]:
    """Return a page of the neighbours of a node."""
    query = _edge_query(kinds, direction) | {"limit": limit, "cursor": cursor}
    return get("/graph/neighbours", graph_models.NeighbourList, node=node, **query)


@operation("graph-neighbourhood")
def neighbourhood(
    node: str,
    *,
    depth: int | None = None,
    kinds: Sequence[Kind] = (),
    direction: Way | None = None,
    limit: int | None = None,
) -> Call[graph_models.NeighbourhoodView]:
    """Return the part of the graph around a node."""
    query = _edge_query(kinds, direction) | {"depth": depth, "limit": limit}
    return get("/graph/neighbourhood", graph_models.NeighbourhoodView, node=node, **query)


@operation("graph-paths")
def graph_paths(
    start: str,
    end: str,
    *,
    kinds: Sequence[Kind] = (),
    direction: Way | None = None,
    longest: int | None = None,
    limit: int | None = None,
) -> Call[graph_models.PathsView]:
    """Return the shortest paths from one node to another."""
    query = _edge_query(kinds, direction) | {"longest": longest, "limit": limit}
    return get("/graph/paths", graph_models.PathsView, **{"from": start, "to": end}, **query)


@operation("graph-cocited")
def cocited(node: str, *, limit: int | None = None) -> Call[graph_models.RelatedList]:
    """Return works that are cited together with one."""
    return get("/graph/cocited", graph_models.RelatedList, node=node, limit=limit)


@operation("graph-coupled")
def coupled(node: str, *, limit: int | None = None) -> Call[graph_models.RelatedList]:
    """Return works that share references with one."""
    return get("/graph/coupled", graph_models.RelatedList, node=node, limit=limit)


@operation("graph-most_cited")
def most_cited_page(
    *,
    kind: Literal["document", "work"] | None = None,
    community: int | None = None,
    by_rank: bool | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[graph_models.NodeList]:
    """Return a page of the most cited works, or of those with the highest PageRank."""
    return get(
        "/graph/cited",
        graph_models.NodeList,
        kind=kind,
        community=community,
        by_rank=by_rank,
        limit=limit,
        cursor=cursor,
    )


def _edge_query(kinds: Sequence[Kind], direction: Way | None) -> dict[str, Any]:
    return {
        "kind": [str(each) for each in kinds] or None,
        "direction": None if direction is None else str(direction),
    }

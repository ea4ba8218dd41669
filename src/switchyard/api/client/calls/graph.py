"""Operations on the knowledge graph as values."""

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
    """How large the graph is."""
    return get("/graph", graph_models.GraphView)


@operation("graph-show_node")
def graph_node(node: str) -> Call[graph_models.NodeDetailView]:
    """One node, by any of its keys or by the id of its document."""
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
    """A page of what hangs together with a node."""
    query = _followed(kinds, direction) | {"limit": limit, "cursor": cursor}
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
    """The part of the graph around a node."""
    query = _followed(kinds, direction) | {"depth": depth, "limit": limit}
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
    """The shortest ways from one node to another."""
    query = _followed(kinds, direction) | {"longest": longest, "limit": limit}
    return get("/graph/paths", graph_models.PathsView, **{"from": start, "to": end}, **query)


@operation("graph-cocited")
def cocited(node: str, *, limit: int | None = None) -> Call[graph_models.RelatedList]:
    """Works that are cited together with one."""
    return get("/graph/cocited", graph_models.RelatedList, node=node, limit=limit)


@operation("graph-coupled")
def coupled(node: str, *, limit: int | None = None) -> Call[graph_models.RelatedList]:
    """Works that cite what one cites."""
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
    """A page of the works that most others cite, or of the highest PageRank."""
    return get(
        "/graph/cited",
        graph_models.NodeList,
        kind=kind,
        community=community,
        by_rank=by_rank,
        limit=limit,
        cursor=cursor,
    )


def _followed(kinds: Sequence[Kind], direction: Way | None) -> dict[str, Any]:
    return {
        "kind": [str(each) for each in kinds] or None,
        "direction": None if direction is None else str(direction),
    }

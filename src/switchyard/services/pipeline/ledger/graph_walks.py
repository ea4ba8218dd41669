"""Walk through the graph: find the nodes near a node, and the paths between two. All is bounded, as
one work may be cited by a million others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, Row, select

from switchyard.services.engine.ledger.sql.dialect import among
from switchyard.services.engine.ledger.sql.repository import Repository, read
from switchyard.services.pipeline.ledger.graph_lookup import (
    EDGE_DIRECTIONS,
    MERGED_EDGE,
    edge_between,
    filter_kinds,
    node_of,
    nodes_of,
)
from switchyard.services.pipeline.ledger.pipeline_tables import graph_edges
from switchyard.services.pipeline.records.graph import (
    MAX_DEPTH,
    MAX_NEARBY_NODES,
    MAX_PATH_EDGES,
    MAX_PATHS,
    Direction,
    EdgeKind,
    GraphEdge,
    GraphNode,
    GraphPath,
    GraphPaths,
    Neighbourhood,
)

MAX_EDGES_PER_NODE = 200
"""Edges that are followed from one node of a neighbourhood."""
MAX_SEARCHED_EDGES = 50_000
"""Most edges in each direction that one level of the search for a path reads."""
MAX_RETURNED_EDGES = 5_000
"""Most edges of a neighbourhood."""

Step = tuple[int, int]
"""Ids of a node and the next one."""


class GraphWalks(Repository):
    """Walks through the graph, along edges of the `kinds` given, or of all kinds; the answer is
    None where there is no such node. All methods raise LedgerUnavailable when the database is
    unreachable."""

    @read
    def graph_neighbourhood(
        self,
        connection: Connection,
        key: str,
        *,
        depth: int = 1,
        kinds: Collection[EdgeKind] = (),
        direction: Direction = Direction.BOTH,
        limit: int = 100,
    ) -> Neighbourhood | None:
        """Return the nodes within `depth` edges, `limit` at most, and the edges between them.
        Raises ValueError for a depth outside 1 to 4, a limit outside 1 to 500."""
        if not 1 <= depth <= MAX_DEPTH:
            raise ValueError(f"depth must be 1 to {MAX_DEPTH}")
        if not 1 <= limit <= MAX_NEARBY_NODES:
            raise ValueError(f"limit must be 1 to {MAX_NEARBY_NODES}")
        start = node_of(connection, key)
        if start is None:
            return None
        distances, is_truncated = _distances_around(
            connection, start, depth, kinds, direction, limit
        )
        nodes = nodes_of(connection, distances)
        order = [each for each in distances if each in nodes]
        rows = _edges_between(connection, nodes, kinds)
        return Neighbourhood(
            nodes=[nodes[each] for each in order],
            distances=[distances[each] for each in order],
            edges=[_edge(nodes, row) for row in rows[:MAX_RETURNED_EDGES]],
            truncated=is_truncated or len(rows) > MAX_RETURNED_EDGES,
        )

    @read
    def graph_paths(
        self,
        connection: Connection,
        start: str,
        end: str,
        *,
        kinds: Collection[EdgeKind] = (),
        direction: Direction = Direction.BOTH,
        longest: int = 6,
        limit: int = 3,
    ) -> GraphPaths | None:
        """Return the shortest paths from one node to the other, of `longest` edges at most; by
        default edges are followed in both directions. Raises ValueError for a length outside 1 to
        8, a limit outside 1 to 10."""
        if not 1 <= longest <= MAX_PATH_EDGES:
            raise ValueError(f"longest must be 1 to {MAX_PATH_EDGES}")
        if not 1 <= limit <= MAX_PATHS:
            raise ValueError(f"limit must be 1 to {MAX_PATHS}")
        ends = node_of(connection, start), node_of(connection, end)
        if ends[0] is None or ends[1] is None:
            return None
        search = _Search(connection, kinds, direction)
        routes = search.between(ends[0], ends[1], longest, limit)
        nodes = nodes_of(connection, {each for route in routes for each in route})
        edges = _edges_of_routes(connection, nodes, routes, kinds, direction)
        paths = [path for route in routes if (path := _graph_path(nodes, edges, route)) is not None]
        return GraphPaths(paths, complete=not search.is_given_up and len(paths) == len(routes))


class _Search:
    """A search from both ends at once, level by level, always from the end with fewer nodes to
    follow."""

    def __init__(
        self, connection: Connection, kinds: Collection[EdgeKind], direction: Direction
    ) -> None:
        self._connection = connection
        self._kinds = kinds
        self._direction = direction
        self.is_given_up = False

    def between(self, start: int, end: int, longest: int, limit: int) -> list[list[int]]:
        if start == end:
            return [[start]]
        # For both ends: by each node that was reached from there, the nodes before it on a shortest
        # path.
        predecessors: tuple[dict[int, list[int]], dict[int, list[int]]] = ({start: []}, {end: []})
        frontiers: list[set[int]] = [{start}, {end}]
        for _ in range(longest):
            side = 0 if len(frontiers[0]) <= len(frontiers[1]) else 1
            steps = self._next_steps(frontiers[side], _direction_from(self._direction, side))
            reached: dict[int, list[int]] = {}
            for from_node, to_node in steps:
                if to_node not in predecessors[side]:
                    reached.setdefault(to_node, []).append(from_node)
            predecessors[side].update(reached)
            frontiers[side] = set(reached)
            meeting_nodes = sorted(reached.keys() & predecessors[1 - side].keys())
            if meeting_nodes:
                # All nodes in the middle have the same distances, so each of these paths is a
                # shortest one.
                return _join_routes(predecessors, meeting_nodes, limit)
            if not reached or self.is_given_up:
                return []
        return []

    def _next_steps(self, frontier: Iterable[int], direction: Direction) -> list[Step]:
        rows = _steps(self._connection, frontier, self._kinds, direction, MAX_SEARCHED_EDGES + 1)
        self.is_given_up |= len(rows) > MAX_SEARCHED_EDGES
        return sorted(set(rows[:MAX_SEARCHED_EDGES]))


def _join_routes(
    predecessors: tuple[dict[int, list[int]], dict[int, list[int]]],
    meeting_nodes: Sequence[int],
    limit: int,
) -> list[list[int]]:
    routes: list[list[int]] = []
    for middle in meeting_nodes:
        for head in _routes_back(predecessors[0], middle, limit):
            for tail in _routes_back(predecessors[1], middle, limit):
                route = [*reversed(head), *tail[1:]]
                if route not in routes:
                    routes.append(route)
                if len(routes) == limit:
                    return routes
    return routes


def _routes_back(predecessors: dict[int, list[int]], node: int, limit: int) -> list[list[int]]:
    """Return the routes from a node back to the end from which it was reached."""
    routes = [[node]]
    while predecessors[routes[0][-1]]:
        routes = [[*route, each] for route in routes for each in predecessors[route[-1]]][:limit]
    return routes


def _distances_around(
    connection: Connection,
    start: int,
    depth: int,
    kinds: Collection[EdgeKind],
    direction: Direction,
    limit: int,
) -> tuple[dict[int, int], bool]:
    """Return the distance of each node around the start, and whether some were left out."""
    distances, frontier, is_truncated = {start: 0}, [start], False
    for distance in range(1, depth + 1):
        next_frontier: list[int] = []
        for node_id in frontier:
            steps = _steps(connection, [node_id], kinds, direction, MAX_EDGES_PER_NODE + 1)
            is_truncated |= len(steps) > MAX_EDGES_PER_NODE
            for _, other_id in steps[:MAX_EDGES_PER_NODE]:
                if other_id in distances:
                    continue
                if len(distances) == limit:
                    return distances, True
                distances[other_id] = distance
                next_frontier.append(other_id)
        frontier = next_frontier
    return distances, is_truncated


def _steps(
    connection: Connection,
    frontier: Iterable[int],
    kinds: Collection[EdgeKind],
    direction: Direction,
    limit: int,
) -> list[Step]:
    """Return steps from these nodes to others, up to `limit` in each direction."""
    nodes = list(frontier)
    steps: list[Step] = []
    for edge_direction, from_column, to_column in EDGE_DIRECTIONS:
        if direction not in (edge_direction, Direction.BOTH):
            continue
        query = filter_kinds(
            select(from_column, to_column).where(among(connection, from_column, nodes)), kinds
        )
        steps += [(row[0], row[1]) for row in connection.execute(query.limit(limit))]
    return steps


def _edges_between(
    connection: Connection, ids: Iterable[int], kinds: Collection[EdgeKind]
) -> list[Row[Any]]:
    """Read the edges between these nodes."""
    nodes = list(ids)
    edges = graph_edges.c
    query = select(edges.source, edges.target, edges.kind, *MERGED_EDGE).where(
        among(connection, edges.source, nodes),
        # A sum has no index: a work that a million others cite is not read from that end.
        among(connection, edges.target + 0, nodes),
    )
    order = (edges.source, edges.kind, edges.target)
    grouped = (
        filter_kinds(query, kinds).group_by(*order).order_by(*order).limit(MAX_RETURNED_EDGES + 1)
    )
    return list(connection.execute(grouped))


def _edges_of_routes(
    connection: Connection,
    nodes: dict[int, GraphNode],
    routes: Sequence[Sequence[int]],
    kinds: Collection[EdgeKind],
    direction: Direction,
) -> dict[Step, GraphEdge]:
    """Return, for each step of the routes, an edge that joins its ends."""
    steps = {step for route in routes for step in pairwise(route)}
    edge_of_step: dict[Step, GraphEdge] = {}
    for row in _edges_between(connection, nodes, kinds):
        edge = _edge(nodes, row)
        if direction is not Direction.IN and (row.source, row.target) in steps:
            edge_of_step[row.source, row.target] = edge
        if direction is not Direction.OUT and (row.target, row.source) in steps:
            edge_of_step.setdefault((row.target, row.source), edge)
    return edge_of_step


def _graph_path(
    nodes: dict[int, GraphNode], edges: dict[Step, GraphEdge], route: Sequence[int]
) -> GraphPath | None:
    """Return a path with its nodes and edges; None where the graph has changed meanwhile."""
    steps = list(pairwise(route))
    if not (nodes.keys() >= set(route) and edges.keys() >= set(steps)):
        return None
    return GraphPath([nodes[each] for each in route], [edges[step] for step in steps])


def _edge(nodes: dict[int, GraphNode], row: Row[Any]) -> GraphEdge:
    return edge_between(nodes[row.source].key, nodes[row.target].key, row)


def _direction_from(direction: Direction, side: int) -> Direction:
    """Return the direction in which edges are followed from one side: 0 is the start of the walk;
    from its end (1), edges are followed backwards."""
    if side == 0 or direction is Direction.BOTH:
        return direction
    return Direction.IN if direction is Direction.OUT else Direction.OUT

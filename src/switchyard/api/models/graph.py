"""What goes out of the endpoints of the knowledge graph, as JSON."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from switchyard.services.records.graph import Direction, EdgeKind, NodeKind


class NodeView(BaseModel):
    """A node of the graph."""

    key: str = Field(examples=["doi:10.1000/182"], description="Its best name.")
    kind: NodeKind
    label: str = Field(description="Its title or name.")
    year: int | None
    told_by: str = Field(description="Who describes it: `document`, `link` or `reference`.")
    cited: int = Field(description="How many works cite it.")
    rank: float | None = Field(description="PageRank; null before the first ranking.")
    community: int | None = Field(description="0 is the largest; null before the first ranking.")
    documents: list[str] = Field(description="The documents here that are this work.")


class NodeDetailView(NodeView):
    keys: list[str] = Field(description="All its names: any of them finds it.")


class EdgeView(BaseModel):
    """An edge, between the keys of two nodes."""

    source: str
    target: str
    kind: EdgeKind
    weight: float
    told_by: str = Field(description="Where it comes from.")


class NeighbourView(BaseModel):
    node: NodeView
    edge: EdgeView
    direction: Direction = Field(description="`out` where the edge leads to this node.")


class NeighbourList(BaseModel):
    neighbours: list[NeighbourView]
    next_cursor: str | None = Field(description="For the following page; null after the last.")


class NearNodeView(NodeView):
    distance: int = Field(description="Edges from the node in the middle.")


class NeighbourhoodView(BaseModel):
    """A part of the graph around a node."""

    nodes: list[NearNodeView] = Field(description="The nearest first: the node itself.")
    edges: list[EdgeView] = Field(description="Those between these nodes.")
    truncated: bool = Field(description="There is more within that distance.")


class PathView(BaseModel):
    nodes: list[NodeView]
    edges: list[EdgeView] = Field(description="Between each node and the next, either way round.")


class PathsView(BaseModel):
    """The shortest ways between two nodes; none where there is none so short."""

    paths: list[PathView]
    complete: bool = Field(
        description="False where the search was given up, as too much hangs together there."
    )


class RelatedView(BaseModel):
    node: NodeView
    shared: int = Field(description="How many works cite both, or how many both cite.")


class RelatedList(BaseModel):
    """Those with most in common first."""

    works: list[RelatedView]
    sampled: bool = Field(description="So much is cited that only a part was looked at.")


class NodeList(BaseModel):
    nodes: list[NodeView]
    next_cursor: str | None = Field(description="For the following page; null after the last.")


class RankingView(BaseModel):
    """The PageRank and communities that are shown."""

    finished_at: datetime
    nodes: int
    edges: int
    communities: int
    seconds: float


class GraphView(BaseModel):
    """How large the graph is."""

    nodes: dict[str, int] = Field(description="By kind.")
    edges: dict[str, int] = Field(description="By kind.")
    ranking: RankingView | None

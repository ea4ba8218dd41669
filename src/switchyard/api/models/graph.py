"""Models of the API's answers about the knowledge graph."""

from __future__ import annotations

from pydantic import Field

from switchyard.api.models.base import ApiModel, Timestamp
from switchyard.services.pipeline.records.graph import Direction, EdgeKind, NodeKind


class NodeView(ApiModel):
    """A node of the graph."""

    key: str = Field(examples=["doi:10.1000/182"], description="Its preferred key.")
    kind: NodeKind
    label: str = Field(description="Its title or name.")
    year: int | None
    provenance: str = Field(description="What describes it: `document`, `link` or `reference`.")
    cited: int = Field(description="How many works cite it.")
    rank: float | None = Field(description="PageRank; null before the first ranking.")
    community: int | None = Field(description="0 is the largest; null before the first ranking.")
    documents: list[str] = Field(description="Ids of the ingested documents that are this work.")


class NodeDetailView(NodeView):
    keys: list[str] = Field(description="All its keys; each of them finds it.")


class EdgeView(ApiModel):
    """An edge, between the keys of two nodes."""

    source: str
    target: str
    kind: EdgeKind
    weight: float
    provenance: str = Field(description="What states it, as for a node.")


class NeighbourView(ApiModel):
    node: NodeView
    edge: EdgeView
    direction: Direction = Field(description="`out` where the edge leads to this node.")


class NeighbourList(ApiModel):
    neighbours: list[NeighbourView]
    next_cursor: str | None = Field(
        description="Pass it as `cursor` for the next page; null on the last page."
    )


class NearNodeView(NodeView):
    distance: int = Field(description="Edges from the node in the middle.")


class NeighbourhoodView(ApiModel):
    """A part of the graph around a node."""

    nodes: list[NearNodeView] = Field(description="The nearest first: the node itself.")
    edges: list[EdgeView] = Field(description="All edges between these nodes.")
    truncated: bool = Field(description="True if there are more nodes within that distance.")


class PathView(ApiModel):
    nodes: list[NodeView]
    edges: list[EdgeView] = Field(description="Between neighbours in `nodes`, in either direction.")


class PathsView(ApiModel):
    """The shortest paths between two nodes; empty where none is short enough."""

    paths: list[PathView]
    complete: bool = Field(
        description="False if the search was cut short because the graph is too dense there."
    )


class RelatedView(ApiModel):
    node: NodeView
    shared: int = Field(description="Number of works that cite both, or that both cite.")


class RelatedList(ApiModel):
    """Related works, those with the most citations in common first."""

    works: list[RelatedView]
    sampled: bool = Field(description="True if only a sample was examined.")


class NodeList(ApiModel):
    nodes: list[NodeView]
    next_cursor: str | None = Field(
        description="Pass it as `cursor` for the next page; null on the last page."
    )


class RankingView(ApiModel):
    """The ranking that is shown: PageRank and communities."""

    finished_at: Timestamp
    nodes: int
    edges: int
    communities: int
    seconds: float


class GraphView(ApiModel):
    """Size of the graph."""

    nodes: dict[str, int] = Field(description="By kind.")
    edges: dict[str, int] = Field(description="By kind.")
    ranking: RankingView | None

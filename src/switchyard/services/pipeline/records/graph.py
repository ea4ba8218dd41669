"""Nodes, edges and parts of the knowledge graph, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

MAX_DEPTH = 4
"""Most edges between a node and the farthest node of its neighbourhood."""
MAX_NEARBY_NODES = 500
"""Most nodes of a neighbourhood."""
MAX_PATH_EDGES = 8
"""Most edges of a path."""
MAX_PATHS = 10


class NodeKind(StrEnum):
    """What a node stands for."""

    WORK = "work"
    """A work that is cited, of which there is no document here."""
    DOCUMENT = "document"
    """A work of which there is at least one document here."""
    AUTHOR = "author"
    VENUE = "venue"
    TOPIC = "topic"


class EdgeKind(StrEnum):
    """How two nodes are related. Every edge has a direction."""

    CITES = "cites"
    SIMILAR = "similar"
    WRITTEN_BY = "written_by"
    PUBLISHED_IN = "published_in"
    ABOUT = "about"


class Direction(StrEnum):
    """A choice among the edges of a node by their direction."""

    OUT = "out"
    """Edges that begin at the node: to works that it cites."""
    IN = "in"
    """Edges that end at the node: from works that cite it."""
    BOTH = "both"


Provenance = Literal["reference", "link", "document"]
"""The origin of a node's description, the least trusted first: a parsed reference, a bibliographic
service, or the document itself."""
TRUST: tuple[Provenance, ...] = ("reference", "link", "document")


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """The description of a node, with enough to recognise the same node in another description.

    All text is normalised (`services.pipeline.graph.descriptions`), and fits into the ledger.
    """

    kind: NodeKind
    label: str
    keys: tuple[str, ...] = ()
    """Names that only this node has, such as `doi:10.1000/182`, the most reliable first."""
    title: str = ""
    """A work's title in the form in which it is compared; empty where it is too short for that."""
    author: str = ""
    """The family name of the first author, in the form in which it is compared."""
    year: int | None = None
    provenance: Provenance = "reference"
    document_id: str | None = None
    """The document that is this work, if there is one in this system."""
    edges: tuple[NewEdge, ...] = ()
    """Edges of a work to its authors, venue and topics."""


@dataclass(frozen=True, slots=True)
class NewEdge:
    """An edge to be written, from the described node to the target."""

    kind: EdgeKind
    target: NodeDescription
    weight: float = 1.0
    provenance: str = "reference"
    """`reference`, `metadata`, `similarity`, or the service that linked it."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node in the ledger."""

    key: str
    """The node's best key; any of `keys` finds it as well."""
    kind: NodeKind
    label: str
    year: int | None
    provenance: str
    cited: int
    """Number of works that cite it."""
    rank: float | None = None
    """PageRank among all works, whose sum is 1; None before the first ranking."""
    community: int | None = None
    """Number of its community, 0 the largest, in the same ranking."""
    documents: tuple[str, ...] = ()
    """The documents in this system that are this work."""
    keys: tuple[str, ...] = ()
    """All keys of the node; only filled when a single node is read."""


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """An edge in the ledger, between the keys of two nodes."""

    source: str
    target: str
    kind: EdgeKind
    weight: float
    provenance: str


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A node at the other end of an edge."""

    node: GraphNode
    edge: GraphEdge
    direction: Direction
    """OUT where the edge leads to the neighbour."""


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """A part of the graph around a node."""

    nodes: Sequence[GraphNode]
    """The nearest first; the node itself is the first of all."""
    distances: Sequence[int]
    """Distance of each node, in edges."""
    edges: Sequence[GraphEdge]
    """The edges between these nodes."""
    truncated: bool
    """Whether there are more nodes or edges within that distance."""


@dataclass(frozen=True, slots=True)
class GraphPath:
    """A path from one node to another: `edges[i]` joins `nodes[i]` and `nodes[i + 1]`, in either
    direction."""

    nodes: Sequence[GraphNode]
    edges: Sequence[GraphEdge]


@dataclass(frozen=True, slots=True)
class GraphPaths:
    """The shortest paths between two nodes."""

    paths: Sequence[GraphPath]
    complete: bool
    """False where the search has reached its bounds, so that there may be other paths."""


@dataclass(frozen=True, slots=True)
class Related:
    """A work that has citations in common with another."""

    node: GraphNode
    shared: int
    """Number of works that cite both, or that both cite."""


@dataclass(frozen=True, slots=True)
class RelatedWorks:
    """Works with citations in common, those with the most first."""

    works: Sequence[Related]
    sampled: bool
    """Whether there were too many citations to read all: then `shared` may be too small."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """One computation of PageRank and communities over the whole graph."""

    generation: int
    finished_at: float
    nodes: int
    edges: int
    communities: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """The size of the graph."""

    nodes: dict[str, int] = field(default_factory=dict)
    """Number of nodes by kind."""
    edges: dict[str, int] = field(default_factory=dict)
    ranking: Ranking | None = None
    """The current ranking; None before the first one."""

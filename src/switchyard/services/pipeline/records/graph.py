"""What the knowledge graph is made of, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class NodeKind(StrEnum):
    """What a node stands for."""

    WORK = "work"
    """A work that somebody cites, of which there is no document here."""
    DOCUMENT = "document"
    """A work of which there is a document here, or several."""
    AUTHOR = "author"
    VENUE = "venue"
    TOPIC = "topic"


class EdgeKind(StrEnum):
    """How two nodes hang together. Every edge has a direction."""

    CITES = "cites"
    SIMILAR = "similar"
    WRITTEN_BY = "written_by"
    PUBLISHED_IN = "published_in"
    ABOUT = "about"


class Direction(StrEnum):
    """Which edges of a node are meant."""

    OUT = "out"
    """Those that begin at it: what it cites."""
    IN = "in"
    """Those that end at it: what cites it."""
    BOTH = "both"


Provenance = Literal["reference", "link", "document"]
"""Who describes a node, the least trusted first: a reference as it was parsed, a bibliographic
service, or the document itself."""
TRUST: tuple[Provenance, ...] = ("reference", "link", "document")


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A node as somebody describes it: enough to find it again, whoever describes it next.

    All text is normalised (`services.pipeline.graph.descriptions`), and fits into the ledger.
    """

    kind: NodeKind
    label: str
    keys: tuple[str, ...] = ()
    """Names of it that are its alone, as `doi:10.1000/182`, the best one first."""
    title: str = ""
    """A work's title as it is compared; empty where it says too little to compare."""
    author: str = ""
    """The family name of its first author, as it is compared."""
    year: int | None = None
    provenance: Provenance = "reference"
    document_id: str | None = None
    """The document here that is this work."""
    edges: tuple[NewEdge, ...] = ()
    """What is known of a work besides: its authors, venue and topics."""


@dataclass(frozen=True, slots=True)
class NewEdge:
    """An edge that is to be made, from the described node to the target."""

    kind: EdgeKind
    target: NodeDescription
    weight: float = 1.0
    provenance: str = "reference"
    """`reference`, `metadata`, `similarity`, or the service that linked it."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node that is there."""

    key: str
    """Its best name; any of `keys` finds it as well."""
    kind: NodeKind
    label: str
    year: int | None
    provenance: str
    cited: int
    """How many works cite it."""
    rank: float | None = None
    """PageRank among all works, 1 in all together; None before the first ranking."""
    community: int | None = None
    """Number of its community, 0 the largest, in the same ranking."""
    documents: tuple[str, ...] = ()
    """The documents here that are this work."""
    keys: tuple[str, ...] = ()
    """All its names; only where one node is asked for."""


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """An edge that is there, between the keys of two nodes."""

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
    """Of each node, in edges."""
    edges: Sequence[GraphEdge]
    """Those between these nodes."""
    truncated: bool
    """There is more within that distance."""


@dataclass(frozen=True, slots=True)
class GraphPath:
    """A way from one node to another: `edges[i]` joins `nodes[i]` and `nodes[i + 1]`, in whichever
    direction it has."""

    nodes: Sequence[GraphNode]
    edges: Sequence[GraphEdge]


@dataclass(frozen=True, slots=True)
class GraphPaths:
    """The shortest ways between two nodes."""

    paths: Sequence[GraphPath]
    complete: bool
    """False where the search was given up, with its bounds reached: there may be a way."""


@dataclass(frozen=True, slots=True)
class Related:
    """A work that has citations in common with another."""

    node: GraphNode
    shared: int
    """How many works cite both, or how many both cite."""


@dataclass(frozen=True, slots=True)
class RelatedWorks:
    """Those with most in common first."""

    works: Sequence[Related]
    sampled: bool
    """So much is cited that only a part was looked at: `shared` is then less than it might be."""


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
    """How large the graph is."""

    nodes: dict[str, int] = field(default_factory=dict)
    """By kind."""
    edges: dict[str, int] = field(default_factory=dict)
    ranking: Ranking | None = None
    """The one that is shown; None before the first."""

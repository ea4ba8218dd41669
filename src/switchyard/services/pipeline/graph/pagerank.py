"""Compute PageRank and communities of the whole graph.

`rank` is pure and heavy: it runs in a process of its own, which is killed at its limits. For a
million edges it takes a second or two and less than 300 MB.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from switchyard.services.common.extras import naming_extra
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.ledger.graph_rankings import EdgeMark

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from switchyard.services.engine.ledger import Ledger

PAGE_SIZE = 50_000
"""Edges that are read at once."""
_MIN_WEIGHT = 1e-6
_MAX_STEPS = 100


@dataclass(frozen=True, slots=True)
class Edges:
    """All edges between works, as columns."""

    sources: NDArray[Any]
    targets: NDArray[Any]
    cites: NDArray[Any]
    """Whether each edge is a citation; if not, it joins similar documents."""
    weights: NDArray[Any]

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(frozen=True, slots=True)
class Ranks:
    """PageRank and community of each node, as columns."""

    nodes: list[int] = field(default_factory=list)
    ranks: list[float] = field(default_factory=list)
    communities: list[int] = field(default_factory=list)

    def rows(self) -> list[tuple[int, float, int]]:
        return list(zip(self.nodes, self.ranks, self.communities, strict=True))


async def read_edges(ledger: Ledger) -> Edges:
    """Read all edges that are ranked. Raises LedgerUnavailable."""
    import numpy as np

    parts: list[NDArray[Any]] = []
    columns = [("source", "i8"), ("target", "i8"), ("cites", "?"), ("weight", "f8")]
    position: EdgeMark | None = None
    while True:
        rows, position = await PipelineLedger(ledger).graph_rankings.edges_to_rank(
            position, PAGE_SIZE
        )
        parts.append(np.array(rows, dtype=columns))
        if position is None:
            break
    all_rows = np.concatenate(parts)
    return Edges(*(np.ascontiguousarray(all_rows[name]) for name, _ in columns))


def rank(edges: Edges) -> Ranks:
    """Compute PageRank by citations, and communities (Leiden) by citations and similarities in
    either direction. A citation counts once, however many places of the citing work make it. The
    same edges give the same result."""
    with naming_extra():
        from scipy import sparse
        from sknetwork.clustering import Leiden
        from sknetwork.ranking import PageRank
    import numpy as np

    if not len(edges):
        return Ranks()
    nodes, node_indices = np.unique(
        np.concatenate([edges.sources, edges.targets]), return_inverse=True
    )
    sources, targets = node_indices[: len(edges)], node_indices[len(edges) :]
    shape = (len(nodes), len(nodes))
    is_citation = edges.cites.astype(bool)
    ones = np.ones(int(is_citation.sum()))
    citations = sparse.csr_matrix((ones, (sources[is_citation], targets[is_citation])), shape=shape)
    citations.data[:] = 1.0  # two documents of one work may both have a citation
    # The library's default solver ranks works that cite nothing too high, and for most works it is
    # not known what they cite. This solver ranks them right; its error after _MAX_STEPS steps is
    # below 1e-7.
    ranks = PageRank(solver="RH", n_iter=_MAX_STEPS).fit_predict(citations)
    weights = np.where(is_citation, 1.0, np.maximum(edges.weights, _MIN_WEIGHT))
    weighted = sparse.csr_matrix((weights, (sources, targets)), shape=shape)
    communities = Leiden(random_state=0).fit_predict(weighted + weighted.T)
    return Ranks(nodes.tolist(), np.asarray(ranks).tolist(), np.asarray(communities).tolist())

"""The calibration of an embedder's similarities (cosines)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SimilarityCalibration:
    """Bounds of one embedder's similarities; `make bench ARGS=search` measures them."""

    min_relevance: float
    """Least similarity of a passage to a query that it may answer, from 0 to 1."""
    min_similarity: float
    """Least similarity of two documents that are linked, from -1 to 1."""
    vector_weight: float
    """How much of a hybrid search's score is similarity, from 0 to 1; the rest is for words."""

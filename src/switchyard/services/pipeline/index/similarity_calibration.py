"""Define the calibration of an embedder's similarities (cosines)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SimilarityCalibration:
    """Bounds of one embedder's similarities; `make bench ARGS=search` measures them."""

    min_relevance: float
    """Lowest similarity to a query at which a passage may answer it, from 0 to 1."""
    min_similarity: float
    """Lowest similarity at which two documents are linked, from -1 to 1."""
    vector_weight: float
    """Share of similarity in the score of a hybrid search, from 0 to 1; words have the rest."""

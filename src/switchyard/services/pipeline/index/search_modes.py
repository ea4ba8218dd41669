"""The ways in which the index can be searched."""

from enum import StrEnum

MAX_LIMIT = 100
"""Most results that one search may return."""


class SearchMode(StrEnum):
    """How to search."""

    VECTOR = "vector"
    """Find texts of similar meaning, as far as the embedder sees it."""
    KEYWORD = "keyword"
    """Find texts with the words of the query."""
    HYBRID = "hybrid"
    """Find both, and weigh similarity and words by how good the embedder is."""

"""How the index can be searched, as plain values."""

from enum import StrEnum

MAX_LIMIT = 100


class SearchMode(StrEnum):
    """How to search."""

    VECTOR = "vector"
    """What is near in meaning, as far as the embedder sees it."""
    KEYWORD = "keyword"
    """What has the words."""
    HYBRID = "hybrid"
    """Both: similarity and words, each by what the embedder is worth."""

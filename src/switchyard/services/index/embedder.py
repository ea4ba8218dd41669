"""What turns text into vectors: a protocol, and the choice of one by the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from switchyard.services.settings import Settings


class Embedder(Protocol):
    """Texts to vectors, of which near ones mean similar texts."""

    @property
    def name(self) -> str:
        """Names the way of embedding for ever: vectors of two names are never compared."""
        ...

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector of length 1 for each text, in order; all zeros for a text without words.

        Raises RetryableError or PermanentError where a server is asked.
        """
        ...


def embedder_for(settings: Settings) -> Embedder:
    """The server's model when JOBS_EMBED_BASE_URL is set, else the offline embedder."""
    if settings.embed_base_url is None:
        from switchyard.services.index.hashed import HashedEmbedder

        return HashedEmbedder(settings.embed_dimensions)
    from switchyard.services.index.remote import RemoteEmbedder

    return RemoteEmbedder(
        base_url=settings.embed_base_url,
        model=settings.embed_model,
        api_key=settings.embed_api_key,
        dimensions=settings.embed_dimensions,
        timeout=settings.llm_timeout,
    )

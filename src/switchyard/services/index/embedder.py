"""What turns text into vectors: a protocol, and the choice of one by the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from switchyard.services.index.scale import Scale
from switchyard.services.settings import Settings

_MODEL_WEIGHT = 0.8
"""That of the offline embedder by meaning: a server's model is hardly worth less."""


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

    @property
    def scale(self) -> Scale:
        """What its similarities are worth."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector of length 1 for each text, in order; all zeros for a text without words that
        it knows.

        Raises RetryableError or PermanentError where a server is asked.
        """
        ...


def embedder_for(settings: Settings) -> Embedder:
    """The server's model when JOBS_EMBED_BASE_URL is set, else that of JOBS_EMBED_OFFLINE.

    Raises PermanentError when that has no vectors of the length in the settings.
    """
    if settings.embed_base_url is None:
        if settings.embed_offline == "hashed":
            from switchyard.services.index.hashed import HashedEmbedder

            return HashedEmbedder(settings.embed_dimensions)
        from switchyard.services.index.wordllama import WordllamaEmbedder

        return WordllamaEmbedder(settings.embed_dimensions)
    from switchyard.services.index.remote import RemoteEmbedder

    return RemoteEmbedder(
        base_url=settings.embed_base_url,
        model=settings.embed_model,
        api_key=settings.embed_api_key,
        dimensions=settings.embed_dimensions,
        timeout=settings.llm_timeout,
        scale=Scale(fits=settings.embed_fits, alike=settings.embed_alike, weight=_MODEL_WEIGHT),
    )

"""The protocol of embedders, and the choice of one by the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index.similarity_calibration import SimilarityCalibration

if TYPE_CHECKING:  # the job types are imported without a database
    from switchyard.services.llm.budget_account import EmbeddingBudget

OFFLINE = ("hashed", "wordllama", "local")
"""How the names of embedders begin that work without a server."""
_MODEL_WEIGHT = 0.6
"""`vector_weight` for a server's model: the same as that of the offline models, as a server's model
is hardly worse."""


class Embedder(Protocol):
    """Turns texts into vectors; near ones mean similar texts."""

    @property
    def name(self) -> str:
        """Name of the embedder and its model. Vectors under different names are never compared. An
        embedder that makes other vectors than before needs another name."""
        ...

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        ...

    @property
    def calibration(self) -> SimilarityCalibration:
        """Bounds and weight of its similarities."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector of length 1 for each text, in order; all zeros for a text without known
        words.

        Raises RetryableError or PermanentError where a server makes the vectors.
        """
        ...


def embedder_for(settings: Settings) -> Embedder:
    """Return the server's model if JOBS_EMBED_BASE_URL is set, and otherwise the embedder of
    JOBS_EMBED_OFFLINE.

    Raises PermanentError when the model has no vectors of the length in the settings."""
    dimensions = settings.embed_dimensions
    if settings.embed_base_url is None:
        return offline_embedder(settings.embed_offline, dimensions)
    return _served_embedder(settings, settings.embed_base_url, settings.embed_model, dimensions)


def is_offline(name: str) -> bool:
    """Return whether an embedder of that name uses no server, and so makes the same vectors for
    ever."""
    return any(name.startswith(f"{kind}-") for kind in OFFLINE)


def offline_embedder(kind: str, dimensions: int) -> Embedder:
    """Return an embedder that uses no server: `hashed`, `wordllama`, `minilm`, or the model in a
    folder.

    Raises PermanentError when the model is not there, or has no vectors of that length.
    """
    if kind == "hashed":
        from switchyard.services.pipeline.index.hashed_embedder import HashedEmbedder

        return HashedEmbedder(dimensions)
    if kind == "wordllama":
        from switchyard.services.pipeline.index.wordllama import WordllamaEmbedder

        return WordllamaEmbedder(dimensions)
    from switchyard.services.pipeline.index.local_model import LocalModelEmbedder, model_folder

    return LocalModelEmbedder(model_folder(kind), dimensions)


def embedder_named(
    settings: Settings,
    name: str,
    dimensions: int,
    budget: EmbeddingBudget | None = None,
    sizes: dict[tuple[str, str], int] | None = None,
) -> Embedder | None:
    """Return the embedder of that name, which need not be the one of the settings. None where the
    settings can't make it: a server's model without a server, or an older version of an offline
    embedder.

    `budget` is charged for requests to a server; `sizes` is as in RemoteEmbedder.
    """
    for kind in OFFLINE:
        if not name.startswith(f"{kind}-"):
            continue
        if kind == "local":
            embedder = _local_embedder(settings.embed_offline, dimensions)
        else:
            embedder = offline_embedder(kind, dimensions)
        return embedder if embedder is not None and embedder.name == name else None
    model = name.removesuffix(f"-{dimensions}")
    if model == name or settings.embed_base_url is None:
        return None
    return _served_embedder(settings, settings.embed_base_url, model, dimensions, budget, sizes)


def _local_embedder(setting: str, dimensions: int) -> Embedder | None:
    """Return the model in the folder of the settings, else all-MiniLM-L6-v2 where it is
    installed."""
    kind = "minilm" if setting in ("hashed", "wordllama") else setting
    try:
        return offline_embedder(kind, dimensions)
    except PermanentError:
        return None


def _served_embedder(
    settings: Settings,
    base_url: str,
    model: str,
    dimensions: int,
    budget: EmbeddingBudget | None = None,
    sizes: dict[tuple[str, str], int] | None = None,
) -> Embedder:
    from switchyard.services.pipeline.index.remote_embedder import RemoteEmbedder

    return RemoteEmbedder(
        base_url=base_url,
        model=model,
        api_key=settings.embed_api_key,
        dimensions=dimensions,
        timeout=settings.llm_timeout,
        own_model=None if model == settings.embed_model else settings.embed_model,
        budget=budget,
        batch_size=settings.embed_batch_size,
        sizes={} if sizes is None else sizes,
        calibration=SimilarityCalibration(
            min_relevance=settings.embed_fits,
            min_similarity=settings.embed_alike,
            vector_weight=_MODEL_WEIGHT,
        ),
    )

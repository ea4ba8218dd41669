"""An embedding model behind an OpenAI-compatible server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import SecretStr

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.printable import quoted_answer
from switchyard.services.llm.budget_account import CallCharge, EmbeddingBudget
from switchyard.services.llm.completion_reader import CompletionReader, field_of
from switchyard.services.llm.endpoint_requests import is_vector
from switchyard.services.llm.llm_errors import InvalidLlmResponse, LlmRefused
from switchyard.services.llm.server_client import call_with_retries, open_api
from switchyard.services.pipeline.index.chunk_index import IndexMismatch, recovery_hint
from switchyard.services.pipeline.index.similarity_calibration import SimilarityCalibration

if TYPE_CHECKING:
    import openai

BATCH_SIZE = 64
"""Texts in one request, unless JOBS_EMBED_BATCH_SIZE says otherwise."""
_TOO_LARGE_STATUSES = frozenset({400, 413, 422})
"""Statuses with which servers refuse more texts, or more text, than they accept in one request."""
_TRIES_FACTOR = 2.0
"""All tries of one request may take this many times one request's time limit."""


@dataclass(frozen=True, slots=True)
class RemoteEmbedder:
    """Has an embedding server make the vectors. `timeout` is seconds for one request."""

    base_url: str
    model: str
    dimensions: int
    timeout: float
    calibration: SimilarityCalibration
    api_key: SecretStr | None = field(default=None, repr=False)
    own_model: str | None = None
    """The model of the settings, where `model` is another. Some servers answer with their only
    model whatever the request names: then the answer must name its model, so that vectors of two
    models never get into one index."""
    budget: EmbeddingBudget | None = None
    """The budget that is charged for requests, and records their cost; None where they are not
    charged."""

    batch_size: int = BATCH_SIZE
    """Most texts in one request."""
    sizes: dict[tuple[str, str], int] = field(default_factory=dict, repr=False, compare=False)
    """Texts that servers accept in one request, by address and model; only of servers that have
    refused more. The embedders of a process share it."""

    @property
    def name(self) -> str:
        return f"{self.model}-{self.dimensions}"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Embed texts in batches. A batch too large for the server is halved until it is taken.

        Raises RetryableError when the server does not answer, is overloaded or answers with
        something else, PermanentError when it refuses or its vectors have another length,
        IndexMismatch when they are another model's, NoBudget."""
        key = self.api_key.get_secret_value() if self.api_key else None
        vectors: list[list[float]] = []
        server = (self.base_url, self.model)
        first_size = min(self.batch_size, self.sizes.get(server, self.batch_size))
        size = first_size
        async with open_api(self.base_url, key, self.timeout) as api:
            while len(vectors) < len(texts):
                batch = list(texts[len(vectors) : len(vectors) + size])
                try:
                    vectors.extend(await self._embed_batch(api, batch))
                except LlmRefused as error:
                    if error.status not in _TOO_LARGE_STATUSES:
                        raise
                    if len(batch) == 1:
                        raise self._refusal(error, batch[0], len(vectors), len(texts)) from error
                    size = (len(batch) + 1) // 2
        if size < first_size:  # every text was accepted, so the batch was too large
            self.sizes[server] = size
            structlog.get_logger("index").warning(
                "embedding batch size reduced",
                model=self.model,
                texts=size,
                advice="set JOBS_EMBED_BATCH_SIZE to it",
            )
        return vectors

    async def _embed_batch(self, api: openai.AsyncOpenAI, batch: list[str]) -> list[list[float]]:
        async def create() -> Any:
            # Without a format the SDK asks for base64, which few servers speak.
            body = {"model": self.model, "input": batch, "encoding_format": "float"}
            return await api.post("/embeddings", body=body, cast_to=object)

        async with self._charge(batch) as charge:
            answer = await call_with_retries(
                create, timeout=self.timeout * _TRIES_FACTOR, on_broken=charge.count_broken
            )
            charge.answer = CompletionReader(self.model).completion_without_text(answer)
        self._check_model(answer)
        return self._parse_vectors(answer, len(batch))

    def _refusal(self, error: LlmRefused, text: str, index: int, count: int) -> LlmRefused:
        refused_text = "the text"
        if count > 1:
            refused_text = f"text {index + 1} of {count}, of {len(text):,} characters, alone"
        return LlmRefused(f"the embedding server refuses {refused_text}: {error}")

    def _charge(self, batch: Sequence[str]) -> AbstractAsyncContextManager[CallCharge]:
        return (
            nullcontext(CallCharge())
            if self.budget is None
            else self.budget.charge_embedding(self.model, batch)
        )

    def _check_model(self, answer: Any) -> None:
        model = field_of(answer, "model")
        if self.own_model is not None and model != self.model:
            answering_model = (
                repr(model[:100]) if isinstance(model, str) else "a model that it does not name"
            )
            raise IndexMismatch(
                f"the index holds vectors of {self.model!r}, but the server of JOBS_EMBED_BASE_URL "
                f"answers requests for that model with vectors of {answering_model}: let it serve "
                f"{self.model!r} besides {self.own_model!r} until the index is rebuilt, or "
                f"{recovery_hint(self.name, self.dimensions)}"
            )

    def _parse_vectors(self, answer: Any, expected: int) -> list[list[float]]:
        data = field_of(answer, "data")
        if not isinstance(data, list) or len(data) != expected:
            raise InvalidLlmResponse(
                f"the embedding server did not answer with {expected} vectors, but with "
                f"{quoted_answer(answer)}"
            )
        ordered: list[list[float] | None] = [None] * expected
        for position, item in enumerate(data):
            index = field_of(item, "index")
            place = index if isinstance(index, int) and 0 <= index < expected else position
            ordered[place] = self._normalise(field_of(item, "embedding"))
        vectors = [vector for vector in ordered if vector is not None]
        if len(vectors) != expected:
            raise InvalidLlmResponse("the embedding server numbered its vectors twice")
        return vectors

    def _normalise(self, vector: Any) -> list[float]:
        if not is_vector(vector):
            raise InvalidLlmResponse(
                f"the embedding server returned something other than a vector: "
                f"{quoted_answer(vector)}"
            )
        if len(vector) != self.dimensions:
            raise PermanentError(
                f"model {self.model!r} makes vectors of length {len(vector)}, "
                f"JOBS_EMBED_DIMENSIONS is {self.dimensions}: set it to {len(vector)}"
            )
        length = math.sqrt(sum(x * x for x in vector))
        return [x / length for x in vector] if length else [float(x) for x in vector]

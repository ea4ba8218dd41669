"""The offline embedder by meaning: the mean of static vectors of a text's tokens.

Vectors and tokenizer are two files of the package wordllama (MIT). They are read directly: the
package's own loader looks for the tokenizer in another folder, and then asks the network.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from switchyard.services.common.errors import PermanentError
from switchyard.services.pipeline.index.similarity_calibration import SimilarityCalibration

DIMENSIONS = 256
"""Length of the package's vectors. The first numbers of a vector say most, so a vector can be
cut."""
_VECTORS = "weights/l2_supercat_256.safetensors"
TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
"""Path in the folder of the package."""
_SHORT_WORD = 3
"""Longest words, in letters, that do not tell whether the vocabulary knows the language."""
_MIN_LETTERS = 1.9
"""Letters per token, on average, from which a text's language counts as known. English has 3.5 and
more, other languages in Latin and Cyrillic letters 2 and more. Other scripts, of which the
vocabulary has only characters or bytes, and text in no language have fewer: the mean of such pieces
means nothing."""
WORD_BEGINS = "\u2581"
"""First character of a token that begins a word."""
_BYTE = re.compile("<0x..>")
_BYTES_OF_A_LETTER = 3
"""Bytes that a letter of another script has in most cases."""


@dataclass(frozen=True, slots=True)
class WordllamaEmbedder:
    """Embeds texts offline, best in English. A text in a language that the vocabulary does not know
    gets a vector of zeros, which is near to nothing."""

    dimensions: int = DIMENSIONS

    def __post_init__(self) -> None:
        if self.dimensions > DIMENSIONS:
            raise PermanentError(
                f"wordllama's vectors have {DIMENSIONS} numbers, JOBS_EMBED_DIMENSIONS is "
                f"{self.dimensions}: set it to {DIMENSIONS}, or JOBS_EMBED_OFFLINE=hashed"
            )

    @property
    def name(self) -> str:
        return f"wordllama-1-{self.dimensions}"

    @property
    def calibration(self) -> SimilarityCalibration:
        return SimilarityCalibration(min_relevance=0.15, min_similarity=0.45, vector_weight=0.6)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Embed texts. Raises PermanentError when the package's files are not there."""
        return await asyncio.to_thread(self.embed_now, texts)

    def embed_now(self, texts: Sequence[str]) -> list[list[float]]:
        """Do what `embed` does, for callers without an event loop."""
        model = _load_model()
        return [model.vector(text, self.dimensions) for text in texts]


@dataclass(frozen=True, slots=True)
class _Model:
    tokenizer: Any
    vectors: Any
    """Array with a row for each token of the vocabulary."""
    letters: Any
    """Array: the number of letters or digits of each token."""
    begins_word: Any
    """Array: whether each token begins a word."""

    def vector(self, text: str, dimensions: int) -> list[float]:
        import numpy as np

        # One by one: a batch would use all cores, and leave threads behind, which make forks fail.
        tokens = np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)
        if not self._knows_language(tokens):
            return [0.0] * dimensions
        total = self.vectors[tokens, :dimensions].sum(axis=0, dtype=np.float64)
        length = float(np.linalg.norm(total))
        return [float(value) / length for value in total] if length else [0.0] * dimensions

    def _knows_language(self, tokens: Any) -> bool:
        import numpy as np

        word_numbers = np.cumsum(self.begins_word[tokens])
        letters = np.bincount(word_numbers, weights=self.letters[tokens])
        lettered_tokens = np.bincount(word_numbers, weights=self.letters[tokens] > 0)
        is_long = letters > _SHORT_WORD
        if not is_long.any():
            is_long = letters > 0
        return bool(
            is_long.any()
            and letters[is_long].sum() >= _MIN_LETTERS * lettered_tokens[is_long].sum()
        )


@lru_cache(maxsize=1)
def _load_model() -> _Model:
    """Load the model, once in a process: some 65 MB with numpy, and half a second."""
    import numpy as np
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    package = find_spec("wordllama")
    folder = Path(package.origin).parent if package and package.origin else Path()
    try:
        tokenizer = Tokenizer.from_buffer((folder / TOKENIZER).read_bytes())
        vectors = load_file(folder / _VECTORS)["embedding.weight"]
    except FileNotFoundError as error:
        raise PermanentError(
            "the package wordllama, or its file of vectors, is missing: install the pinned "
            "requirements again, or set JOBS_EMBED_OFFLINE=hashed"
        ) from error
    letters = np.zeros(len(vectors))
    begins_word = np.zeros(len(vectors), dtype=bool)
    for token, number in tokenizer.get_vocab().items():
        is_byte = _BYTE.fullmatch(token)
        letters[number] = 1 / _BYTES_OF_A_LETTER if is_byte else sum(map(str.isalnum, token))
        begins_word[number] = token.startswith(WORD_BEGINS)
    return _Model(tokenizer, vectors, letters, begins_word)

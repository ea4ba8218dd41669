"""The offline embedder by meaning: stable vectors, and zeros for languages that it does not
know."""

from __future__ import annotations

import math

import pytest

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index.embedder import embedder_for
from switchyard.services.pipeline.index.wordllama import WordllamaEmbedder

TEXT = "The tide rises twice a day."
FIRST_NUMBERS = [0.037603, -0.006186, 0.046789, 0.055322]
LAST_NUMBERS = [-0.05114, 0.067953]


def cosine(text: str, other_text: str) -> float:
    left, right = WordllamaEmbedder().embed_now([text, other_text])
    return sum(a * b for a, b in zip(left, right, strict=True))


def test_vectors_do_not_change():
    """A change here makes every existing index worthless: give the embedder a new name."""
    assert WordllamaEmbedder(256).name == "wordllama-1-256"
    vector = WordllamaEmbedder(256).embed_now([TEXT])[0]
    assert vector[:4] == pytest.approx(FIRST_NUMBERS, abs=1e-5)
    assert vector[-2:] == pytest.approx(LAST_NUMBERS, abs=1e-5)


def test_texts_of_similar_meaning_are_near_without_a_common_word():
    question = "why does the sea rise and fall"
    near = cosine(question, "Tides of the ocean")
    assert near > cosine(question, "The prince of Denmark hesitates.") + 0.1


@pytest.mark.parametrize(
    "text", ["", "!?…", "xyzzy", "8d1f0c77e2", "潮汐每天两次上升", "קבוצות קטנות"]
)
def test_a_text_in_an_unknown_language_gets_zeros(text: str):
    assert not any(WordllamaEmbedder().embed_now([text])[0])


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "git",
        "Sudet palasivat metsiin",
        "Волки вернулись в леса",
        "Die Flut steigt.",
        "fix it",
    ],
)
@pytest.mark.parametrize("dimensions", [64, 256])
def test_vectors_of_known_languages_have_length_one(text: str, dimensions: int):
    vector = WordllamaEmbedder(dimensions).embed_now([text])[0]
    assert len(vector) == dimensions
    assert math.isclose(sum(x * x for x in vector), 1, rel_tol=1e-9)


async def test_embedding_without_blocking_gives_the_same():
    embedder = WordllamaEmbedder(64)
    assert await embedder.embed([TEXT]) == embedder.embed_now([TEXT])


def test_the_error_for_too_many_dimensions_names_the_settings():
    with pytest.raises(PermanentError, match=r"JOBS_EMBED_DIMENSIONS is 512.*OFFLINE=hashed"):
        embedder_for(Settings(embed_dimensions=512))


def test_the_error_names_a_missing_package(monkeypatch: pytest.MonkeyPatch):
    module = "switchyard.services.pipeline.index.wordllama"
    monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    monkeypatch.setattr(f"{module}._load_model", _uncached_loader())
    with pytest.raises(PermanentError, match="JOBS_EMBED_OFFLINE=hashed"):
        WordllamaEmbedder().embed_now([TEXT])


def _uncached_loader():
    from switchyard.services.pipeline.index import wordllama

    return wordllama._load_model.__wrapped__

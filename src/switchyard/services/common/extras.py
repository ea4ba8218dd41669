"""The extras of this package: the libraries of each, and the error where one is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

from switchyard.services.common.errors import Misconfigured

MODULES_OF_EXTRAS: Mapping[str, frozenset[str]] = {
    extra: frozenset(modules.split())
    for extra, modules in {
        "api": "fastapi fastapi_offline httptools jinja2 python_multipart starlette uvicorn uvloop",
        "llm": "openai tenacity",
        "documents": "PIL Stemmer lancedb lxml numpy protego pyarrow pymupdf pypdfium2 safetensors "
        "tokenizers trafilatura webencodings wordllama",
        "citations": "pycrfsuite",
        "graph": "scipy sknetwork",
        "archive": "duckdb",
        "jq": "jq",
        "mcp": "mcp",
        "ocr": "cv2 onnxruntime rapidocr",
        "s3": "obstore",
        "tracing": "opentelemetry",
    }.items()
}
"""Top-level modules that each extra installs; without `minilm`, a model that no command needs
(`services/pipeline/index/local_model.py`)."""


class ExtraNotInstalled(Misconfigured):
    """A library that is needed is not installed here; the text says which extra installs it."""


@contextmanager
def naming_extra() -> Iterator[None]:
    """Wrap an import. Raises ExtraNotInstalled where an extra installs the missing module."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (hint := missing_extra_hint(error)) is None:
            raise
        raise ExtraNotInstalled(hint) from error


def missing_extra_hint(error: ModuleNotFoundError) -> str | None:
    """Return the line that says what to install after a failed import of an extra's library; None
    where no extra installs the module."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in MODULES_OF_EXTRAS.items():
        if module in modules:
            return f"{error.name} is not installed: `pip install 'switchyard[{extra}]'`"
    return None


def require_extras(purpose: str, *extras: str) -> None:
    """Check that the libraries of these extras are installed, before any work begins. Raises
    ExtraNotInstalled, which names all extras that are missing."""
    installed = installed_extras()
    missing = [extra for extra in extras if not installed[extra]]
    if missing:
        command = f"pip install 'switchyard[{','.join(missing)}]'"
        raise ExtraNotInstalled(f"{purpose} needs what is not installed: `{command}`")


def installed_extras() -> dict[str, bool]:
    """Return, by extra, whether all of its libraries are installed."""
    return {
        extra: all(find_spec(module) is not None for module in modules)
        for extra, modules in MODULES_OF_EXTRAS.items()
    }

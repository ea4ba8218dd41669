from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.common.settings.llm import LlmServer
from switchyard.services.engine.ledger import Ledger
from switchyard.services.llm import batch_runner
from tests.support.brokers import TestBroker
from tests.support.ledgers import make_ledger
from tests.support.llm_batches import with_batches
from tests.support.llm_server import MODEL, FakeLlmServer
from tests.support.system import System, open_system


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    """Yield an empty ledger, on each kind of database."""
    async with await Ledger.open(database_url, check=True) as opened:
        yield opened


@pytest.fixture
async def plain_ledger(sqlite_url: str) -> AsyncIterator[Ledger]:
    """Yield an empty ledger on SQLite, for tests for which one kind of database is enough."""
    await make_ledger(sqlite_url)
    async with await Ledger.open(sqlite_url, check=True) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _own_data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store answers below the test's directory where its settings name none."""
    monkeypatch.setenv("JOBS_DATA_DIR", str(tmp_path))


@pytest.fixture
def llm() -> Iterator[FakeLlmServer]:
    """Yield a fake model server, which answers well unless a test says otherwise."""
    with FakeLlmServer() as server:
        yield server


@pytest.fixture
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check batches in each turn, and repeat failed requests at once."""
    monkeypatch.setattr(batch_runner, "BATCH_POLL_INTERVAL", 0.0)
    monkeypatch.setattr("switchyard.services.llm.server_client.FIRST_RETRY_DELAY", 0.01)


@pytest.fixture
async def system(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, llm: FakeLlmServer, no_delays: None
) -> AsyncIterator[System]:
    """Yield a system whose only provider is the test's server."""
    modules = ("switchyard.services.llm.job_types",)
    async with open_system(broker310, sqlite_url, data_dir=tmp_path, modules=modules) as opened:
        own = LlmServer(name="own", base_url=llm.url, model=MODEL, aliases=("small", "org/small"))
        overrides = {"llm_providers": (own,), "llm_timeout": 60.0}
        opened.settings = opened.settings.model_copy(update=overrides)
        yield opened


@pytest.fixture
def settings(tmp_path: Path, llm: FakeLlmServer, no_delays: None) -> Settings:
    """Return settings without a broker, which send questions to the fake server in batches."""
    nowhere = {"amqp_url": "amqp://127.0.0.1:1", "data_dir": tmp_path}
    return Settings.model_validate(with_batches(llm.url, tmp_path) | nowhere)

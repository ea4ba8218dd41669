from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from switchyard.services.ledger import Ledger
from tests.support.ledgers import make_ledger
from tests.support.llm_server import LlmServer


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    """An empty ledger, on each kind of database."""
    async with await Ledger.open(database_url, check=True) as opened:
        yield opened


@pytest.fixture
async def plain_ledger(sqlite_url: str) -> AsyncIterator[Ledger]:
    """An empty ledger, where one kind of database says enough."""
    await make_ledger(sqlite_url)
    async with await Ledger.open(sqlite_url, check=True) as opened:
        yield opened


@pytest.fixture
def llm() -> Iterator[LlmServer]:
    with LlmServer() as server:
        yield server

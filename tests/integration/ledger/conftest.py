from collections.abc import AsyncIterator

import pytest

from switchyard.services.engine.ledger import Ledger


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    """An empty ledger, on each kind of database."""
    async with await Ledger.open(database_url, check=True) as opened:
        yield opened

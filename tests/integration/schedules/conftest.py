"""A system on each kind of database, and the clock that its schedules use."""

from collections.abc import AsyncIterator

import pytest

from switchyard.services.engine.ledger import schedules as ledger_schedules
from tests.support.brokers import TestBroker
from tests.support.schedules import Time
from tests.support.system import System, open_system


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(ledger_schedules, "db_now", lambda connection: clock.now)
    return clock


@pytest.fixture
async def system(broker310: TestBroker, database_url: str) -> AsyncIterator[System]:
    async with open_system(broker310, database_url) as opened:
        yield opened

"""A system whose workers are soon taken for dead."""

from collections.abc import AsyncIterator

import pytest

from tests.support.brokers import TestBroker
from tests.support.system import System, open_system
from tests.support.workers import LEVELS, PATIENT


@pytest.fixture
async def system(broker310: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    async with open_system(
        broker310, sqlite_url, retry_delays=LEVELS, takeover_after=PATIENT
    ) as opened:
        yield opened

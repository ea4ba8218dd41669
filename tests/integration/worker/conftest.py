"""A system whose workers count as dead after a short silence."""

from collections.abc import AsyncIterator

import pytest

from tests.support.brokers import TestBroker
from tests.support.system import System, open_system
from tests.support.workers import RETRY_DELAYS, TAKEOVER_AFTER


@pytest.fixture
async def system(broker310: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    async with open_system(
        broker310, sqlite_url, retry_delays=RETRY_DELAYS, takeover_after=TAKEOVER_AFTER
    ) as opened:
        yield opened

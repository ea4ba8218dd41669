"""Lanes on a broker of its own for each test, and a handler of their jobs."""

from collections.abc import AsyncIterator

import pytest

from tests.support.brokers import TestBroker
from tests.support.lane_consumers import Handler, Lanes, lanes_on, small


@pytest.fixture
async def lanes(broker: TestBroker) -> AsyncIterator[Lanes]:
    async with lanes_on(broker, small()) as made:
        yield made


@pytest.fixture
async def lanes310(broker310: TestBroker) -> AsyncIterator[Lanes]:
    async with lanes_on(broker310, small()) as made:
        yield made


@pytest.fixture
def handler() -> Handler:
    return Handler()

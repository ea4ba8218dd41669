"""Lanes on a virtual host of its own for each test, and a handler of their jobs."""

from collections.abc import AsyncIterator

import pytest

from tests.support.brokers import TestBroker
from tests.support.lane_consumers import Handler, Lanes, lanes_for, lanes_on


@pytest.fixture
async def lanes(broker: TestBroker) -> AsyncIterator[Lanes]:
    async with lanes_on(broker, lanes_for()) as lanes:
        yield lanes


@pytest.fixture
async def lanes310(broker310: TestBroker) -> AsyncIterator[Lanes]:
    async with lanes_on(broker310, lanes_for()) as lanes:
        yield lanes


@pytest.fixture
def handler() -> Handler:
    return Handler()

"""A user who starts backfills, on a system of its own for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.backfills import BackfillUser, open_backfills
from tests.support.brokers import TestBroker


@pytest.fixture
async def user(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> AsyncIterator[BackfillUser]:
    async with open_backfills(broker310, sqlite_url, tmp_path) as (_, user):
        yield user

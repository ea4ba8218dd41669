from collections.abc import AsyncIterator

import pytest

from switchyard.services.jobs.registry import BUILT_IN_MODULES
from tests.support.api_server import RunningApi, connected, serving
from tests.support.brokers import TestBroker
from tests.support.system import JOB_MODULES, System, open_system


@pytest.fixture
async def system(
    broker310: TestBroker, sqlite_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    """A system on SQLite, whose files are the test's own."""
    data_dir = tmp_path_factory.mktemp("data")
    modules = (*BUILT_IN_MODULES, *JOB_MODULES)  # the API takes documents, too: they need queues
    async with open_system(broker310, sqlite_url, modules=modules, data_dir=data_dir) as opened:
        yield opened


@pytest.fixture
async def api(system: System) -> AsyncIterator[RunningApi]:
    """The API of that system; nobody needs a key."""
    async with serving(system.settings) as running:
        await connected(running)
        yield running

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.integration.api.background_api import MODULES, in_background, open_api, with_own_client
from tests.support.api_server import RunningApi, serving, until_connected
from tests.support.brokers import TestBroker
from tests.support.system import System, open_system


@pytest.fixture
async def system(
    broker310: TestBroker, sqlite_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    """Yield a system on SQLite whose files are in a new directory."""
    data_dir = tmp_path_factory.mktemp("data")
    async with open_system(broker310, sqlite_url, modules=MODULES, data_dir=data_dir) as opened:
        yield opened


@pytest.fixture
async def api(system: System) -> AsyncIterator[RunningApi]:
    """Yield the API of that system; requests need no key."""
    async with serving(system.settings) as running:
        await until_connected(running)
        yield running


@pytest.fixture(scope="module")
def _background_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApi]:
    with in_background(open_api(tmp_path_factory.mktemp("background"))) as running:
        yield running


@pytest.fixture
async def shared_api(_background_api: RunningApi) -> AsyncIterator[RunningApi]:
    """Yield an API that the tests of a module share, each with a client of its own."""
    async with with_own_client(_background_api) as running:
        yield running

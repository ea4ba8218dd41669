from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest

from tests.integration.api.background_api import MODULES
from tests.support.api_server import RunningApi, serving, until_connected
from tests.support.brokers import TestBroker
from tests.support.browser import Browser, clear, opened_browser
from tests.support.system import System, open_system


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Browser]:
    with ExitStack() as stack:
        try:
            browser = stack.enter_context(opened_browser())
        except FileNotFoundError as error:
            pytest.skip(str(error))
        yield browser


@pytest.fixture
def browser(_chromium: Browser) -> Browser:
    """Return the browser without pages, cookies and other state of earlier tests."""
    return clear(_chromium)


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

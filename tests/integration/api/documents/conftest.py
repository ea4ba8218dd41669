from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from switchyard.services.common.settings import Settings
from tests.integration.api.background_api import http_client, in_background
from tests.integration.api.document_server import NewFileLister, files_of, serving


def _without_a_broker(directory: Path) -> Settings:
    return Settings(data_dir=directory / "data", amqp_url=None, retry_delays=(0.05, 0.1))


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return _without_a_broker(tmp_path_factory.mktemp("documents"))


@pytest.fixture(scope="module")
def _address(settings: Settings) -> Iterator[str]:
    with in_background(serving(settings)) as client:
        yield str(client.base_url)


@pytest.fixture
async def client(_address: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of an API without a broker. The tests of a module share it: each sends
    documents whose content and source no other test sends."""
    async with http_client(_address) as opened:
        yield opened


@pytest.fixture
def list_new_files(settings: Settings) -> NewFileLister:
    """Return a function that lists the files that were stored since the test began."""
    before = set(files_of(settings))

    def since(below: str = "") -> list[Path]:
        return [path for path in files_of(settings, below) if path not in before]

    return since


@pytest.fixture
def own_settings(tmp_path: Path) -> Settings:
    return _without_a_broker(tmp_path)


@pytest.fixture
async def own_client(own_settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of an API that has no documents but the test's own."""
    async with serving(own_settings) as opened:
        yield opened

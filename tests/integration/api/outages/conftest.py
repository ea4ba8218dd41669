from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from switchyard.cli.system.rabbitmq_node import LocalNode
from tests.integration.api.outages.answers import NOOP
from tests.support.api_server import RunningApi, serving, until_connected
from tests.support.brokers import TestBroker
from tests.support.system import System, open_system


@pytest.fixture
async def system_on_own_node(
    own_node: Callable[..., LocalNode], sqlite_url: str, tmp_path: Path
) -> AsyncIterator[tuple[LocalNode, System, RunningApi]]:
    """Yield a broker node of the test's own, a system on it, and the system's API."""
    node = own_node()
    broker = TestBroker("3.10", "classic", "/", node)
    async with (
        open_system(broker, sqlite_url, data_dir=tmp_path) as system,
        serving(system.settings) as api,
    ):
        await until_connected(api)
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202
        yield node, system, api

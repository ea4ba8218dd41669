"""The systems that `make bench` makes, one after the other, have nothing in common."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from benchmarks.stage import Stage
from switchyard.broker.addresses import vhost_of
from switchyard.services.common.settings import Settings
from switchyard.services.engine.identity.storage_identity import claim_places
from switchyard.services.engine.ledger import Ledger
from tests.support.brokers import TestBroker
from tests.support.servers import shared_postgres

pytestmark = [pytest.mark.broker310, pytest.mark.postgres]


@pytest.fixture
def systems(broker310: TestBroker, tmp_path: Path) -> Iterator[list[dict[str, str]]]:
    """The environment variables of two systems of the same name, as of two rounds."""
    stage = Stage(
        directory=tmp_path,
        amqp_url=broker310.amqp_url,
        management_url=broker310.management_url,
        broker_version=broker310.version,
        postgres=shared_postgres(),
    )
    environments = [stage.switchyard("twice", "postgresql") for _ in range(2)]
    yield environments
    with httpx.Client(base_url=broker310.management_url) as client:
        for environment in environments:
            vhost = quote(vhost_of(environment["JOBS_AMQP_URL"]), safe="")
            client.delete(f"/api/vhosts/{vhost}").raise_for_status()
            stage.postgres.drop_later(environment["JOBS_DATABASE_URL"])


async def test_no_system_finds_what_belongs_to_another(systems: list[dict[str, str]]) -> None:
    assert len({environment["JOBS_AMQP_URL"] for environment in systems}) == len(systems)
    for environment in systems:
        settings = Settings(
            data_dir=environment["JOBS_DATA_DIR"], database_url=environment["JOBS_DATABASE_URL"]
        )
        async with await Ledger.open(settings.ledger_url) as ledger:
            assert await claim_places(settings, ledger) == ()

"""What `make bench` measures on: a run is one of many systems, one after the other."""

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
    """Two of the same name, as two rounds of a measurement make them."""
    stage = Stage(
        directory=tmp_path,
        amqp_url=broker310.amqp_url,
        management_url=broker310.management_url,
        broker_version=broker310.version,
        postgres=shared_postgres(),
    )
    made = [stage.switchyard("twice", "postgresql") for _ in range(2)]
    yield made
    with httpx.Client(base_url=broker310.management_url) as client:
        for each in made:
            vhost = quote(vhost_of(each["JOBS_AMQP_URL"]), safe="")
            client.delete(f"/api/vhosts/{vhost}").raise_for_status()
            stage.postgres.drop_later(each["JOBS_DATABASE_URL"])


async def test_no_system_finds_what_is_anothers(systems: list[dict[str, str]]) -> None:
    assert len({each["JOBS_AMQP_URL"] for each in systems}) == len(systems)
    for each in systems:
        settings = Settings(data_dir=each["JOBS_DATA_DIR"], database_url=each["JOBS_DATABASE_URL"])
        async with await Ledger.open(settings.ledger_url) as ledger:
            assert await claim_places(settings, ledger) == ()

"""TLS to the broker, to PostgreSQL and to the API: used where it is asked for, and refused where
the certificate is not signed by whom we trust."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from switchyard import AsyncClient
from switchyard.api.client.errors import ApiUnavailable
from switchyard.broker.errors import BrokerUnavailable
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.wire.connection import connected
from switchyard.cli.system.free_ports import LOOPBACK, free_port
from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.engine.ledger import Ledger, upgrade
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.states import State
from tests.support.api_server import serving
from tests.support.brokers import TestBroker
from tests.support.certificates import Certificates, make_certificates
from tests.support.postgres import PostgresServer
from tests.support.servers import own_postgres
from tests.support.system import open_system

ROOT = Path(__file__).parents[2]


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "ours")


@pytest.fixture
def stranger(tmp_path: Path) -> Certificates:
    """Certificates of an authority that nobody trusts here."""
    return make_certificates(tmp_path / "stranger")


def read_shipped_settings(certificates: Certificates) -> dict[str, str]:
    """Return the settings of rabbitmq.tls.conf, with these files, but with a TCP listener: there
    LocalNode asks whether the node is up."""
    text = (ROOT / "deploy" / "rabbitmq.tls.conf").read_text()
    for name, file in {
        "ca.pem": certificates.authority,
        "rabbitmq.pem": certificates.certificate,
        "rabbitmq.key": certificates.key,
    }.items():
        text = text.replace(f"/run/tls/{name}", str(file))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    settings = dict(line.split(" = ", 1) for line in lines)
    del settings["listeners.tcp"]
    return settings


async def test_a_job_over_a_broker_that_speaks_tls_alone(
    own_node: Callable[..., LocalNode],
    certificates: Certificates,
    stranger: Certificates,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, management_port = free_port(), free_port()
    node = own_node(
        "4.3",
        extra_config=read_shipped_settings(certificates)
        | {
            "listeners.ssl.default": f"{LOOPBACK}:{port}",
            "management.ssl.ip": LOOPBACK,
            "management.ssl.port": str(management_port),
        },
    )
    address = f"amqps://{node.user}:{node.password}@{LOOPBACK}:{port}/"
    url = f"{address}?cafile={certificates.authority}"
    broker = TestBroker("4.3", "classic", "/", node)
    async with open_system(broker, sqlite_url) as system:
        await system.start_worker(amqp_url=SecretStr(url))
        settings = system.settings.model_copy(update={"amqp_url": SecretStr(url)})
        async with Publisher(settings) as publisher:
            jobs = JobPublisher(system.registry, system.ledger, publisher)
            job_id = (await jobs.publish(JobRequest("hot.noop", {}))).job_id
            await system.wait_for_state(job_id, State.SUCCEEDED)

    with pytest.raises(BrokerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        async with connected(f"{address}?cafile={stranger.authority}", "distrusts"):
            pass

    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    management = f"https://{node.user}:{node.password}@{LOOPBACK}:{management_port}"
    async with ManagementClient(management) as client:
        assert (await client.version()).startswith("4.3")


@pytest.fixture
def postgres_tls(certificates: Certificates, tmp_path: Path) -> Iterator[PostgresServer]:
    """A server that takes connections with TLS. The file of its key is owned by the system user
    that runs it."""
    folder = tmp_path / "postgres"
    folder.mkdir()
    key = folder / "server.key"
    shutil.copyfile(certificates.key, key)
    key.chmod(0o640)  # a key of root may be readable by its group
    certificate = folder / "server.pem"
    shutil.copyfile(certificates.certificate, certificate)
    for directory in (folder, *folder.parents):
        if directory.stat().st_uid == folder.stat().st_uid:
            directory.chmod(directory.stat().st_mode | 0o011)
    server = own_postgres(
        folder,
        extra_config={"ssl": "on", "ssl_cert_file": str(certificate), "ssl_key_file": str(key)},
    )
    if server.system_user is not None:
        shutil.chown(key, server.system_user, server.system_user)
        key.chmod(0o600)
        shutil.chown(certificate, server.system_user, server.system_user)
    server.start()
    yield server
    server.stop()


async def test_a_ledger_over_tls(
    postgres_tls: PostgresServer,
    certificates: Certificates,
    stranger: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = postgres_tls.create_database() + "?ssl=verify-full"
    monkeypatch.setenv("PGSSLROOTCERT", str(certificates.authority))
    await upgrade(url)
    async with await Ledger.open(url) as ledger:
        assert await ledger.job_reads.counts() == {}
    monkeypatch.setenv("PGSSLROOTCERT", str(stranger.authority))
    with pytest.raises(LedgerError):
        async with await Ledger.open(url) as ledger:
            await ledger.job_reads.counts()


async def test_the_api_speaks_https(
    broker310: TestBroker,
    sqlite_url: str,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        open_system(broker310, sqlite_url) as system,
        serving(
            system.settings,
            api_tls_cert=certificates.certificate,
            api_tls_key=certificates.key,
        ) as api,
    ):
        port = httpx.URL(api.url).port
        async with AsyncClient(f"https://127.0.0.1:{port}") as client:
            with pytest.raises(ApiUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
                await client.lanes()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
        async with AsyncClient(f"https://127.0.0.1:{port}") as client:
            assert (await client.lanes()).lanes

"""Processes that are started before their broker or ledger wait for it and say so; errors that only
an operator can mend end them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx
import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.engine.identity.storage_identity import MARKER
from tests.acceptance.conftest import CommandLine
from tests.support.api_server import api_process
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.tcp_proxy import TcpProxy

COMMANDS = [("worker", "tester"), ("scheduler",)]


def proxy_to(url: str) -> TcpProxy:
    parts = urlsplit(url)
    return TcpProxy(str(parts.hostname), int(parts.port or 0))


async def assert_waits_and_goes_on(
    jobctl: CommandLine,
    command: tuple[str, ...],
    proxy: TcpProxy,
    dependency: str,
    **environment: str,
) -> None:
    proxied_jobctl = replace(jobctl, environment=jobctl.environment | environment)

    def count_in_log(text: str) -> int:
        return jobctl.log_of(command[0]).count(text)

    proxy.refuse()
    with proxied_jobctl.started(*command) as process:
        await eventually(lambda: count_in_log(f"waiting for the {dependency}"), 60)
        await asyncio.sleep(1)  # it tries again meanwhile, without another line
        assert process.poll() is None
        assert count_in_log(f"waiting for the {dependency}") == 1
        await proxy.accept()
        working = "worker started" if command[0] == "worker" else "scheduler active"
        await eventually(lambda: count_in_log(working), 60)
        assert count_in_log(f"the {dependency} is there") == 1


@pytest.mark.parametrize("command", COMMANDS, ids=["worker", "scheduler"])
async def test_a_process_that_starts_before_its_broker_waits_for_it(
    jobctl: CommandLine, command: tuple[str, ...]
) -> None:
    url = jobctl.environment["JOBS_AMQP_URL"]
    async with proxy_to(url) as proxy:
        await assert_waits_and_goes_on(
            jobctl, command, proxy, "broker", JOBS_AMQP_URL=proxy.url(url)
        )


@pytest.mark.parametrize("command", COMMANDS, ids=["worker", "scheduler"])
async def test_a_process_that_starts_before_its_ledger_waits_for_it(
    jobctl: CommandLine, command: tuple[str, ...], postgres_url: str
) -> None:
    async with proxy_to(postgres_url) as proxy:
        environment = {"JOBS_DATABASE_URL": proxy.url(postgres_url)}
        await assert_waits_and_goes_on(jobctl, command, proxy, "ledger", **environment)


@pytest.mark.long
async def test_an_api_that_starts_before_its_ledger_answers_503_until_it_is_there(
    broker310: TestBroker, postgres_url: str, tmp_path: Path
) -> None:
    async with proxy_to(postgres_url) as proxy:
        settings = Settings(
            amqp_url=broker310.amqp_url,
            management_url=broker310.management_url,
            data_dir=tmp_path,
            database_url=proxy.url(postgres_url),
        )
        proxy.refuse()
        async with (
            api_process(settings, tmp_path / "log") as api,
            httpx.AsyncClient(base_url=api.url, trust_env=False) as client,
        ):
            for response in (await client.get("/jobs"), await client.get("/health")):
                assert response.status_code == 503
                assert int(response.headers["retry-after"]) >= 1
            await proxy.accept()

            async def can_list_jobs() -> bool:
                return (await client.get("/jobs")).status_code == 200

            await eventually(can_list_jobs)
            await eventually((tmp_path / "files" / MARKER).exists, what="its storage is claimed")
            log = (tmp_path / "log").read_text()
            assert log.count("waiting for the ledger") == 1
            await eventually(lambda: "the ledger is there" in (tmp_path / "log").read_text())


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS, ids=["worker", "scheduler"])
def test_an_error_that_only_an_operator_can_mend_ends_the_command_with_a_line(
    jobctl: CommandLine, empty_postgres_url: str, command: tuple[str, ...]
) -> None:
    broker = urlsplit(jobctl.environment["JOBS_AMQP_URL"])
    host = broker.netloc.rpartition("@")[2]
    for netloc, path in ((f"nobody:wrong@{host}", broker.path), (broker.netloc, "/nowhere")):
        url = urlunsplit(broker._replace(netloc=netloc, path=path))
        assert "JOBS_AMQP_URL" in jobctl.fails(*command, JOBS_AMQP_URL=url)
    assert "jobctl db upgrade" in jobctl.fails(*command, JOBS_DATABASE_URL=empty_postgres_url)
    missing = f"{empty_postgres_url}_missing"
    assert "JOBS_DATABASE_URL" in jobctl.fails(*command, JOBS_DATABASE_URL=missing)

"""Addresses of a broker with several nodes, and the refusal of invalid ones."""

import traceback

import pytest
from pydantic import ValidationError

from switchyard.broker.addresses import (
    display_address,
    nodes_of,
    vhost_of,
    with_login,
    with_vhost,
    without_login,
)
from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger.sql.database import connect
from switchyard.services.engine.records.errors import LedgerMisconfigured

SECRET = "s3cret"
NODE_URLS = (
    f"amqp://me:{SECRET}@a:5672/jobs?heartbeat=5",
    f"amqp://me:{SECRET}@b/jobs?heartbeat=5",
    f"amqp://me:{SECRET}@[::1]:5673/jobs?heartbeat=5",
)


@pytest.mark.parametrize(
    "url",
    [
        f"amqp://me:{SECRET}@a:5672,b,[::1]:5673/jobs?heartbeat=5",
        f"amqp://me:{SECRET}@a:5672, b, [::1]:5673, b/jobs?heartbeat=5",
        ",".join(NODE_URLS),
        " , ".join(NODE_URLS),
        f"amqp://me:{SECRET}@a:5672,b/jobs?heartbeat=5,{NODE_URLS[2]}",
    ],
)
def test_several_hosts_and_several_addresses_are_the_same(url: str) -> None:
    assert nodes_of(url) == NODE_URLS
    assert display_address(url) == "a:5672,b:5672,::1:5673/jobs"
    assert without_login(url) == "amqp://a:5672,b,[::1]:5673"
    assert vhost_of(url) == "jobs"
    assert [vhost_of(each) for each in nodes_of(with_vhost(url, "x/y"))] == ["x/y"] * 3
    assert nodes_of(with_login(url, "you:1"))[1] == "amqp://you:1@b/jobs?heartbeat=5"


@pytest.mark.parametrize(
    ("url", "displayed"),
    [
        ("amqp://me@a", "a:5672"),
        ("amqp://me@a/", "a:5672"),
        ("amqps://me@a,b/%2F", "a:5671,b:5671"),
        ("amqp://me@a/%2f", "a:5672"),
        ("amqp://me@a/x%2Fy", "a:5672/x%2Fy"),
    ],
)
def test_the_virtual_host_is_shown_unless_it_is_the_default(url: str, displayed: str) -> None:
    assert display_address(url) == displayed


def test_management_urls_are_derived_from_the_nodes_unless_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JOBS_AMQP_URL", ",".join(NODE_URLS))
    derived = nodes_of(Settings().require_management_url())
    assert derived == tuple(f"http://me:{SECRET}@{host}:15672" for host in ("a", "b", "[::1]"))
    monkeypatch.setenv("JOBS_MANAGEMENT_URL", "https://a:1,b:2/")
    configured = nodes_of(Settings().require_management_url())
    assert configured == (f"https://me:{SECRET}@a:1", f"https://me:{SECRET}@b:2")


@pytest.mark.parametrize(
    ("invalid_url", "advice"),
    [
        (f"amqp://me:{SECRET}@a:56x2/", "amqp://user:password@host:5672/vhost"),
        (f"amqp://me:{SECRET}/x@a:5672/", "%2F"),
        (f"http://me:{SECRET}@a:5672/", "amqp://user:password@host:5672/vhost"),
        ("a:5672", "amqp://user:password@host:5672/vhost"),
        (f"amqp://me:{SECRET}@a,/", "without a host"),
        (f"amqp://me:{SECRET}@,a/", "without a host"),
        (f"amqp://me:{SECRET}@a/,amqp://me:other@b/", "same user, password"),
        (f"amqp://me:{SECRET}@a/,amqps://me:{SECRET}@b/", "same user, password"),
        (f"amqp://me:{SECRET}@a/x,amqp://me:{SECRET}@b/y", "virtual host"),
        (f"amqp://me:{SECRET}@{','.join(f'n{n}' for n in range(17))}/", "16 at most"),
    ],
)
@pytest.mark.parametrize("name", ["amqp", "management"])
def test_a_wrong_address_is_refused_with_advice_and_without_showing_it(
    monkeypatch: pytest.MonkeyPatch, name: str, invalid_url: str, advice: str
) -> None:
    if name == "management":
        invalid_url = invalid_url.replace("http:", "ftp:").replace("amqp", "http")
        advice = advice.replace("amqp", "http").replace("5672/vhost", "15672")
    monkeypatch.setenv(f"JOBS_{name.upper()}_URL", invalid_url)
    with pytest.raises(ValidationError) as refused:
        Settings()
    assert advice in str(refused.value)
    assert f"{name}_url" in str(refused.value)
    assert SECRET not in str(refused.value)


def test_an_empty_address_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_AMQP_URL", "")
    assert Settings().amqp_url is None


@pytest.mark.parametrize(
    ("url", "location"),
    [
        (f"postgresql+asyncpg://me:{SECRET}@a:5432,b/jobs", "postgresql://a:5432,b/jobs"),
        (f"postgresql+asyncpg://me:{SECRET}@a/jobs", "postgresql://a/jobs"),
    ],
)
async def test_a_ledger_may_have_several_servers(url: str, location: str) -> None:
    database = await connect(url)
    assert database.location == location
    await database.close()


@pytest.mark.parametrize(
    "invalid_url",
    [
        f"postgresql+asyncpg://me:{SECRET}@a,/jobs",
        f"postgresql+asyncpg://me:{SECRET}@a,b:x/jobs",
        f"postgresql+asyncpg://me:{SECRET}@a:x/jobs",
        f"postgresql+asyncpg://me:{SECRET}@a/jobs,postgresql+asyncpg://me:{SECRET}@b/others",
    ],
)
async def test_a_wrong_address_of_the_ledger_is_refused_without_showing_it(
    invalid_url: str,
) -> None:
    with pytest.raises(LedgerMisconfigured) as refused:
        await connect(invalid_url)
    assert SECRET not in "".join(traceback.format_exception(refused.value))

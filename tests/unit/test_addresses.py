"""Addresses of a broker with several nodes, and what is said about wrong ones."""

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
THREE = (
    f"amqp://me:{SECRET}@a:5672/jobs?heartbeat=5",
    f"amqp://me:{SECRET}@b/jobs?heartbeat=5",
    f"amqp://me:{SECRET}@[::1]:5673/jobs?heartbeat=5",
)


@pytest.mark.parametrize(
    "written",
    [
        f"amqp://me:{SECRET}@a:5672,b,[::1]:5673/jobs?heartbeat=5",
        f"amqp://me:{SECRET}@a:5672, b, [::1]:5673, b/jobs?heartbeat=5",
        ",".join(THREE),
        " , ".join(THREE),
        f"amqp://me:{SECRET}@a:5672,b/jobs?heartbeat=5,{THREE[2]}",
    ],
)
def test_several_hosts_and_several_addresses_are_the_same(written: str) -> None:
    assert nodes_of(written) == THREE
    assert display_address(written) == "a:5672,b:5672,::1:5673/jobs"
    assert without_login(written) == "amqp://a:5672,b,[::1]:5673"
    assert vhost_of(written) == "jobs"
    assert [vhost_of(each) for each in nodes_of(with_vhost(written, "x/y"))] == ["x/y"] * 3
    assert nodes_of(with_login(written, "you:1"))[1] == "amqp://you:1@b/jobs?heartbeat=5"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("amqp://me@a", "a:5672"),
        ("amqp://me@a/", "a:5672"),
        ("amqps://me@a,b/%2F", "a:5671,b:5671"),
        ("amqp://me@a/%2f", "a:5672"),
        ("amqp://me@a/x%2Fy", "a:5672/x%2Fy"),
    ],
)
def test_the_virtual_host_is_shown_unless_it_is_the_default(written: str, shown: str) -> None:
    assert display_address(written) == shown


def test_what_is_asked_for_management_follows_from_the_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JOBS_AMQP_URL", ",".join(THREE))
    derived = nodes_of(Settings().require_management_url())
    assert derived == tuple(f"http://me:{SECRET}@{host}:15672" for host in ("a", "b", "[::1]"))
    monkeypatch.setenv("JOBS_MANAGEMENT_URL", "https://a:1,b:2/")
    given = nodes_of(Settings().require_management_url())
    assert given == (f"https://me:{SECRET}@a:1", f"https://me:{SECRET}@b:2")


@pytest.mark.parametrize(
    ("wrong", "advice"),
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
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: str, advice: str
) -> None:
    if name == "management":
        wrong = wrong.replace("http:", "ftp:").replace("amqp", "http")
        advice = advice.replace("amqp", "http").replace("5672/vhost", "15672")
    monkeypatch.setenv(f"JOBS_{name.upper()}_URL", wrong)
    with pytest.raises(ValidationError) as refused:
        Settings()
    assert advice in str(refused.value)
    assert f"{name}_url" in str(refused.value)
    assert SECRET not in str(refused.value)


def test_an_address_of_nothing_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_AMQP_URL", "")
    assert Settings().amqp_url is None


@pytest.mark.parametrize(
    ("written", "where"),
    [
        (f"postgresql+asyncpg://me:{SECRET}@a:5432,b/jobs", "postgresql://a:5432,b/jobs"),
        (f"postgresql+asyncpg://me:{SECRET}@a/jobs", "postgresql://a/jobs"),
    ],
)
async def test_a_ledger_may_have_several_servers(written: str, where: str) -> None:
    database = await connect(written)
    assert database.location == where
    await database.close()


@pytest.mark.parametrize(
    "wrong",
    [
        f"postgresql+asyncpg://me:{SECRET}@a,/jobs",
        f"postgresql+asyncpg://me:{SECRET}@a,b:x/jobs",
        f"postgresql+asyncpg://me:{SECRET}@a:x/jobs",
        f"postgresql+asyncpg://me:{SECRET}@a/jobs,postgresql+asyncpg://me:{SECRET}@b/others",
    ],
)
async def test_a_wrong_address_of_the_ledger_is_refused_without_showing_it(wrong: str) -> None:
    with pytest.raises(LedgerMisconfigured) as refused:
        await connect(wrong)
    assert SECRET not in "".join(traceback.format_exception(refused.value))

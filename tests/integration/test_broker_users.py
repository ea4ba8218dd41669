"""`jobctl topology users`: each user can do its work, and nothing else."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ProbableAuthenticationError
from aiormq.exceptions import ChannelAccessRefused
from pydantic import SecretStr
from typer.testing import CliRunner

from switchyard.broker.lanes import DEAD_QUEUE
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.topology import differences
from switchyard.broker.topology.build import build
from switchyard.broker.topology.management import ManagementClient
from switchyard.broker.topology.mark import Mark, read_mark, write_mark
from switchyard.broker.topology.users import ROLES
from switchyard.broker.wire.connection import connected, underlying
from switchyard.broker.wire.depths import ask_queues
from switchyard.cli.system.topology import app
from switchyard.services.identity.broker import mark_broker, read_broker
from switchyard.services.monitoring.check import Finding
from switchyard.services.monitoring.doctor import diagnose
from switchyard.services.publishing.preparing import JobRequest
from switchyard.services.publishing.publisher import JobPublisher
from switchyard.services.records.states import State
from switchyard.services.runtime.control import send_cancel
from tests.support.brokers import TestBroker
from tests.support.system import System, open_system

Users = dict[str, str]
Attempt = Callable[[AbstractChannel], Awaitable[object]]


@pytest.fixture
def users(broker: TestBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Users]:
    """The address of each role's user, made by the command."""
    monkeypatch.setenv("JOBS_AMQP_URL", broker.amqp_url)
    monkeypatch.setenv("JOBS_MANAGEMENT_URL", broker.management_url)
    prefix = broker.vhost
    made = json.loads(CliRunner().invoke(app, ["users", "--prefix", prefix, "--json"]).stdout)
    yield {each["name"].removeprefix(f"{prefix}-"): each["url"] for each in made}
    names = {"users": [each["name"] for each in made]}
    asyncio.run(broker.management.post("/users/bulk-delete", names))


@pytest.fixture
async def system(broker: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    async with open_system(broker, sqlite_url) as opened:
        await mark_broker(opened.settings, opened.ledger)
        yield opened


@asynccontextmanager
async def channel_of(url: str) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(url) as connection:
        yield await connection.channel()


async def test_jobs_are_published_worked_retried_and_buried_with_these_rights(
    system: System, users: Users
) -> None:
    await system.start_worker(amqp_url=SecretStr(users["worker"]))
    settings = system.settings.model_copy(update={"amqp_url": SecretStr(users["publisher"])})
    async with Publisher(settings) as publisher:
        jobs = JobPublisher(system.registry, system.ledger, publisher)
        scripted = {"steps": ["raise", "done"]}
        tried = (await jobs.publish(JobRequest("hot.scripted", scripted))).job_id
        dies = (await jobs.publish(JobRequest("hot.scripted", {"steps": ["permanent"]}))).job_id
        gated = (await jobs.publish(JobRequest("backfill.gated", {}))).job_id
        assert (await system.wait_for_state(tried, State.SUCCEEDED)).attempts == 1  # and one more
        await system.wait_for_state(dies, State.DEAD)
        await system.wait_for_letter(dies)
        await system.wait_for_state(gated, State.RUNNING)
        await send_cancel(publisher, gated)
        await system.wait_for_state(gated, State.CANCELLED)


@pytest.mark.parametrize("role", [each.name for each in ROLES])
async def test_each_knows_whose_broker_it_is(system: System, users: Users, role: str) -> None:
    settings = system.settings.model_copy(update={"amqp_url": SecretStr(users[role])})
    mark = await read_broker(settings)
    assert mark is not None
    assert mark.id == (await system.ledger.system()).id


async def test_a_worker_sees_the_depths_of_lanes(system: System, users: Users) -> None:
    (found,) = (await ask_queues(users["worker"], ["hot.llm"])).values()
    assert found is not None


async def test_the_admin_marks_the_broker(system: System, users: Users) -> None:
    mark = Mark("0123456789ab", 1_700_000_000, "me@here")
    async with connected(users["admin"], "test") as connection:
        await write_mark(underlying(connection), mark)
        assert await read_mark(underlying(connection)) == mark


async def test_the_admin_can_compare_the_topology_and_set_a_policy(
    system: System, users: Users, broker: TestBroker
) -> None:
    user = users["admin"].partition("//")[2].partition("@")[0]
    url = f"http://{user}@{broker.management_url.rpartition('@')[2]}"
    topology = build(
        broker.profile,
        system.registry.routes,
        lanes=system.lanes,
        retry_delays=system.settings.retry_delays,
    )
    async with ManagementClient(url, broker.vhost) as client:
        assert differences.diff(topology, await client.fetch()) == []
        await client.put_policy(topology.policies[0])


@pytest.mark.parametrize("role", ["admin", "publisher"])
async def test_the_doctor_says_what_its_user_may_not_see(
    system: System, users: Users, broker: TestBroker, role: str
) -> None:
    user = users[role].partition("//")[2].partition("@")[0]
    url = f"http://{user}@{broker.management_url.rpartition('@')[2]}"
    settings = system.settings.model_copy(
        update={"amqp_url": SecretStr(users[role]), "management_url": SecretStr(url)}
    )
    checks = [each async for each in diagnose(settings)]
    unseen = [each for each in checks if each.finding is Finding.MANAGEMENT_FORBIDS]
    expected = []
    if role == "publisher":
        expected.append(("alarms and watermarks", "monitoring"))
    for check, (what, tag) in zip(unseen, expected, strict=True):
        assert check.status == "warning"
        assert f"can't see {what}" in check.detail
        assert f"the tag `{tag}`" in check.detail
        assert "JOBS_MANAGEMENT_URL" in check.remedy
    seen = {each.name for each in checks if each.finding is None}
    assert {"management", "broker clock"} <= seen
    assert ("alarms" in seen) == (role == "admin")
    (features,) = (each for each in checks if each.name == "features")
    assert features.status == "ok"
    # 3.10 shows them to administrators alone: that is no fault, and it is said.
    unlooked = broker.version.startswith("3.10")
    assert ("rabbitmqctl" in features.detail) == unlooked


async def test_a_publisher_sees_depths_and_the_limits_in_force(
    system: System, users: Users, broker: TestBroker
) -> None:
    user = users["publisher"].partition("//")[2].partition("@")[0]
    url = f"http://{user}@{broker.management_url.rpartition('@')[2]}"
    depths = await ask_queues(users["publisher"], ["hot.llm", "backfill.llm", DEAD_QUEUE])
    assert [each.ready for each in depths.values() if each] == [0, 0, 0]
    async with ManagementClient(url, broker.vhost) as client:
        assert "hot.llm" in {each.declared.name for each in await client.queues()}
        assert await client.policies()
        # What KEDA asks for with the chart's trigger (charts/switchyard/templates/workers.yaml).
        options = {"page": "1", "use_regex": "true", "pagination": "false", "page_size": "100"}
        found = await client.get(
            f"/queues/{broker.vhost}", params={**options, "name": "^(hot|backfill)[.]llm$"}
        )
    assert {each["name"] for each in found["items"]} == {"hot.llm", "backfill.llm"}


async def publish_to(channel: AbstractChannel, exchange: str, key: str) -> None:
    found = await channel.get_exchange(exchange, ensure=False)
    await found.publish(aio_pika.Message(b"{}"), key)


async def get_from(channel: AbstractChannel, queue: str) -> None:
    await (await channel.get_queue(queue, ensure=False)).get(fail=False)


REFUSED: dict[str, tuple[str, Attempt]] = {
    "a publisher takes a job": ("publisher", lambda each: get_from(each, "hot.llm")),
    "a publisher reads dead letters": ("publisher", lambda each: get_from(each, "jobs.dead")),
    "a publisher writes a dead letter": (
        "publisher",
        lambda each: publish_to(each, "jobs.dlx", "hot.noop"),
    ),
    "a publisher deletes a queue": ("publisher", lambda each: each.queue_delete("hot.llm")),
    "a publisher puts a job past its lane": (
        "publisher",
        lambda each: each.default_exchange.publish(aio_pika.Message(b"{}"), "hot.llm"),
    ),
    "a worker reads dead letters": ("worker", lambda each: get_from(each, "jobs.dead")),
    "a worker deletes a queue": ("worker", lambda each: each.queue_delete("hot.llm")),
    "a worker declares an exchange": ("worker", lambda each: each.declare_exchange("jobs.more")),
    "a worker calls jobs off": ("worker", lambda each: publish_to(each, "jobs.control", "")),
    "an admin declares what is not ours": ("admin", lambda each: each.declare_queue("accounts")),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_it_may_not(system: System, users: Users, what: str) -> None:
    role, attempt = REFUSED[what]
    async with channel_of(users[role]) as channel:
        with pytest.raises(ChannelAccessRefused):
            await attempt(channel)


def test_again_they_keep_their_passwords_and_with_renew_they_get_others(
    users: Users, broker: TestBroker
) -> None:
    def made(*options: str) -> list[str | None]:
        done = CliRunner().invoke(app, ["users", "--prefix", broker.vhost, "--json", *options])
        return [each["url"] for each in json.loads(done.stdout)]

    async def connect() -> None:
        async with channel_of(users["worker"]):
            pass

    assert made() == [None, None, None]
    asyncio.run(connect())
    assert users["worker"] not in made("--renew")
    with pytest.raises(ProbableAuthenticationError):
        asyncio.run(connect())


def test_given_passwords_are_theirs_and_are_not_printed_and_the_admin_makes_the_topology(
    users: Users, broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for role in ("publisher", "worker", "admin"):
        monkeypatch.setenv(f"JOBS_{role.upper()}_PASSWORD", f"given-{role}")
    for _ in range(2):  # as a one-shot service does at each start
        done = CliRunner().invoke(app, ["users", "--prefix", broker.vhost])
        assert done.exit_code == 0
        assert "given-" not in done.output
        assert "JOBS_ADMIN_PASSWORD" in done.output

    def of(role: str, url: str) -> str:
        scheme, _, rest = url.partition("://")
        return f"{scheme}://{broker.vhost}-{role}:given-{role}@{rest.rpartition('@')[2]}"

    async def connect() -> None:
        for role in users:
            async with channel_of(of(role, broker.amqp_url)):
                pass

    asyncio.run(connect())
    monkeypatch.setenv("JOBS_AMQP_URL", of("admin", broker.amqp_url))
    monkeypatch.setenv("JOBS_MANAGEMENT_URL", of("admin", broker.management_url))
    made = CliRunner().invoke(app, ["apply", "--profile", broker.profile])
    assert made.exit_code == 0, made.output
    assert "made queue hot.llm" in made.output

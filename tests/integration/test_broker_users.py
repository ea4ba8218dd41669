"""`jobctl topology users`: each user can do its work, and nothing else."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ProbableAuthenticationError
from aiormq.channel import Channel as RawChannel
from aiormq.exceptions import ChannelAccessRefused
from pamqp.commands import Basic
from pydantic import SecretStr
from typer.testing import CliRunner

from switchyard.broker.errors import Unroutable
from switchyard.broker.lanes import DEAD_QUEUE, retry_name
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.management.model import Binding
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.topology import differences
from switchyard.broker.topology.build import build
from switchyard.broker.topology.queue_shovel import running_shovel
from switchyard.broker.topology.reconcile import apply
from switchyard.broker.topology.system_mark import SystemMark, read_mark, write_mark
from switchyard.broker.topology.users import ROLES
from switchyard.broker.wire.channel import open_channel
from switchyard.broker.wire.connection import connected, underlying
from switchyard.broker.wire.depths import query_queues
from switchyard.broker.wire.envelope import Envelope
from switchyard.cli.system.topology import app
from switchyard.services.engine.identity.broker import mark_broker, read_broker
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.engine.monitoring.doctor import diagnose
from switchyard.services.engine.monitoring.lane_pressure import LanePressure
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.states import State
from switchyard.services.engine.runtime.worker_commands import send_cancel
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.system import System, open_system

Users = dict[str, str]
"""The URL of each role's user."""
Attempt = partial[Any]
"""A call on a channel."""


@pytest.fixture
def users(broker: TestBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Users]:
    """The URL of each role's user, made by the command."""
    monkeypatch.setenv("JOBS_AMQP_URL", broker.amqp_url)
    monkeypatch.setenv("JOBS_MANAGEMENT_URL", broker.management_url)
    prefix = broker.vhost
    created = json.loads(CliRunner().invoke(app, ["users", "--prefix", prefix, "--json"]).stdout)
    yield {user["name"].removeprefix(f"{prefix}-"): user["url"] for user in created}
    names = {"users": [user["name"] for user in created]}
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


async def test_publisher_and_worker_can_publish_run_retry_and_bury_jobs(
    system: System, users: Users
) -> None:
    await system.start_worker(amqp_url=SecretStr(users["worker"]))
    settings = system.settings.model_copy(update={"amqp_url": SecretStr(users["publisher"])})
    async with Publisher(settings) as publisher:
        jobs = JobPublisher(system.registry, system.ledger, publisher)
        scripted = {"steps": ["raise", "done"]}
        retried = (await jobs.publish(JobRequest("hot.scripted", scripted))).job_id
        dying = (await jobs.publish(JobRequest("hot.scripted", {"steps": ["permanent"]}))).job_id
        gated = (await jobs.publish(JobRequest("backfill.gated", {}))).job_id
        assert (await system.wait_for_state(retried, State.SUCCEEDED)).attempts == 1  # and one more
        await system.wait_for_state(dying, State.DEAD)
        await system.wait_for_letter(dying)
        await system.wait_for_state(gated, State.RUNNING)
        await send_cancel(publisher, gated)
        await system.wait_for_state(gated, State.CANCELLED)


async def test_each_role_can_read_the_mark_of_the_broker(system: System, users: Users) -> None:
    assert users.keys() == {role.name for role in ROLES}
    for url in users.values():
        mark = await read_broker(system.settings.model_copy(update={"amqp_url": SecretStr(url)}))
        assert mark is not None
        assert mark.id == (await system.ledger.system.system()).id


async def test_a_worker_sees_the_depths_of_lanes(system: System, users: Users) -> None:
    (depth,) = (await query_queues(users["worker"], ["hot.llm"])).values()
    assert depth is not None


async def test_the_admin_marks_the_broker(system: System, users: Users) -> None:
    mark = SystemMark("0123456789ab", 1_700_000_000, "me@here")
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
    checks = [check async for check in diagnose(settings)]
    unseen = [check for check in checks if check.finding is Finding.MANAGEMENT_FORBIDS]
    expected = []
    if role == "publisher":
        expected.append(("alarms and watermarks", "monitoring"))
    for check, (subject, tag) in zip(unseen, expected, strict=True):
        assert check.status == "warning"
        assert f"can't see {subject}" in check.detail
        assert f"the tag `{tag}`" in check.detail
        assert "JOBS_MANAGEMENT_URL" in check.remedy
    passed = {check.name for check in checks if check.finding is None}
    assert {"management", "broker clock"} <= passed
    assert ("alarms" in passed) == (role == "admin")
    (features,) = (check for check in checks if check.name == "features")
    assert features.status == "ok"
    # RabbitMQ 3.10 shows features to administrators alone: the detail says so.
    is_hidden = broker.version.startswith("3.10")
    assert ("rabbitmqctl" in features.detail) == is_hidden


async def test_a_publisher_sees_depths_and_the_limits_in_force(
    system: System, users: Users, broker: TestBroker
) -> None:
    user = users["publisher"].partition("//")[2].partition("@")[0]
    url = f"http://{user}@{broker.management_url.rpartition('@')[2]}"
    depths = await query_queues(users["publisher"], ["hot.llm", "backfill.llm", DEAD_QUEUE])
    assert [depth.ready for depth in depths.values() if depth] == [0, 0, 0]
    async with ManagementClient(url, broker.vhost) as client:
        assert "hot.llm" in {queue.declared.name for queue in await client.queues()}
        assert await client.policies()
        # What KEDA asks for with the chart's trigger (charts/switchyard/templates/workers.yaml).
        options = {"page": "1", "use_regex": "true", "pagination": "false", "page_size": "100"}
        page = await client.get(
            f"/queues/{broker.vhost}", params={**options, "name": "^(hot|backfill)[.]llm$"}
        )
    assert {queue["name"] for queue in page["items"]} == {"hot.llm", "backfill.llm"}


async def test_a_publisher_hears_events_and_knows_which_queues_there_are(
    system: System, users: Users, broker: TestBroker
) -> None:
    user = users["publisher"].partition("//")[2].partition("@")[0]
    url = f"http://{user}@{broker.management_url.rpartition('@')[2]}"
    settings = system.settings.model_copy(
        update={"amqp_url": SecretStr(users["publisher"]), "management_url": SecretStr(url)}
    )
    await system.publish("hot.noop")
    await system.wait_until_ready("hot.llm", 1)
    async with Publisher(settings) as publisher, channel_of(users["publisher"]) as channel:
        jobs = JobPublisher(system.registry, system.ledger, publisher)
        await jobs.publish(JobRequest("hot.noop", {}))
        async with channel_of(broker.amqp_url) as root:
            await root.queue_delete("backfill.llm")
        with pytest.raises(Unroutable):
            await jobs.publish(JobRequest("backfill.noop", {}))
        events = await channel.declare_queue(exclusive=True)
        await events.bind("jobs.events", "#")
        await publisher.send("jobs.events", "started.hot.noop", Envelope(b"{}", "event-1"))
        assert (await events.get(timeout=10)).body == b"{}"
    async with LanePressure(settings, system.registry) as pressure:
        await pressure.probe()

        async def are_both_counted() -> bool:  # figures of the management API are some seconds old
            depth = (await pressure.snapshot()).queue("hot.llm")
            return depth is not None and depth.ready == 2

        await eventually(are_both_counted, 20)
        depth = (await pressure.snapshot()).queue("hot.llm")
        assert depth is not None
        assert depth.limit == 1000


async def bind_own_queue(channel: RawChannel, exchange: str) -> object:
    declared = await channel.queue_declare(exclusive=True)
    return await channel.queue_bind(declared.queue or "", exchange, routing_key="#")


async def bind(channel: RawChannel, queue: str, exchange: str) -> object:
    return await channel.queue_bind(queue, exchange, routing_key="#")


async def ignore_message(message: object) -> None:
    """Never called: no user may consume."""


async def declare_own_queue(channel: RawChannel, **arguments: str) -> object:
    return await channel.queue_declare(
        exclusive=True, arguments={f"x-{k.replace('_', '-')}": v for k, v in arguments.items()}
    )


async def replace_mark(channel: RawChannel, alternate: str) -> object:
    """Delete the mark's exchange and declare it anew: while it is there, it can't be changed."""
    await channel.exchange_delete("jobs.system")
    return await channel.exchange_declare(
        "jobs.system",
        exchange_type="fanout",
        durable=True,
        arguments={"alternate-exchange": alternate},
    )


QUEUES = ("hot.llm", "backfill.ingest", "jobs.dead", "jobs.dead.log")
FORBIDDEN_TO_BOTH: dict[str, Attempt] = {
    **{
        f"bind {q} to {x}": partial(bind, queue=q, exchange=x)
        for q in QUEUES
        for x in ("jobs.events", "jobs.control", "jobs.topic", "jobs.system")
    },
    **{f"delete {q}": partial(RawChannel.queue_delete, queue=q) for q in QUEUES},
    **{
        f"declare {q}": partial(RawChannel.queue_declare, queue=q)
        for q in ("hot.more", "jobs.more", "accounts")
    },
    "unbind a lane": partial(
        RawChannel.queue_unbind, queue="hot.llm", exchange="jobs.topic", routing_key="hot.noop"
    ),
    "unbind the dead letters": partial(
        RawChannel.queue_unbind, queue="jobs.dead", exchange="jobs.dlx"
    ),
    **{
        f"delete {x}": partial(RawChannel.exchange_delete, exchange=x)
        for x in ("jobs.topic", "jobs.dlx", "jobs.events", "jobs.control")
    },
    **{
        f"declare {x}": partial(RawChannel.exchange_declare, exchange=x)
        for x in ("jobs.more", "accounts")
    },
    **{
        f"publish to {key} past its exchange": partial(
            RawChannel.basic_publish, body=b"{}", exchange="", routing_key=key
        )
        for key in QUEUES
    },
    **{f"read {q}": partial(RawChannel.basic_get, queue=q) for q in ("jobs.dead", "jobs.dead.log")},
    **{
        f"consume {q}": partial(RawChannel.basic_consume, queue=q, consumer_callback=ignore_message)
        for q in ("jobs.dead", "jobs.dead.log")
    },
    **{
        f"purge {q}": partial(RawChannel.queue_purge, queue=q)
        for q in ("jobs.dead", "jobs.dead.log")
    },
    **{f"hear {x}": partial(bind_own_queue, exchange=x) for x in ("jobs.topic", "jobs.dlx")},
    "send its own dead letters to a lane": partial(
        declare_own_queue, dead_letter_exchange="", dead_letter_routing_key="hot.llm"
    ),
    "connect the dead letters with events": partial(
        RawChannel.exchange_bind, destination="jobs.events", source="jobs.dlx"
    ),
    "connect events with another's exchange": partial(
        RawChannel.exchange_bind, destination="amq.topic", source="jobs.events"
    ),
    "lead the mark's messages into a lane": partial(replace_mark, alternate="amq.topic"),
}
"""Calls that neither a publisher nor a worker may make."""
FORBIDDEN: dict[str, dict[str, Attempt]] = {
    "publisher": FORBIDDEN_TO_BOTH
    | {
        "take a job": partial(RawChannel.basic_get, queue="hot.llm"),
        "consume a lane": partial(
            RawChannel.basic_consume, queue="hot.llm", consumer_callback=ignore_message
        ),
        "purge a lane": partial(RawChannel.queue_purge, queue="hot.llm"),
        "write a dead letter": partial(
            RawChannel.basic_publish, body=b"{}", exchange="jobs.dlx", routing_key="hot.noop"
        ),
        "write a retry": partial(
            RawChannel.basic_publish, body=b"{}", exchange="{retry}", routing_key="hot.llm"
        ),
        "bind a retry queue": partial(bind, queue="{retry}", exchange="jobs.events"),
        "hear commands": partial(bind_own_queue, exchange="jobs.control"),
        "connect dead letters": partial(
            RawChannel.exchange_bind, destination="jobs.dlx", source="jobs.events"
        ),
        "connect retries": partial(
            RawChannel.exchange_bind, destination="{retry}", source="jobs.events"
        ),
        "bury its own messages": partial(declare_own_queue, dead_letter_exchange="jobs.dlx"),
        "have the mark's messages buried": partial(replace_mark, alternate="jobs.dlx"),
    },
    "worker": FORBIDDEN_TO_BOTH
    | {
        "call a job off": partial(
            RawChannel.basic_publish, body=b"{}", exchange="jobs.control", routing_key="cancel"
        ),
        "call jobs off by events": partial(
            RawChannel.exchange_bind, destination="jobs.control", source="jobs.events"
        ),
        "delete a retry queue": partial(RawChannel.queue_delete, queue="{retry}"),
        "read a retry queue": partial(RawChannel.basic_get, queue="{retry}"),
    },
    "admin": {
        "declare what is not ours": partial(RawChannel.queue_declare, queue="accounts"),
        "delete what is not ours": partial(RawChannel.queue_delete, queue="accounts"),
        "bind what is not ours": partial(bind, queue="accounts", exchange="jobs.events"),
        "read what is not ours": partial(RawChannel.basic_get, queue="accounts"),
        "publish to what is not ours": partial(
            RawChannel.basic_publish, body=b"{}", exchange="amq.topic", routing_key="a"
        ),
    },
}


@pytest.mark.parametrize("role", list(FORBIDDEN))
async def test_a_role_may_do_nothing_else(
    system: System, users: Users, role: str, broker: TestBroker
) -> None:
    """Each attempt gets a channel of its own, as a refusal closes it."""
    retry = retry_name(system.settings.retry_delays[0])
    allowed = []
    async with await aio_pika.connect(users[role]) as connection:
        for title, attempt in FORBIDDEN[role].items():
            channel = await underlying(connection).channel()
            arguments = {
                name: value.replace("{retry}", retry) if isinstance(value, str) else value
                for name, value in attempt.keywords.items()
            }
            try:
                async with asyncio.timeout(10):
                    await attempt.func(channel, **arguments)
                    await channel.basic_qos(prefetch_count=1)  # answered after the attempt
            except ChannelAccessRefused:
                continue
            allowed.append(title)
    assert not allowed


async def test_applying_the_topology_removes_bindings_of_events_to_queues_of_jobs(
    system: System, broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher of an earlier version could have made such bindings."""
    async with channel_of(broker.amqp_url) as channel:
        raw = await channel.get_underlay_channel()
        for queue in ("jobs.dead", "hot.llm"):
            await raw.queue_bind(queue, "jobs.events", routing_key="#")
        await raw.exchange_bind("jobs.topic", "jobs.events", routing_key="#")
    topology = build(
        broker.profile,
        system.registry.routes,
        lanes=system.lanes,
        retry_delays=system.settings.retry_delays,
    )
    async with ManagementClient(broker.management_url, broker.vhost) as client:
        deviations = differences.diff(topology, await client.fetch())
        assert {deviation.problem for deviation in deviations} == {differences.Deviation.STALE}
        destinations = {
            deviation.subject.destination
            for deviation in deviations
            if isinstance(deviation.subject, Binding)
        }
        assert destinations == {"jobs.dead", "hot.llm", "jobs.topic"}
        await apply(client, topology)
        assert differences.diff(topology, await client.fetch()) == []


async def test_a_message_that_names_its_user_is_moved_by_another(
    system: System, users: Users, broker: TestBroker
) -> None:
    """As `topology migrate` does. The broker accepts a user's name from that user alone."""
    name = users["publisher"].partition("//")[2].partition(":")[0]
    body = JobMessage(job_id="named", job_type="noop", payload={}).encode()
    async with channel_of(users["publisher"]) as channel:
        raw = await channel.get_underlay_channel()
        for app_id in ("an app", None):
            properties = Basic.Properties(
                message_id="named", headers={"a": 1}, user_id=name, app_id=app_id
            )
            await raw.basic_publish(
                body, exchange="jobs.topic", routing_key="hot.noop", properties=properties
            )
    await system.wait_until_ready("hot.llm", 2)
    async with connected(broker.amqp_url, "test") as connection:
        root = await open_channel(underlying(connection), confirms=True)
        await root.queue_declare("moved", durable=True)
        await root.exchange_declare("moved", exchange_type="fanout")
        await root.queue_bind("moved", "moved")
        async with running_shovel(underlying(connection), "hot.llm", "moved") as shovel:
            await shovel.wait_until_empty()
        assert shovel.moved == 2
        moved = [await root.basic_get("moved", no_ack=True) for _ in range(2)]
        moved_properties = [message.header.properties for message in moved]
        assert {properties.app_id for properties in moved_properties} == {"an app", None}
        for properties in moved_properties:
            assert (properties.message_id, properties.headers, properties.user_id) == (
                "named",
                {"a": 1},
                None,
            )


def test_users_keep_their_passwords_unless_they_are_renewed(
    users: Users, broker: TestBroker
) -> None:
    def list_created_urls(*options: str) -> list[str | None]:
        result = CliRunner().invoke(app, ["users", "--prefix", broker.vhost, "--json", *options])
        return [user["url"] for user in json.loads(result.stdout)]

    async def connect() -> None:
        async with channel_of(users["worker"]):
            pass

    assert list_created_urls() == [None, None, None]
    asyncio.run(connect())
    assert users["worker"] not in list_created_urls("--renew")
    with pytest.raises(ProbableAuthenticationError):
        asyncio.run(connect())


def test_given_passwords_are_used_and_not_printed_and_the_admin_can_apply_the_topology(
    users: Users, broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for role in ("publisher", "worker", "admin"):
        monkeypatch.setenv(f"JOBS_{role.upper()}_PASSWORD", f"given-{role}")
    for _ in range(2):  # as a one-shot service does at each start
        result = CliRunner().invoke(app, ["users", "--prefix", broker.vhost])
        assert result.exit_code == 0
        assert "given-" not in result.output
        assert "JOBS_ADMIN_PASSWORD" in result.output

    def url_of(role: str, url: str) -> str:
        scheme, _, login_and_server = url.partition("://")
        return (
            f"{scheme}://{broker.vhost}-{role}:given-{role}@{login_and_server.rpartition('@')[2]}"
        )

    async def connect() -> None:
        for role in users:
            async with channel_of(url_of(role, broker.amqp_url)):
                pass

    asyncio.run(connect())
    monkeypatch.setenv("JOBS_AMQP_URL", url_of("admin", broker.amqp_url))
    monkeypatch.setenv("JOBS_MANAGEMENT_URL", url_of("admin", broker.management_url))
    result = CliRunner().invoke(app, ["apply", "--profile", broker.profile])
    assert result.exit_code == 0, result.output
    assert "made queue hot.llm" in result.output

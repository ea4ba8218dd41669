"""Comparing with a real broker, and changing it: never a message lost, nothing done twice."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import aio_pika
import pytest

from switchyard.broker.addresses import with_vhost
from switchyard.broker.errors import ManagementError
from switchyard.broker.lanes import Route
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.management.model import Binding, Topology
from switchyard.broker.topology.build import build
from switchyard.broker.topology.definitions import render
from switchyard.broker.topology.differences import diff
from switchyard.broker.topology.reconcile import ApplyReport, apply
from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.engine.jobs.registry import Registry
from tests.support.brokers import TestBroker
from tests.support.management import Management

DEFINITIONS = Path(__file__).parents[2] / "definitions.json"
ROUTES = (
    Route("hot", "ingest_document", "ingest"),
    Route("hot", "summarize_content", "llm"),
    Route("backfill", "summarize_content", "llm"),
    Route("hot", "embed_content", "embed"),
)
UNROUTED_QUEUE = "vlm_ocr.ocr"
"""A queue without a route: without it, no binding is missing."""
ROUTING_KEY = "hot.summarize_content"


Break = Callable[["LiveBroker"], Awaitable[None]]


@dataclass(frozen=True)
class LiveBroker:
    """A broker with the topology applied."""

    broker: TestBroker
    topology: Topology
    client: ManagementClient

    @property
    def management(self) -> Management:
        return self.broker.management

    async def differences(self) -> set[tuple[str, str]]:
        differences = diff(self.topology, await self.client.fetch())
        return {(difference.problem.value, difference.name) for difference in differences}

    async def apply(self) -> ApplyReport:
        return await apply(self.client, self.topology)

    async def redeclare_queue(self, name: str, **arguments: object) -> None:
        await self.management.delete(f"/queues/{{vhost}}/{name}")
        await self.put("queues", name, arguments=arguments)

    async def redeclare_exchange(self, name: str, kind: str, **arguments: object) -> None:
        await self.management.delete(f"/exchanges/{{vhost}}/{name}")
        await self.put("exchanges", name, type=kind, arguments=arguments)

    async def put(self, kind: str, name: str, **body: object) -> None:
        flags = {"durable": True, "auto_delete": False} if kind != "policies" else {}
        await self.management.put(f"/{kind}/{{vhost}}/{name}", flags | body)

    async def put_policy(self, name: str, pattern: str, definition: Any, priority: int) -> None:
        body = {"pattern": pattern, "definition": definition, "priority": priority}
        await self.put("policies", name, **body, **{"apply-to": "queues"})

    async def bind(self, queue: str, key: str) -> None:
        path = f"/bindings/{{vhost}}/e/jobs.topic/q/{queue}"
        await self.management.post(path, {"routing_key": key, "arguments": {}})


@pytest.fixture
async def live(broker: TestBroker) -> AsyncIterator[LiveBroker]:
    topology = build(broker.profile, ROUTES)
    async with ManagementClient(broker.management_url, broker.vhost) as client:
        await apply(client, topology)
        yield LiveBroker(broker, topology, client)


async def delete_exchange(live: LiveBroker) -> None:
    await live.management.delete("/exchanges/{vhost}/jobs.events")


async def delete_queue(live: LiveBroker) -> None:
    await live.management.delete(f"/queues/{{vhost}}/{UNROUTED_QUEUE}")


async def delete_binding(live: LiveBroker) -> None:
    await live.management.delete(f"/bindings/{{vhost}}/e/jobs.topic/q/hot.llm/{ROUTING_KEY}")


async def delete_policy(live: LiveBroker) -> None:
    await live.management.delete("/policies/{vhost}/jobs.lane.hot")


async def shorten_lane(live: LiveBroker) -> None:
    await live.put_policy("jobs.lane.hot", r"^hot\.", {"max-length": 1}, 10)


async def widen_policy(live: LiveBroker) -> None:
    dead = next(p for p in live.topology.policies if p.name == "jobs.dead")
    await live.put_policy("jobs.dead", r"^jobs\.dead", dict(dead.definition), -1)


async def change_exchange_type(live: LiveBroker) -> None:
    await live.redeclare_exchange("jobs.control", "topic")


async def change_exchange_arguments(live: LiveBroker) -> None:
    await live.redeclare_exchange("jobs.events", "topic", **{"alternate-exchange": "jobs.dlx"})


async def change_queue_type(live: LiveBroker) -> None:
    kind = "quorum" if live.broker.profile == "classic" else "classic"
    await live.redeclare_queue(UNROUTED_QUEUE, **{"x-queue-type": kind})


async def change_queue_arguments(live: LiveBroker) -> None:
    queue = next(q for q in live.topology.queues if q.name == UNROUTED_QUEUE)
    await live.redeclare_queue(UNROUTED_QUEUE, **queue.declare_arguments, **{"x-max-length": 5})


async def add_exchange(live: LiveBroker) -> None:
    await live.put("exchanges", "jobs.old", type="topic", arguments={})


async def add_queue(live: LiveBroker) -> None:
    await live.put("queues", "hot.old", arguments={})


async def add_binding(live: LiveBroker) -> None:
    await live.bind("hot.llm", "hot.removed_job")


async def add_policy(live: LiveBroker) -> None:
    await live.put_policy("jobs.old", "^nothing$", {"max-length": 1}, 0)


async def add_stale_binding(live: LiveBroker) -> None:
    await live.bind("hot.embed", ROUTING_KEY)


async def override_policy(live: LiveBroker) -> None:
    await live.put_policy("ops", rf"^{UNROUTED_QUEUE}$", {"max-length": 5}, 99)


async def override_by_operator_policy(live: LiveBroker) -> None:
    body = {
        "pattern": rf"^{UNROUTED_QUEUE}$",
        "definition": {"message-ttl": 1000},
        "apply-to": "queues",
    }
    await live.management.put("/operator-policies/{vhost}/caps", body)


async def add_foreign_objects(live: LiveBroker) -> None:
    await live.put("exchanges", "research.news", type="topic", arguments={})
    await live.put("queues", "audit", arguments={})
    await live.management.post(
        "/bindings/{vhost}/e/jobs.events/q/audit", {"routing_key": "#", "arguments": {}}
    )


HEALED: list[tuple[Break, tuple[str, str]]] = [
    (delete_exchange, ("missing", "jobs.events")),
    (delete_queue, ("missing", UNROUTED_QUEUE)),
    (delete_binding, ("missing", f"jobs.topic → hot.llm ({ROUTING_KEY})")),
    (delete_policy, ("missing", "jobs.lane.hot")),
    (shorten_lane, ("policy", "jobs.lane.hot")),
    (widen_policy, ("policy", "jobs.dead")),
    (add_stale_binding, ("stale", f"jobs.topic → hot.embed ({ROUTING_KEY})")),
]
REPORTED: list[dict[Break, tuple[str, str]]] = [
    {
        change_exchange_type: ("type", "jobs.control"),
        change_exchange_arguments: ("arguments", "jobs.events"),
        add_exchange: ("extra", "jobs.old"),
        add_queue: ("extra", "hot.old"),
        add_binding: ("extra", "jobs.topic → hot.llm (hot.removed_job)"),
        override_policy: ("overridden", UNROUTED_QUEUE),
    },
    {
        change_queue_arguments: ("arguments", UNROUTED_QUEUE),
        add_policy: ("extra", "jobs.old"),
        override_by_operator_policy: ("overridden", UNROUTED_QUEUE),
    },
    {change_queue_type: ("type", UNROUTED_QUEUE)},
]
"""Groups of breaks that are made one after the other. Those that would hide an earlier one, or be
the same difference, are in different groups."""


async def test_one_thing_broken_is_one_difference_which_apply_heals(live: LiveBroker) -> None:
    for break_it, expected in HEALED:
        await break_it(live)
        assert await live.differences() == {expected}
        report = await live.apply()
        assert (report.left, len(report.done)) == ((), 1), expected
        assert await live.differences() == set(), expected


@pytest.mark.parametrize("broken", REPORTED, ids=["six", "three", "one"])
async def test_what_apply_must_not_change_is_one_difference_which_it_reports(
    live: LiveBroker, broken: dict[Break, tuple[str, str]]
) -> None:
    expected: set[tuple[str, str]] = set()
    for break_it, difference in broken.items():
        await break_it(live)
        expected.add(difference)
        assert await live.differences() == expected
    report = await live.apply()
    assert sorted(
        (difference.problem.value, difference.name) for difference in report.left
    ) == sorted(expected)
    assert report.done == ()
    assert await live.differences() == expected


async def test_objects_of_others_are_no_difference(live: LiveBroker) -> None:
    await add_foreign_objects(live)
    assert await live.differences() == set()
    assert await live.apply() == ApplyReport(done=(), left=())


async def test_applying_again_does_nothing(live: LiveBroker) -> None:
    assert await live.apply() == ApplyReport(done=(), left=())


async def test_a_blank_broker_is_made_as_declared(broker: TestBroker) -> None:
    topology = build(broker.profile, ROUTES)
    async with ManagementClient(broker.management_url, broker.vhost) as client:
        report = await apply(client, topology)
        assert report.left == ()
        assert report.done[:3] == (
            "made policy jobs.dead",
            "made policy jobs.dead.log",
            "made exchange jobs.dlx",
        )
        assert diff(topology, await client.fetch()) == []


async def test_applying_at_the_same_time_from_several_places_is_safe(broker: TestBroker) -> None:
    topology = build(broker.profile, ROUTES)

    async def apply_once() -> ApplyReport:
        async with ManagementClient(broker.management_url, broker.vhost) as client:
            return await apply(client, topology)

    reports = await asyncio.gather(*(apply_once() for _ in range(4)))
    assert all(report.left == () for report in reports)
    assert await apply_once() == ApplyReport(done=(), left=())


async def test_a_queue_with_other_arguments_is_reported_and_keeps_its_messages(
    live: LiveBroker,
) -> None:
    await change_queue_arguments(live)
    async with await aio_pika.connect(live.broker.amqp_url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        message = aio_pika.Message(b"precious", delivery_mode=2)
        await channel.default_exchange.publish(message, UNROUTED_QUEUE)
        await delete_binding(live)

        report = await live.apply()

        assert [difference.name for difference in report.blocked] == [UNROUTED_QUEUE]
        assert report.done == (f"made binding jobs.topic → hot.llm ({ROUTING_KEY})",)
        assert "x-max-length is 5, declared not set" in report.blocked[0].text
        queue = await channel.get_queue(UNROUTED_QUEUE)
        assert (await queue.get()).body == b"precious"


async def test_queues_of_the_other_profile_keep_the_policies_that_rule_them(
    broker: TestBroker,
) -> None:
    async with ManagementClient(broker.management_url, broker.vhost) as client:
        await apply(client, build(broker.profile, ROUTES))
        before = await client.fetch()

        other_topology = build("quorum" if broker.profile == "classic" else "classic", ROUTES)
        report = await apply(client, other_topology)

        assert report.done == ()
        assert {(difference.kind, difference.problem.value) for difference in report.blocked} == {
            ("queue", "type")
        }
        after = await client.fetch()
        assert set(after.policies) == set(before.policies)
        assert {(q.name, q.policy) for q in after.queues} == {
            (q.name, q.policy) for q in before.queues
        }


async def test_a_job_type_that_moved_to_another_worker_leaves_no_binding_behind(
    live: LiveBroker,
) -> None:
    moved = [
        r if r.routing_key != ROUTING_KEY else Route("hot", r.job_type, "embed") for r in ROUTES
    ]
    report = await apply(live.client, build(live.broker.profile, moved))
    assert report.done == (
        f"made binding jobs.topic → hot.embed ({ROUTING_KEY})",
        (
            f"removed binding jobs.topic → hot.llm ({ROUTING_KEY}): "
            "it brought jobs to the wrong worker"
        ),
    )
    assert report.left == ()
    destinations = [
        b.destination for b in await live.client.bindings() if b.routing_key == ROUTING_KEY
    ]
    assert destinations == ["hot.embed"]


async def test_removing_a_binding_that_is_gone_is_no_error(live: LiveBroker) -> None:
    missing = Binding("jobs.topic", "hot.embed", ROUTING_KEY)
    assert await live.client.delete_binding(missing) is False
    assert await live.client.delete_binding(Binding("no.such", "hot.embed", ROUTING_KEY)) is False


async def test_bindings_with_odd_keys_and_arguments_are_removed_exactly(live: LiveBroker) -> None:
    odd_bindings = [
        Binding("jobs.topic", "hot.llm", "a/b *#%2F~"),
        Binding("jobs.topic", "hot.llm", ""),
        Binding("jobs.topic", "hot.llm", "", arguments={"why": 1}),
    ]
    for binding in odd_bindings:
        await live.client.put_binding(binding)
    for binding in odd_bindings:
        assert await live.client.delete_binding(binding) is True
        assert binding not in await live.client.bindings()
    assert await live.differences() == set()


async def test_nothing_is_changed_where_dead_letters_would_be_dropped(broker: TestBroker) -> None:
    body = {"type": "direct", "durable": True, "auto_delete": False, "arguments": {}}
    await broker.management.put("/exchanges/{vhost}/jobs.dlx", body)
    async with ManagementClient(broker.management_url, broker.vhost) as client:
        report = await apply(client, build(broker.profile, ROUTES))
        assert report.done == ()
        assert "exchange jobs.dlx has the type direct, declared fanout" in [
            difference.text for difference in report.left
        ]
        assert await client.policies() == ()


async def test_a_virtual_host_with_an_odd_name_works_like_any_other(broker: TestBroker) -> None:
    odd_vhost = f"{broker.vhost}/a b%ü"
    path = quote(odd_vhost, safe="")
    await broker.management.put(f"/vhosts/{path}", {})
    try:
        assert with_vhost(broker.amqp_url, odd_vhost).endswith(path)
        topology = build(broker.profile, ROUTES)
        async with ManagementClient(broker.management_url, odd_vhost) as client:
            assert (await apply(client, topology)).left == ()
            assert diff(topology, await client.fetch()) == []
    finally:
        await broker.management.delete(f"/vhosts/{path}")


async def test_rendered_definitions_import_into_a_running_broker(broker: TestBroker) -> None:
    topology = build(broker.profile, ROUTES)
    async with ManagementClient(broker.management_url, broker.vhost) as client:
        definitions = render(topology, vhost=broker.vhost)
        await client.import_definitions(definitions)
        assert diff(topology, await client.fetch()) == []
        await client.import_definitions(definitions)  # repeating it is no error


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.10", "4.3"])
async def test_definitions_json_boots_a_blank_node(
    own_node: Callable[..., LocalNode], version: str
) -> None:
    node = own_node(version=version, definitions=DEFINITIONS)
    async with ManagementClient(node.management_url) as client:
        assert (await client.version()).startswith(version)
        differences = diff(build("classic", Registry.load().routes), await client.fetch())
        assert differences == []


async def test_the_real_api_says_what_to_do(broker: TestBroker) -> None:
    url = urlsplit(broker.management_url)
    wrong_url = url._replace(netloc=f"nobody:hidden@{url.hostname}:{url.port}").geturl()
    no_such = ManagementClient(broker.management_url, "no such vhost")
    amqp_port = ManagementClient(f"http://{url.username}:x@{url.hostname}:{broker.node.amqp_port}")
    for client, advice in (
        (ManagementClient(wrong_url, broker.vhost), "refused the user or the password"),
        (no_such, "rabbitmqctl add_vhost 'no such vhost'"),
        (amqp_port, "management plugin enabled"),
    ):
        async with client:
            with pytest.raises(ManagementError, match=advice) as caught:
                await client.fetch()
        assert "hidden" not in str(caught.value)

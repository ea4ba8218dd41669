"""What the doctor asks of the broker."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from urllib.parse import quote

from switchyard.broker.errors import BrokerAway, ManagementError
from switchyard.broker.topology.build import build
from switchyard.broker.topology.differences import Deviation, Difference, diff
from switchyard.broker.topology.management import ManagementClient
from switchyard.broker.topology.model import Topology
from switchyard.broker.wire.connection import address_of, connected, underlying
from switchyard.services.jobs.registry import Registry
from switchyard.services.monitoring.check import Check
from switchyard.services.monitoring.lane_report import lane_report
from switchyard.services.settings import Settings

CONNECTION = "doctor"
"""The name under which the broker shows its connections."""
LEAST_VERSION = {"classic": (3, 10), "quorum": (4, 3)}
"""The first release with all that a profile needs."""
DEFAULT_CONSUMER_TIMEOUT = 1800.0
"""Seconds, since RabbitMQ 3.8.17, unless somebody has changed it."""
NAMED = 3
"""Of many things of a kind, so many are named."""


async def broker_checks(settings: Settings, registry: Registry) -> AsyncIterator[Check]:
    """Whether it is there, its version, its topology, its alarms, and who works its queues."""
    broker = await _broker(settings)
    yield broker
    if broker.status == "ok":
        yield await _profile(settings)
        async for check in _through_management(settings, registry):
            yield check
        yield await _consumers(settings, registry)


async def _broker(settings: Settings) -> Check:
    url = settings.require_amqp_url()
    try:
        async with connected(url, CONNECTION):
            return Check("broker", "ok", f"reached at {address_of(url)}")
    except BrokerAway as error:
        remedy = "start it, or correct JOBS_AMQP_URL (user, password, vhost, port)"
        return Check("broker", "wrong", str(error), remedy)


async def _profile(settings: Settings) -> Check:
    version = await _broker_version(settings.require_amqp_url())
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    least = LEAST_VERSION[settings.profile]
    if numbers >= least:
        return Check("version", "ok", f"RabbitMQ {version} with the profile {settings.profile}")
    needed = ".".join(map(str, least))
    return Check(
        "version",
        "wrong",
        f"the profile {settings.profile} needs RabbitMQ {needed} or later, this is {version}",
        "set JOBS_PROFILE=classic" if settings.profile == "quorum" else "upgrade the broker",
    )


async def _broker_version(url: str) -> str:
    async with connected(url, CONNECTION) as connection:
        value = underlying(connection).server_properties.get("version", "")
    return value.decode() if isinstance(value, bytes) else str(value)


async def _through_management(settings: Settings, registry: Registry) -> AsyncIterator[Check]:
    topology = build(settings.profile, registry.routes, retry_delays=settings.retry_delays)
    try:
        async with ManagementClient(settings.require_management_url(), settings.vhost) as client:
            live = await client.fetch()
            yield Check("management", "ok", "the management API answers")
            for check in _topology(diff(topology, live)):
                yield check
            yield await _alarms(client)
            yield await _consumer_timeout(client, settings, registry, topology)
    except (ManagementError, ValueError) as error:
        remedy = "without it topology, alarms and policies can't be checked: JOBS_MANAGEMENT_URL"
        yield Check("management", "wrong", str(error), remedy)


def _topology(differences: list[Difference]) -> Iterable[Check]:
    overridden = [each for each in differences if each.problem is Deviation.OVERRIDDEN]
    extra = [each for each in differences if each.problem is Deviation.EXTRA]
    others = [each for each in differences if each not in overridden and each not in extra]
    if others:
        fixable = all(each.fixable for each in others)
        remedy = "run `jobctl topology apply`" if fixable else "see docs/topology.md"
        yield Check("topology", "wrong", _some([each.text for each in others]), remedy)
    else:
        yield Check("topology", "ok", "exchanges, queues, bindings and policies are as declared")
    if overridden:
        # Their texts say what to do, for it depends on which policy it is.
        yield Check("policies", "wrong", _some([each.text for each in overridden]))
    else:
        yield Check("policies", "ok", "every queue is under its own policy")
    if extra:
        remedy = "remove it, or load its job types with JOBS_MODULES"
        yield Check("leftovers", "warning", _some([each.text for each in extra]), remedy)


async def _alarms(client: ManagementClient) -> Check:
    alarms = []
    for node in await client.get("/nodes"):
        for key, name in (("mem_alarm", "memory"), ("disk_free_alarm", "disk")):
            if node.get(key):
                alarms.append(f"{name} alarm on {node['name']}")
        if not node.get("running", True):
            alarms.append(f"{node['name']} does not run")
    if alarms:
        return Check(
            "alarms",
            "wrong",
            f"{', '.join(alarms)}: publishers are blocked until it is over",
            "free memory or disk there; see `rabbitmqctl status`",
        )
    return Check("alarms", "ok", "no memory or disk alarm")


async def _consumer_timeout(
    client: ManagementClient, settings: Settings, registry: Registry, topology: Topology
) -> Check:
    """A job that is not acknowledged in this time is taken from its worker and run again."""
    longest = max(registry, key=lambda job_type: job_type.timeout)
    needs = longest.timeout + settings.takeover_after
    declared = {queue.name for queue in topology.queues}
    shortest, where = DEFAULT_CONSUMER_TIMEOUT, ""
    for queue in await client.get(f"/queues/{quote(settings.vhost, safe='')}"):
        for source in (queue.get("effective_policy_definition") or {}, queue["arguments"]):
            value = source.get("consumer-timeout", source.get("x-consumer-timeout"))
            if queue["name"] in declared and isinstance(value, int) and value / 1000 < shortest:
                shortest, where = value / 1000, f" on {queue['name']}"
    what = f"the longest job ({longest.name}) may take {longest.timeout:g} s"
    if where and shortest < needs:
        return Check(
            "consumer timeout",
            "wrong",
            f"{what}, but the consumer timeout is {shortest:g} s{where}: it would run twice",
            "raise consumer-timeout in that policy",
        )
    if needs > DEFAULT_CONSUMER_TIMEOUT:
        return Check(
            "consumer timeout",
            "warning",
            f"{what}; RabbitMQ's default consumer timeout is {DEFAULT_CONSUMER_TIMEOUT:g} s",
            "set consumer_timeout (milliseconds) in rabbitmq.conf, if it is not set yet; the node "
            "does not tell it: `rabbitmqctl eval 'application:get_env(rabbit,consumer_timeout).'`",
        )
    return Check(
        "consumer timeout",
        "ok",
        f"{what}, the default consumer timeout is {DEFAULT_CONSUMER_TIMEOUT:g} s (a node does not "
        "tell whether its rabbitmq.conf says otherwise)",
    )


async def _consumers(settings: Settings, registry: Registry) -> Check:
    report = await lane_report(settings, registry, None)
    queues = [queue for lane in report.lanes if lane.priority is not None for queue in lane.queues]
    idle = [queue for queue in queues if queue.ready and not queue.consumers]
    if idle:
        kinds = " ".join(sorted({queue.name.partition(".")[2] for queue in idle}))
        return Check(
            "consumers",
            "wrong",
            _some(
                [f"{queue.ready:,} jobs wait in {queue.name} and nobody works it" for queue in idle]
            ),
            f"start `jobctl worker {kinds}`",
        )
    waiting = sum(queue.ready for queue in queues)
    return Check("consumers", "ok", f"{waiting:,} jobs wait, and every queue with jobs is worked")


def _some(texts: list[str]) -> str:
    more = f"; and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return "; ".join(texts[:NAMED]) + more

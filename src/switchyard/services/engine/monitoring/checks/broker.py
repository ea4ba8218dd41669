"""Check the broker: connection and login, version, management API, memory and disk alarms, consumer
timeout, and feature flags."""

from __future__ import annotations

import re
import shlex
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from switchyard.broker.addresses import display_address
from switchyard.broker.errors import (
    BrokerAuthError,
    BrokerUnavailable,
    LimitReached,
    ManagementError,
    ManagementForbidden,
)
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.topology.build import build
from switchyard.broker.wire.connection import connected, underlying
from switchyard.services.engine.monitoring.check import (
    Diagnostic,
    Finding,
    certificate_remedy,
    failure,
    first_few,
    ok,
    warning,
)
from switchyard.services.engine.monitoring.checks.doctor_context import ROOM_FIRST, DoctorContext

CONNECTION = "doctor"
"""Name of its connections on the broker."""
VHOST_REFUSED_TEXT = "it refuses the vhost"
"""Text in the error where user and password are right and the vhost is wrong."""
MIN_VERSION = {"classic": (3, 10), "quorum": (4, 3)}
"""The first release with all that a profile needs, by profile."""


async def broker(context: DoctorContext) -> list[Diagnostic]:
    """Connect to the broker, and log in."""
    url = context.settings.require_amqp_url()
    try:
        async with connected(url, CONNECTION) as connection:
            context.broker = dict(underlying(connection).server_properties)
    except BrokerAuthError as error:
        if VHOST_REFUSED_TEXT in str(error):
            return [_report_vhost(context, error)]
        remedy = (
            "correct user, password and vhost in JOBS_AMQP_URL (of a system that `jobctl up` runs: "
            "`source .switchyard/env`), or set the password there: "
            "`rabbitmqctl change_password USER PASSWORD`"
        )
        return [failure("broker", Finding.BROKER_REFUSES, str(error), remedy)]
    except BrokerUnavailable as error:
        return [report_away(context, error)]
    return [ok("broker", f"reached at {display_address(url)}")]


def _report_vhost(context: DoctorContext, error: BrokerAuthError) -> Diagnostic:
    """Return the diagnostic for a vhost that is missing, or not permitted to this user."""
    vhost = shlex.quote(context.settings.vhost)
    user = shlex.quote(unquote(urlsplit(context.settings.require_amqp_url()).username or "guest"))
    remedy = (
        "correct the vhost in JOBS_AMQP_URL: `rabbitmqctl list_vhosts` shows all. One that was "
        f"deleted: `rabbitmqctl add_vhost {vhost}`, `rabbitmqctl set_permissions -p {vhost} {user} "
        "'.*' '.*' '.*'`, then `jobctl topology apply` and `jobctl jobs republish`: docs/backup.md"
    )
    return failure("broker", Finding.BROKER_REFUSES, str(error), remedy)


def _report_limit(context: DoctorContext, error: LimitReached) -> Diagnostic:
    """Return the diagnostic for a reached limit of connections or channels."""
    _, _, text = str(error).partition("NOT_ALLOWED")
    user = shlex.quote(unquote(urlsplit(context.settings.require_amqp_url()).username or "guest"))
    what = "channels" if "number of channels" in text else "connections"
    vhost = shlex.quote(context.settings.vhost)
    if "node connection limit" in text or "opened on node" in text:
        limit = "channel_max_per_node" if what == "channels" else "connection_max"
        advice = f"raise `{limit}` in the node's rabbitmq.conf, and restart it"
    elif "user connection limit" in text or what == "channels":
        advice = f"""`rabbitmqctl set_user_limits {user} '{{"max-{what}": NUMBER}}'`"""
    else:
        advice = f"""`rabbitmqctl set_vhost_limits -p {vhost} '{{"max-{what}": NUMBER}}'`"""
    remedy = (
        "look who has so many: `rabbitmqctl list_connections user vhost client_properties`; end "
        f"what nobody needs, or raise the limit: {advice}. Workers, API and scheduler wait, and go "
        "on by themselves"
    )
    return failure("broker", Finding.BROKER_LIMIT, str(error), remedy)


def report_away(context: DoctorContext, error: BrokerUnavailable) -> Diagnostic:
    """Return the diagnostic for a broker that is away, silent or full, with its remedy."""
    if isinstance(error, LimitReached):
        return _report_limit(context, error)
    remedy = certificate_remedy(error, "JOBS_AMQP_URL")
    if remedy is None:
        remedy = "start the broker, or correct host and port in JOBS_AMQP_URL"
    if isinstance(error.__cause__, TimeoutError):
        remedy = (
            "its host is cut off, or the broker is frozen: look at the host and the network; kill "
            "a frozen broker, and start it; or correct host and port in JOBS_AMQP_URL"
        )
    if Finding.DISK_FULL in context.found:
        remedy = (
            f"{ROOM_FIRST}: a broker whose data is on a full disk ends, and does not start "
            f"before there is room; then {remedy}"
        )
    return failure("broker", Finding.BROKER_AWAY, str(error), remedy)


async def version(context: DoctorContext) -> list[Diagnostic]:
    """Check that the broker's version has all that the profile needs."""
    value = (context.broker or {}).get("version", "")
    text = value.decode() if isinstance(value, bytes) else str(value)
    numbers = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    profile = context.settings.profile
    if numbers >= MIN_VERSION[profile]:
        return [ok("version", f"RabbitMQ {text} with the profile {profile}")]
    needed = ".".join(map(str, MIN_VERSION[profile]))
    return [
        failure(
            "version",
            Finding.BROKER_TOO_OLD,
            f"the profile {profile} needs RabbitMQ {needed} or later, this is {text}",
            "`export JOBS_PROFILE=classic`" if profile == "quorum" else "upgrade the broker",
        )
    ]


MANAGEMENT_TIMEOUT = 3.0
"""Seconds for each answer of the management API."""


async def management(context: DoctorContext) -> list[Diagnostic]:
    """Connect to the management API, and read from it."""
    try:
        url = context.settings.require_management_url()
        client = ManagementClient(url, context.settings.vhost, timeout=MANAGEMENT_TIMEOUT)
        try:
            await client.policies()
        except ManagementError:
            await client.close()
            raise
    except (ManagementError, ValueError) as error:
        return [report_unreachable(error)]
    context.management = client
    return [ok("management", "the management API answers")]


def report_unreachable(error: Exception) -> Diagnostic:
    """Return the diagnostic for a management API that does not answer, or refuses."""
    remedy = (
        "correct JOBS_MANAGEMENT_URL, or on the broker `rabbitmq-plugins enable "
        "rabbitmq_management`; AMQP alone does not tell topology and policies, alarms and "
        "watermarks, feature flags, consumer timeouts, the broker's clock, and workers' consumers"
    )
    return failure("management", Finding.MANAGEMENT_AWAY, str(error), remedy)


def report_forbidden(what: str, error: ManagementForbidden) -> Diagnostic:
    """Return the diagnostic for a management API that hides `what` from this user."""
    return warning(
        "permissions",
        Finding.MANAGEMENT_FORBIDS,
        f"can't see {what}: {error}",
        "ask again with a user that may: `export JOBS_MANAGEMENT_URL=http://USER:PASSWORD@HOST:PORT`",
    )


MIB = 1024 * 1024
MEMORY_HIGH = 0.8
"""Memory use from which the doctor warns, as a fraction of the use at which the alarm comes."""
MIN_DISK_FREE_LIMIT = 50_000_000
"""Bytes of free disk space that RabbitMQ requires by default."""
DISK_LOW = 2.0
"""Free disk space below which the doctor warns, as a multiple of that at which the alarm comes."""


async def alarms(context: DoctorContext) -> list[Diagnostic]:
    """Check the alarms of every node."""
    diagnostics: list[Diagnostic] = []
    for node in await context.need_management().get("/nodes"):
        diagnostics += _node_alarms(node)
    return diagnostics or [ok("alarms", "no memory or disk alarm, and none near")]


def _node_alarms(node: dict[str, Any]) -> list[Diagnostic]:
    name = node["name"]
    if not node.get("running", True):
        remedy = f"start it: `rabbitmqctl -n {name} start_app`, or the whole node"
        return [failure("alarms", Finding.NODE_DOWN, f"{name} does not run", remedy)]
    diagnostics = []
    if node.get("mem_alarm"):
        diagnostics.append(
            failure(
                "alarms",
                Finding.ALARM_MEMORY,
                f"memory alarm on {name}: it uses {_mib(node, 'mem_used')} and may use "
                f"{_mib(node, 'mem_limit')}; publishers are blocked until it is over",
                f"give it more: `rabbitmqctl -n {name} set_vm_memory_high_watermark 0.6`; what "
                f"uses it: `rabbitmqctl -n {name} status`",
            )
        )
    elif _share(node, "mem_used", "mem_limit") >= MEMORY_HIGH:
        diagnostics.append(
            warning(
                "alarms",
                Finding.MEMORY_HIGH,
                f"{name} uses {_mib(node, 'mem_used')} of memory; at {_mib(node, 'mem_limit')} "
                "publishers are blocked",
                "see whether jobs pile up: `jobctl lanes`; what uses it: "
                f"`rabbitmqctl -n {name} status`; give it more: "
                f"`rabbitmqctl -n {name} set_vm_memory_high_watermark 0.6`",
            )
        )
    if node.get("disk_free_alarm"):
        diagnostics.append(
            failure(
                "alarms",
                Finding.ALARM_DISK,
                f"disk alarm on {name}: {_mib(node, 'disk_free')} are free, and it wants "
                f"{_mib(node, 'disk_free_limit')}; publishers are blocked until it is over",
                f"free disk space there{_lower_limit(node)}",
            )
        )
    elif 0 < _share(node, "disk_free", "disk_free_limit") < DISK_LOW:
        diagnostics.append(
            warning(
                "alarms",
                Finding.BROKER_DISK_LOW,
                f"{_mib(node, 'disk_free')} of disk are free on {name}; at "
                f"{_mib(node, 'disk_free_limit')} publishers are blocked",
                f"free disk space there (`rabbitmqctl -n {name} status` says where its data lie)"
                f"{_lower_limit(node)}",
            )
        )
    return diagnostics


def _lower_limit(node: dict[str, Any]) -> str:
    """Return the advice to lower the node's limit of free disk space, where it is above
    MIN_DISK_FREE_LIMIT."""
    limit = node.get("disk_free_limit")
    if isinstance(limit, int | float) and limit <= MIN_DISK_FREE_LIMIT:
        return ""
    return f", or want less: `rabbitmqctl -n {node['name']} set_disk_free_limit 50MB`"


def _share(node: dict[str, Any], part: str, whole: str) -> float:
    """Return `part` as a fraction of `whole`; 0 where the node does not report them, as just after
    its start."""
    used, total = node.get(part), node.get(whole)
    if not isinstance(used, int | float) or not isinstance(total, int | float) or total <= 0:
        return 0.0
    return used / total


def _mib(node: dict[str, Any], key: str) -> str:
    value = node.get(key)
    return f"{value / MIB:,.0f} MiB" if isinstance(value, int | float) else "?"


async def features(context: DoctorContext) -> list[Diagnostic]:
    """Check for stable feature flags that are off, and deprecated features in use."""
    client = context.need_management()
    node = (await client.get("/overview")).get("node", "")
    try:
        flags = await client.get("/feature-flags")
    except ManagementForbidden:
        # 3.10 shows them only to administrators, which no user of ours should be.
        return [
            ok(
                "features",
                "not looked at: this broker shows feature flags only to users with the tag "
                "`administrator`; before its next upgrade, "
                f"`rabbitmqctl -n {node} list_feature_flags name state` shows those that are off",
            )
        ]
    # Releases before 3.13 do not know of any.
    used = await client.get("/deprecated-features/used", missing=[])
    diagnostics = []
    off = sorted(
        str(flag["name"])
        for flag in flags
        if flag.get("stability") == "stable" and flag.get("state") == "disabled"
    )
    if off:
        diagnostics.append(
            warning(
                "features",
                Finding.FLAGS_DISABLED,
                "feature flags are disabled that later releases of RabbitMQ require: "
                f"{first_few(off)}",
                "before the next upgrade, once all nodes have the same version: "
                f"`rabbitmqctl -n {node} enable_feature_flag all`",
            )
        )
    if names := sorted(str(each["name"]) for each in used):
        diagnostics.append(
            warning(
                "features",
                Finding.DEPRECATED_USED,
                f"something uses what a later release of RabbitMQ refuses: {first_few(names)}",
                "Switchyard itself uses none of it: find who does before the next upgrade "
                "(https://www.rabbitmq.com/docs/deprecated-features; transient queues: "
                f"`rabbitmqctl -n {node} list_queues --vhost VHOST name durable exclusive`)",
            )
        )
    return diagnostics or [
        ok("features", "every stable feature flag is on, nothing deprecated is used")
    ]


DEFAULT_CONSUMER_TIMEOUT = 1800.0
"""Seconds; the default since RabbitMQ 3.8.17."""


async def consumer_timeout(context: DoctorContext) -> list[Diagnostic]:
    """Check the consumer timeout: a job that is not acknowledged within it is taken from its worker
    and run again."""
    settings, registry = context.settings, context.registry
    longest = max(registry, key=lambda job_type: job_type.timeout)
    needed = longest.timeout + settings.takeover_after
    topology = build(settings.profile, registry.routes, retry_delays=settings.retry_delays)
    declared = {queue.name for queue in topology.queues}
    shortest, where = DEFAULT_CONSUMER_TIMEOUT, ""
    for queue in await context.need_management().get(f"/queues/{quote(settings.vhost, safe='')}"):
        for source in (queue.get("effective_policy_definition") or {}, queue["arguments"]):
            value = source.get("consumer-timeout", source.get("x-consumer-timeout"))
            if queue["name"] in declared and isinstance(value, int) and value / 1000 < shortest:
                shortest, where = value / 1000, f" on {queue['name']}"
    what = f"the longest job ({longest.name}) may take {longest.timeout:g} s"
    if where and shortest < needed:
        return [
            failure(
                "consumer timeout",
                Finding.CONSUMER_TIMEOUT,
                f"{what}, but the consumer timeout is {shortest:g} s{where}: it would run twice",
                f"raise consumer-timeout in that policy to {needed * 1000:.0f} (milliseconds) at "
                "least",
            )
        ]
    if needed > DEFAULT_CONSUMER_TIMEOUT:
        return [
            warning(
                "consumer timeout",
                Finding.CONSUMER_TIMEOUT,
                f"{what}; RabbitMQ's default consumer timeout is {DEFAULT_CONSUMER_TIMEOUT:g} s",
                f"set consumer_timeout = {needed * 1000:.0f} in rabbitmq.conf, if it is not set "
                "yet; the node does not tell it: "
                "`rabbitmqctl eval 'application:get_env(rabbit,consumer_timeout).'`",
            )
        ]
    return [
        ok(
            "consumer timeout",
            f"{what}, the default consumer timeout is {DEFAULT_CONSUMER_TIMEOUT:g} s (a node does "
            "not tell whether its rabbitmq.conf says otherwise)",
        )
    ]

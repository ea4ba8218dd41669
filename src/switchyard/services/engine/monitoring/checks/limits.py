"""Whether the broker leaves a job to its worker for as long as the job may take."""

from __future__ import annotations

from urllib.parse import quote

from switchyard.broker.topology.build import build
from switchyard.services.engine.monitoring.check import Diagnostic, Finding, failure, ok, warning
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext

DEFAULT_CONSUMER_TIMEOUT = 1800.0
"""Seconds, since RabbitMQ 3.8.17, unless somebody has changed it."""


async def consumer_timeout(system: DoctorContext) -> list[Diagnostic]:
    """A job that is not acknowledged in this time is taken from its worker and run again."""
    settings, registry = system.settings, system.registry
    longest = max(registry, key=lambda job_type: job_type.timeout)
    needs = longest.timeout + settings.takeover_after
    topology = build(settings.profile, registry.routes, retry_delays=settings.retry_delays)
    declared = {queue.name for queue in topology.queues}
    shortest, where = DEFAULT_CONSUMER_TIMEOUT, ""
    for queue in await system.need_management().get(f"/queues/{quote(settings.vhost, safe='')}"):
        for source in (queue.get("effective_policy_definition") or {}, queue["arguments"]):
            value = source.get("consumer-timeout", source.get("x-consumer-timeout"))
            if queue["name"] in declared and isinstance(value, int) and value / 1000 < shortest:
                shortest, where = value / 1000, f" on {queue['name']}"
    what = f"the longest job ({longest.name}) may take {longest.timeout:g} s"
    if where and shortest < needs:
        return [
            failure(
                "consumer timeout",
                Finding.CONSUMER_TIMEOUT,
                f"{what}, but the consumer timeout is {shortest:g} s{where}: it would run twice",
                f"raise consumer-timeout in that policy to {needs * 1000:.0f} (milliseconds) at "
                "least",
            )
        ]
    if needs > DEFAULT_CONSUMER_TIMEOUT:
        return [
            warning(
                "consumer timeout",
                Finding.CONSUMER_TIMEOUT,
                f"{what}; RabbitMQ's default consumer timeout is {DEFAULT_CONSUMER_TIMEOUT:g} s",
                f"set consumer_timeout = {needs * 1000:.0f} in rabbitmq.conf, if it is not set "
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

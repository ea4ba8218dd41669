"""What stands in the way of the broker's next upgrade: feature flags and deprecated features."""

from __future__ import annotations

from switchyard.broker.errors import ManagementForbidden
from switchyard.services.engine.monitoring.check import Diagnostic, Finding, ok, some, warning
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext


async def features(system: DoctorContext) -> list[Diagnostic]:
    """Stable flags that are off, and deprecated features that something uses."""
    client = system.need_management()
    node = (await client.get("/overview")).get("node", "")
    try:
        flags = await client.get("/feature-flags")
    except ManagementForbidden:
        # 3.10 shows them to administrators alone, and no user of ours is to be one.
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
    found = []
    off = sorted(
        str(flag["name"])
        for flag in flags
        if flag.get("stability") == "stable" and flag.get("state") == "disabled"
    )
    if off:
        found.append(
            warning(
                "features",
                Finding.FLAGS_DISABLED,
                f"feature flags are disabled that later releases of RabbitMQ require: {some(off)}",
                "before the next upgrade, once all nodes have the same version: "
                f"`rabbitmqctl -n {node} enable_feature_flag all`",
            )
        )
    if names := sorted(str(each["name"]) for each in used):
        found.append(
            warning(
                "features",
                Finding.DEPRECATED_USED,
                f"something uses what a later release of RabbitMQ refuses: {some(names)}",
                "Switchyard itself uses none of it: find who does before the next upgrade "
                "(https://www.rabbitmq.com/docs/deprecated-features; transient queues: "
                f"`rabbitmqctl -n {node} list_queues --vhost VHOST name durable exclusive`)",
            )
        )
    return found or [ok("features", "every stable feature flag is on, nothing deprecated is used")]

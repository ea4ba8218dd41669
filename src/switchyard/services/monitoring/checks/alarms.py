"""Whether a node of the broker has run out of memory or disk, which blocks every publisher."""

from __future__ import annotations

from typing import Any

from switchyard.services.monitoring.check import Check, Finding, well, wrong
from switchyard.services.monitoring.checks.examined import Examined

MIB = 1024 * 1024


async def alarms(system: Examined) -> list[Check]:
    """Those of every node."""
    found: list[Check] = []
    for node in await system.need_management().get("/nodes"):
        found += _of_node(node)
    return found or [well("alarms", "no memory or disk alarm")]


def _of_node(node: dict[str, Any]) -> list[Check]:
    name = node["name"]
    if not node.get("running", True):
        remedy = f"start it: `rabbitmqctl -n {name} start_app`, or the whole node"
        return [wrong("alarms", Finding.NODE_DOWN, f"{name} does not run", remedy)]
    found = []
    if node.get("mem_alarm"):
        found.append(
            wrong(
                "alarms",
                Finding.ALARM_MEMORY,
                f"memory alarm on {name}: it uses {_mib(node, 'mem_used')} and may use "
                f"{_mib(node, 'mem_limit')}; publishers are blocked until it is over",
                f"give it more: `rabbitmqctl -n {name} set_vm_memory_high_watermark 0.6`; what "
                f"uses it: `rabbitmqctl -n {name} status`",
            )
        )
    if node.get("disk_free_alarm"):
        found.append(
            wrong(
                "alarms",
                Finding.ALARM_DISK,
                f"disk alarm on {name}: {_mib(node, 'disk_free')} are free, and it wants "
                f"{_mib(node, 'disk_free_limit')}; publishers are blocked until it is over",
                "free disk space there, or want less: "
                f"`rabbitmqctl -n {name} set_disk_free_limit 50MB`",
            )
        )
    return found


def _mib(node: dict[str, Any], key: str) -> str:
    value = node.get(key)
    return f"{value / MIB:,.0f} MiB" if isinstance(value, int | float) else "?"

"""Whether a node of the broker has run out of memory or disk, which blocks every publisher, or soon
will."""

from __future__ import annotations

from typing import Any

from switchyard.services.engine.monitoring.check import Diagnostic, Finding, failure, ok, warning
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext

MIB = 1024 * 1024
MEMORY_HIGH = 0.8
"""Of the memory at which the alarm comes."""
LEAST_DISK_FREE_LIMIT = 50_000_000
"""Bytes of free disk space: what RabbitMQ wants where nobody has set a limit."""
DISK_LOW = 2.0
"""Times the free disk space at which the alarm comes."""


async def alarms(system: DoctorContext) -> list[Diagnostic]:
    """Those of every node."""
    found: list[Diagnostic] = []
    for node in await system.need_management().get("/nodes"):
        found += _of_node(node)
    return found or [ok("alarms", "no memory or disk alarm, and none near")]


def _of_node(node: dict[str, Any]) -> list[Diagnostic]:
    name = node["name"]
    if not node.get("running", True):
        remedy = f"start it: `rabbitmqctl -n {name} start_app`, or the whole node"
        return [failure("alarms", Finding.NODE_DOWN, f"{name} does not run", remedy)]
    found = []
    if node.get("mem_alarm"):
        found.append(
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
        found.append(
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
        found.append(
            failure(
                "alarms",
                Finding.ALARM_DISK,
                f"disk alarm on {name}: {_mib(node, 'disk_free')} are free, and it wants "
                f"{_mib(node, 'disk_free_limit')}; publishers are blocked until it is over",
                f"free disk space there{_lower_limit(node)}",
            )
        )
    elif 0 < _share(node, "disk_free", "disk_free_limit") < DISK_LOW:
        found.append(
            warning(
                "alarms",
                Finding.BROKER_DISK_LOW,
                f"{_mib(node, 'disk_free')} of disk are free on {name}; at "
                f"{_mib(node, 'disk_free_limit')} publishers are blocked",
                f"free disk space there (`rabbitmqctl -n {name} status` says where its data lie)"
                f"{_lower_limit(node)}",
            )
        )
    return found


def _lower_limit(node: dict[str, Any]) -> str:
    """Return the advice to want less free disk space, where the node wants more than the least that
    makes sense."""
    limit = node.get("disk_free_limit")
    if isinstance(limit, int | float) and limit <= LEAST_DISK_FREE_LIMIT:
        return ""
    return f", or want less: `rabbitmqctl -n {node['name']} set_disk_free_limit 50MB`"


def _share(node: dict[str, Any], part: str, whole: str) -> float:
    """Tell how much of the one the other is; 0 where the node does not tell, as in its first
    moments."""
    some, most = node.get(part), node.get(whole)
    if not isinstance(some, int | float) or not isinstance(most, int | float) or most <= 0:
        return 0.0
    return some / most


def _mib(node: dict[str, Any], key: str) -> str:
    value = node.get(key)
    return f"{value / MIB:,.0f} MiB" if isinstance(value, int | float) else "?"

"""Report how full the lanes are, by the broker and the ledger.

Ready messages are counted over AMQP, exactly. Unacknowledged messages, the limits in force and the
age of the oldest message come from the management API, a few seconds late; without it, the limits
are the declared ones, and the rest is unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from switchyard.broker.errors import ManagementError
from switchyard.broker.lanes import DEAD_QUEUE, STAND_IN_PREFIX, lane_named
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.wire.depths import QueueSize, query_queues
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.leases import DEAD_SCAN
from switchyard.services.engine.monitoring.pressure_thresholds import PressureThresholds
from switchyard.services.engine.records.states import State

MANAGEMENT_TIMEOUT = 3.0
INDEXING_POLL_INTERVAL, INDEXING_STALL_TIMEOUT, INDEXING_TIMEOUT = 0.1, 1.0, 10.0
"""Seconds between polls while a scheduler indexes dead letters; seconds without progress after
which this wait ends; and its maximum."""


@dataclass(frozen=True, slots=True)
class QueueReport:
    """Report on one queue of a lane."""

    name: str
    exists: bool
    ready: int
    unacked: int | None
    """Unacknowledged messages; None without the management API."""
    consumers: int
    limit: int | None
    """Waiting jobs at which it is full: further ones are refused."""
    ttl_seconds: float | None
    oldest_seconds: float | None
    """Age of the message at the head; None where the broker does not report it."""

    @property
    def percent_full(self) -> float | None:
        return None if not self.limit else round(100 * self.ready / self.limit, 1)


@dataclass(frozen=True, slots=True)
class LaneReport:
    """Report on one lane, or on the dead letters."""

    name: str
    priority: int | None
    queues: tuple[QueueReport, ...]
    jobs: Mapping[str, int]
    """The ledger's jobs by state."""


@dataclass(frozen=True, slots=True)
class LanesReport:
    """Report on all lanes."""

    lanes: tuple[LaneReport, ...]
    management_error: str | None
    """Why the management API could not be read; None when it was."""


async def make_lane_report(
    settings: Settings, registry: Registry, ledger: Ledger | None, *, clock: Callable[[], float]
) -> LanesReport:
    """Return all lanes, most urgent first, then the dead letters. `clock` returns the ledger's
    time, by which messages are stamped. Raises BrokerUnavailable, LedgerError."""
    names = registry.queues_by_lane()
    all_names = [name for queues in names.values() for name in queues] + [DEAD_QUEUE]
    waiting = await query_queues(settings.require_amqp_url(), all_names)
    details, management_error = await _read_queue_details(settings)
    counts = await ledger.job_reads.counts() if ledger is not None else {}
    now = clock()
    lanes = [
        LaneReport(
            lane,
            lane_named(lane).default_priority,
            tuple(
                _queue_report(
                    name,
                    waiting[name],
                    details.get(name),
                    settings,
                    stand_in=details.get(STAND_IN_PREFIX + name),
                    max_length=lane_named(lane).max_length,
                    ttl=lane_named(lane).ttl_seconds,
                    now=now,
                )
                for name in queues
            ),
            _by_name(counts.get(lane, {})),
        )
        for lane, queues in names.items()
    ]
    dead = _queue_report(
        DEAD_QUEUE,
        waiting[DEAD_QUEUE],
        details.get(DEAD_QUEUE),
        settings,
        max_length=None,
        ttl=None,
        now=now,
    )
    lanes.append(LaneReport("(dead)", None, (dead,), {}))
    return LanesReport(tuple(lanes), management_error)


async def count_unlisted_letters(settings: Settings, ledger: Ledger) -> int:
    """Return how many messages `jobs.dead` has more than the index of dead letters; negative if it
    has fewer. Waits while a scheduler indexes new letters. Returns 0 without the queue, and while a
    redrive or purge scans it and holds some letters. Raises BrokerUnavailable,
    LedgerUnavailable."""
    unlisted = await _count_unlisted(settings, ledger)
    began = progress = time.monotonic()
    while unlisted > 0 and (now := time.monotonic()) < min(
        progress + INDEXING_STALL_TIMEOUT, began + INDEXING_TIMEOUT
    ):
        await asyncio.sleep(INDEXING_POLL_INTERVAL)
        before, unlisted = unlisted, await _count_unlisted(settings, ledger)
        progress = now if unlisted < before else progress
    return unlisted


async def _count_unlisted(settings: Settings, ledger: Ledger) -> int:
    if await ledger.leases.lease_remaining(DEAD_SCAN):
        return 0
    depths = await query_queues(settings.require_amqp_url(), [DEAD_QUEUE])
    depth = depths[DEAD_QUEUE]
    if depth is None:
        return 0
    letter_count = await ledger.dead_letters.count_messages()
    return depth.ready - letter_count - await ledger.redrives.count_leftovers()


async def _read_queue_details(settings: Settings) -> tuple[dict[str, Any], str | None]:
    try:
        url = settings.require_management_url()
        async with ManagementClient(url, settings.vhost, timeout=MANAGEMENT_TIMEOUT) as client:
            items = await client.get(f"/queues/{quote(settings.vhost, safe='')}")
    except (ManagementError, ValueError) as error:
        return {}, str(error)
    return {item["name"]: item for item in items}, None


def _queue_report(
    name: str,
    waiting: QueueSize | None,
    details: Mapping[str, Any] | None,
    settings: Settings,
    *,
    stand_in: Mapping[str, Any] | None = None,
    max_length: int | None,
    ttl: float | None,
    now: float,
) -> QueueReport:
    if details is not None:
        policy = details.get("effective_policy_definition") or {}
        # The declared limit is used for a new queue, which has no statistics for some seconds, and
        # for one that is being recreated, whose limit is 0 meanwhile.
        max_length = policy.get("max-length") or max_length
        ttl = policy["message-ttl"] / 1000 if "message-ttl" in policy else None
    head = (details or {}).get("head_message_timestamp")
    return QueueReport(
        name=name,
        exists=waiting is not None,
        ready=(waiting.ready if waiting else 0) + int((stand_in or {}).get("messages_ready") or 0),
        unacked=None if details is None else int(details.get("messages_unacknowledged") or 0),
        consumers=waiting.consumers if waiting else 0,
        limit=None
        if max_length is None
        else PressureThresholds.from_settings(settings, name, max_length).limit,
        ttl_seconds=ttl,
        oldest_seconds=max(0.0, now - head) if isinstance(head, int | float) else None,
    )


def _by_name(counts: Mapping[State, int]) -> dict[str, int]:
    return {str(state): number for state, number in counts.items()}

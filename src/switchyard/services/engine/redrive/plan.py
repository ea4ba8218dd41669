"""Plan a redrive without running it: where each letter would go, with which changes, and which
could not go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from switchyard.broker.lanes import LANES, Lane
from switchyard.broker.settings import BrokerSettings
from switchyard.services.engine.dead.changes import Change, difference
from switchyard.services.engine.dead.groups import require_group
from switchyard.services.engine.dead.letters import DeadLetterLike
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.jobs.secret_fields import hide_secrets
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.leases import Sleep
from switchyard.services.engine.redrive.letter_sources import Letters, open_queued, open_stored
from switchyard.services.engine.redrive.sending import (
    BATCH,
    LetterDifference,
    LetterSender,
    RedriveCounts,
    RedriveMessage,
)
from switchyard.services.engine.redrive.spec import RedriveSpec, only_in_ledger

MAX_SHOWN = 5
"""Letters whose changes are shown, at most."""
MAX_COMPARED_BYTES = 256 * 1024
"""Bytes of a message up to which its change is shown: comparing larger ones takes too long."""


async def plan_redrive(
    settings: BrokerSettings,
    registry: Registry,
    ledger: Ledger,
    spec: RedriveSpec,
    *,
    lanes: tuple[Lane, ...] = LANES,
    wait: Sleep = asyncio.sleep,
) -> RedriveCounts:
    """Return the counts that the redrive would have, without publishing or changing anything.
    `wait` is awaited while another process scans `jobs.dead`.

    Raises InvalidRedrive, UnknownGroup, BrokerUnavailable, LedgerUnavailable.
    """
    spec.check()
    await require_group(ledger, spec.which)
    counts = RedriveCounts()
    sender = LetterSender(registry, ledger, spec.change, lanes=lanes, remote=spec.remote)
    batch: list[DeadLetterLike] = []

    async def plan_batch() -> None:
        copies = await sender.prepare(batch, counts, drop=False)
        _count_copies(copies, spec.change, counts, registry)
        batch.clear()

    async with _matching_letters(settings, ledger, spec, wait) as letters:
        async for letter in letters:
            counts.matched += 1
            batch.append(letter)
            if len(batch) >= BATCH:
                await plan_batch()
            if spec.limit is not None and counts.matched >= spec.limit:
                break
        await plan_batch()
    if not spec.from_ledger:
        letter_count = await ledger.dead_letters.count_dead(
            spec.which.for_index("waiting", ledger.clock.now())
        )
        if (lost := min(letter_count, spec.limit or letter_count) - counts.matched) > 0:
            counts.notes.insert(0, only_in_ledger(lost))
    return counts


def _matching_letters(
    settings: BrokerSettings, ledger: Ledger, spec: RedriveSpec, wait: Sleep
) -> AbstractAsyncContextManager[Letters]:
    """Open the letters that match, oldest first: those on the broker, or the ledger's."""
    source = open_stored if spec.from_ledger else open_queued
    return source(settings, ledger, spec.which, ledger.clock.now(), wait)


def _count_copies(
    copies: Sequence[RedriveMessage], change: Change, counts: RedriveCounts, registry: Registry
) -> None:
    """Count the copies that would be sent."""
    counts.done += len(copies)
    for copy in copies:
        counts.routes[copy.routing_key] = counts.routes.get(copy.routing_key, 0) + 1
        counts.note(f"{copy.letter.id}: would go to {copy.routing_key}")
        if not change.is_empty and len(counts.differences) < MAX_SHOWN:
            counts.differences.append(_compare(copy, registry))


def _compare(copy: RedriveMessage, registry: Registry) -> LetterDifference:
    size = len(copy.letter.body)
    if size > MAX_COMPARED_BYTES:
        return LetterDifference(copy.letter.id, (f"not compared: it has {size:,} bytes",))
    before = json.loads(copy.letter.body)
    after = json.loads(copy.message.encode())
    # Leave out the fields that every redrive changes.
    fields = ("job_type", "priority", "payload")
    shown_before, shown_after = (
        {name: each[name] for name in fields if name in each} for each in (before, after)
    )
    for each, whole in ((shown_before, before), (shown_after, after)):
        metadata = whole.get("metadata")
        if isinstance(metadata, dict):
            names = ("max_attempts", "expires_at")
            each["metadata"] = {name: metadata.get(name) for name in names}
    secrets = registry.secrets_of(copy.message.job_type)
    shown_after["payload"] = hide_secrets(
        shown_after["payload"], secrets, shown_before.get("payload")
    )
    shown_before["payload"] = hide_secrets(
        shown_before.get("payload"), registry.secrets_of(before["job_type"])
    )
    shown_before["routing_key"] = copy.letter.info.routing_key
    shown_after["routing_key"] = copy.routing_key
    return LetterDifference(copy.letter.id, tuple(difference(shown_before, shown_after)))

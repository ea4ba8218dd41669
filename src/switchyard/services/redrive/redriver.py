"""Going through `jobs.dead` once: redrive what a filter matches, or tell what would be.

Publish, confirm, then acknowledge. Interrupted at any moment, a letter is still in `jobs.dead`, or
its copy is in its lane, or both: the ledger lets only one copy run. For redrives with a record,
that wait, pause and go on, see `services.redrive.operations`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from switchyard.broker.dead.scan import Letter, Scan
from switchyard.broker.errors import LaneFull
from switchyard.broker.lanes import LANES, Lane
from switchyard.broker.message import now
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.services.dead.changes import Change
from switchyard.services.dead.letters import LetterFilter
from switchyard.services.dead.scan import scanning_in_turn
from switchyard.services.jobs.registry import Registry
from switchyard.services.ledger import Ledger
from switchyard.services.ledger.leases import Wait
from switchyard.services.redrive.sending import (
    Copy,
    Room,
    Sender,
    Tally,
    refusal,
)

__all__ = ["Change", "LetterFilter", "Redriver", "Tally"]

BATCH = 200
"""Letters looked up, published and confirmed together."""


class Redriver:
    """Goes through `jobs.dead` and sends back what a filter matches."""

    def __init__(
        self,
        settings: BrokerSettings,
        registry: Registry,
        ledger: Ledger,
        *,
        lanes: tuple[Lane, ...] = LANES,
        wait: Wait = asyncio.sleep,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._ledger = ledger
        self._lanes = lanes
        self._wait = wait

    async def redrive(
        self,
        which: LetterFilter,
        change: Change,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        remote: bool = False,
    ) -> Tally:
        """Redrive the letters that match, oldest first, at most `limit` of them; what a lane has
        no room for stays. With `remote` somebody outside has asked for the change.

        With `dry_run` nothing is published, and the tally says what would happen. Raises
        BrokerAway, LedgerUnavailable: then every letter not done is still in its place.
        """
        tally = Tally()
        sender = Sender(self._registry, self._ledger, change, lanes=self._lanes, remote=remote)
        async with (
            Publisher(self._settings, name="redrive") as publisher,
            aclosing(self._batches(which, tally, limit)) as batches,
        ):
            async for batch, scan in batches:
                copies = await sender.prepare(batch, tally, drop=not dry_run)
                if dry_run:
                    would_go(copies, tally)
                else:
                    fitting = await self._fitting(copies, scan, tally)
                    for copy, error in await sender.send(publisher, fitting, tally):
                        tally.refused += 1
                        tally.note(f"{copy.letter.id}: {refusal(error)}")
                if tally.refused:
                    break  # a full lane stays full: the rest would be refused one by one
        return tally

    async def _batches(
        self, which: LetterFilter, tally: Tally, limit: int | None
    ) -> AsyncGenerator[tuple[list[Letter], Scan], None]:
        moment = now()
        async with scanning_in_turn(self._settings, self._ledger, self._wait) as scan:
            batch: list[Letter] = []
            async for letter in scan.letters():
                tally.scanned += 1
                if which.matches(letter, moment):
                    tally.matched += 1
                    batch.append(letter)
                full = limit is not None and tally.matched >= limit
                if len(batch) >= BATCH or full:
                    yield batch, scan
                    batch = []
                if full:
                    break
            yield batch, scan

    async def _fitting(self, copies: Sequence[Copy], scan: Scan, tally: Tally) -> list[Copy]:
        room = Room(self._lanes, scan.depth)
        fitting: list[Copy] = []
        for copy in copies:
            if await room.take(copy.queue):
                fitting.append(copy)
            else:
                tally.refused += 1
                full = LaneFull(copy.routing_key, dead_lettered=False)
                tally.note(f"{copy.letter.id}: {refusal(full)}")
        return fitting


def would_go(copies: Sequence[Copy], tally: Tally) -> None:
    """Count copies as they would go."""
    tally.done += len(copies)
    for copy in copies:
        tally.routes[copy.routing_key] = tally.routes.get(copy.routing_key, 0) + 1
        tally.note(f"{copy.letter.id}: would go to {copy.routing_key}")

"""What a redrive would do: which letters would go where, and which could not."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from switchyard.broker.lanes import LANES, Lane
from switchyard.broker.message import now
from switchyard.broker.settings import BrokerSettings
from switchyard.services.dead.letters import DeadJob
from switchyard.services.dead.scan import waiting_ids
from switchyard.services.dead.stored import stored_letters
from switchyard.services.jobs.registry import Registry
from switchyard.services.ledger import Ledger
from switchyard.services.ledger.leases import Wait
from switchyard.services.redrive.redriver import BATCH, Redriver, would_go
from switchyard.services.redrive.sending import Sender, Tally
from switchyard.services.redrive.spec import RedriveSpec


async def plan_redrive(
    settings: BrokerSettings,
    registry: Registry,
    ledger: Ledger,
    spec: RedriveSpec,
    *,
    lanes: tuple[Lane, ...] = LANES,
    wait: Wait = asyncio.sleep,
) -> Tally:
    """The redrive's tally as it would be, without publishing or changing anything. `wait` is
    awaited while others go through `jobs.dead`.

    Raises InvalidRedrive, BrokerAway, LedgerUnavailable.
    """
    spec.check()
    if not spec.from_ledger:
        redriver = Redriver(settings, registry, ledger, lanes=lanes, wait=wait)
        return await redriver.redrive(
            spec.which, spec.change, dry_run=True, limit=spec.limit, remote=spec.remote
        )
    present = await waiting_ids(settings, ledger, wait)
    tally = Tally()
    sender = Sender(registry, ledger, spec.change, lanes=lanes, remote=spec.remote)
    batch: list[DeadJob] = []
    letters = stored_letters(ledger, spec.which, now(), present, also_waiting=True)
    async with aclosing(letters):
        async for letter in letters:
            tally.scanned += 1
            tally.matched += 1
            batch.append(letter)
            if len(batch) >= BATCH:
                would_go(await sender.prepare(batch, tally, drop=False), tally)
                batch = []
            if spec.limit is not None and tally.matched >= spec.limit:
                break
    would_go(await sender.prepare(batch, tally, drop=False), tally)
    return tally

"""Run redrives in passes through `jobs.dead`, by their rate, canary and outcomes.

A scan holds the letters that it has read, and the broker limits how long. So a pass ends after
HOLD_SECONDS, and the next one begins anew. Letters are recorded in the ledger before they are sent:
so none is sent twice on purpose, and one whose job died again is left alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

from switchyard.broker.lanes import LANES, Lane
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.depths import queue_depths
from switchyard.services.engine.bulk.halting import Halted
from switchyard.services.engine.bulk.hot_traffic import HotTraffic
from switchyard.services.engine.bulk.session import BulkSession
from switchyard.services.engine.dead.indexed import open_index_in_turn
from switchyard.services.engine.dead.jq_program import ExpressionStopped
from switchyard.services.engine.dead.scan import recording_wait
from switchyard.services.engine.identity.broker import system_guard
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.redrive.letter_sources import Letters, open_queued, open_stored
from switchyard.services.engine.redrive.redrive_pass import RedrivePass
from switchyard.services.engine.redrive.redrive_progress import (
    STATE_POLL_INTERVAL,
    RedriveRun,
)
from switchyard.services.engine.redrive.sending import LetterSender, QueueCapacity
from switchyard.services.engine.redrive.spec import KIND, RedriveSpec

HOLD_SECONDS = 120.0
"""Seconds that a pass may hold letters: RabbitMQ closes a channel that holds one for 30 minutes,
and other redrives wait for their turn meanwhile."""


class RedriveHandler:
    """Runs redrives; see `services.engine.bulk.runner`."""

    kind = KIND

    def __init__(
        self,
        settings: BrokerSettings,
        registry: Registry,
        ledger: Ledger,
        *,
        traffic: HotTraffic | None = None,
        lanes: tuple[Lane, ...] = LANES,
        hold: float = HOLD_SECONDS,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._ledger = ledger
        self._traffic = traffic or HotTraffic(ledger.workers)
        self._lanes = lanes
        self._hold = hold

    async def run(self, session: BulkSession) -> None:
        """Make passes until no matching letter is left that can be sent."""
        spec = RedriveSpec.from_json(session.operation.spec)
        run = RedriveRun(session, spec, self._ledger, self._traffic)
        await run.begin()
        sender = LetterSender(
            self._registry,
            self._ledger,
            spec.change,
            lanes=self._lanes,
            remote=spec.remote,
        )
        url = self._settings.require_amqp_url()
        try:
            async with Publisher(
                self._settings, name=session.id, guard=system_guard(self._settings, self._ledger)
            ) as publisher:
                while not run.has_enough:
                    await run.wait_for_rate()
                    async with self._source(spec, run) as letters, queue_depths(url) as depth:
                        redrive_pass = RedrivePass(
                            run, sender, publisher, QueueCapacity(self._lanes, depth), self._hold
                        )
                        if await redrive_pass.run(letters):
                            break
                    # Other redrives have waited for their turn meanwhile.
                    await session.sleep(STATE_POLL_INTERVAL)
            await run.drain()
        except (Halted, ExpressionStopped) as halted:
            await run.save_notes(force=True)
            await session.finish(BulkState.HALTED, str(halted))
            return
        await run.save_notes(force=True)
        await session.finish(note=run.final_note)

    def _source(self, spec: RedriveSpec, run: RedriveRun) -> AbstractAsyncContextManager[Letters]:
        if spec.from_ledger:
            wait = recording_wait(run.session)
            return open_stored(self._settings, self._ledger, spec.which, run.created_at, wait)
        # An edit can be undone later only with the original, which is read from the queue.
        return (
            self._open_indexed(spec, run) if spec.change.is_empty else self._open_queued(spec, run)
        )

    def _open_queued(
        self, spec: RedriveSpec, run: RedriveRun
    ) -> AbstractAsyncContextManager[Letters]:
        wait = recording_wait(run.session)
        return open_queued(
            self._settings, self._ledger, spec.which, run.created_at, wait, includes=run.takes
        )

    @asynccontextmanager
    async def _open_indexed(self, spec: RedriveSpec, run: RedriveRun) -> AsyncIterator[Letters]:
        async with open_index_in_turn(
            self._settings,
            self._ledger,
            spec.which,
            run.created_at,
            recording_wait(run.session),
            limit=spec.limit,
        ) as indexed:
            if indexed is not None:

                async def matching_letters() -> Letters:
                    async for letter in indexed:
                        if run.takes(letter):
                            yield letter

                async with aclosing(matching_letters()) as letters:
                    yield letters
                return
        async with self._open_queued(spec, run) as letters:
            yield letters

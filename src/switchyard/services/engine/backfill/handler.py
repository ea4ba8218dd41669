"""Run backfills for the `BulkRunner`: open the source and the connections, then start a
`BackfillRun`."""

from __future__ import annotations

from switchyard.broker.lanes import LANES, Lane
from switchyard.broker.publish.publisher import Publisher
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.settings import Settings
from switchyard.services.engine.backfill.backfill_run import BackfillRun
from switchyard.services.engine.backfill.gate import DEPTHS_TTL
from switchyard.services.engine.backfill.queue_quota import make_target_finder
from switchyard.services.engine.backfill.sources import (
    InvalidBackfill,
    SourceFailed,
    Sources,
    SourceUnreachable,
)
from switchyard.services.engine.backfill.spec import KIND, BackfillSpec, Plan
from switchyard.services.engine.backfill.starting import Backfills
from switchyard.services.engine.bulk.hot_traffic import HotTraffic
from switchyard.services.engine.bulk.session import BulkFailed, BulkSession, TryLater
from switchyard.services.engine.identity.broker import system_guard
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.lane_pressure import LanePressure


class BackfillHandler:
    """Runs operations of kind `backfill`."""

    kind = KIND

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        ledger: Ledger,
        sources: Sources,
        *,
        traffic: HotTraffic | None = None,
        lanes: tuple[Lane, ...] = LANES,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._ledger = ledger
        self._sources = sources
        self._traffic = traffic or HotTraffic(ledger.workers)
        self._lanes = lanes

    async def run(self, session: BulkSession) -> None:
        """Run a backfill. Raises as BulkHandler does."""
        try:
            spec = BackfillSpec.from_record(session.operation.spec)
            backfills = Backfills(
                self._settings,
                self._registry,
                self._ledger,
                Storage(self._settings.files_url),
                self._sources,
            )
            source = backfills.open_source(spec, session.operation.created_at)
            ids = await self._ledger.system.job_ids()
            plan = Plan.from_spec(session.id, spec, type(source), self._registry, ids)
            pressure = LanePressure(
                self._settings,
                self._registry,
                ledger=self._ledger,
                fresh_for=DEPTHS_TTL,
                lanes=self._lanes,
            )
            async with (
                Publisher(
                    self._settings,
                    name=session.id,
                    guard=system_guard(self._settings, self._ledger),
                ) as publisher,
                pressure,
            ):
                backfill_run = BackfillRun(
                    self._settings,
                    session,
                    self._ledger,
                    publisher,
                    plan,
                    source,
                    pressure,
                    self._traffic,
                    find_target=make_target_finder(self._sources, self._registry),
                    fair_from=self._settings.fair_from,
                )
                await backfill_run.run()
        except (InvalidBackfill, SourceFailed) as error:
            raise BulkFailed(str(error)) from error
        except SourceUnreachable as error:
            raise TryLater(str(error)) from error

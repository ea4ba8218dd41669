"""The handlers of all kinds of bulk operations."""

from __future__ import annotations

from collections.abc import Iterable

from switchyard.services.common.settings import Settings
from switchyard.services.engine.backfill.handler import BackfillHandler
from switchyard.services.engine.backfill.sources import Sources
from switchyard.services.engine.bulk.handler import BulkHandler
from switchyard.services.engine.bulk.hot_traffic import HotTraffic
from switchyard.services.engine.dead.purge import PurgeHandler
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.redrive.handler import RedriveHandler


def bulk_handlers(
    settings: Settings, registry: Registry, ledger: Ledger, modules: Iterable[str]
) -> list[BulkHandler]:
    """Make a handler for every kind; `modules` may have sources of backfills. Raises
    InvalidBackfill."""
    traffic = HotTraffic(ledger.workers)
    return [
        BackfillHandler(settings, registry, ledger, Sources.load(modules), traffic=traffic),
        RedriveHandler(settings, registry, ledger, traffic=traffic),
        PurgeHandler(settings, ledger),
    ]

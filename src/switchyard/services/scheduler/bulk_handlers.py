"""What runs each kind of bulk operation."""

from __future__ import annotations

from collections.abc import Iterable

from switchyard.services.backfill.handler import BackfillHandler
from switchyard.services.backfill.sources import Sources
from switchyard.services.bulk.handler import BulkHandler
from switchyard.services.bulk.hot_traffic import HotTraffic
from switchyard.services.dead.purge import PurgeHandler
from switchyard.services.jobs.registry import Registry
from switchyard.services.ledger import Ledger
from switchyard.services.redrive.handler import RedriveHandler
from switchyard.services.settings import Settings


def bulk_handlers(
    settings: Settings, registry: Registry, ledger: Ledger, modules: Iterable[str]
) -> list[BulkHandler]:
    """A handler for every kind; `modules` may have sources of backfills. Raises
    InvalidBackfill."""
    traffic = HotTraffic(ledger)
    return [
        BackfillHandler(settings, registry, ledger, Sources.load(modules), traffic=traffic),
        RedriveHandler(settings, registry, ledger, traffic=traffic),
        PurgeHandler(settings, ledger),
    ]

"""What runs each kind of bulk operation."""

from __future__ import annotations

from collections.abc import Iterable

from services.backfill.handler import BackfillHandler
from services.backfill.sources import Sources
from services.bulk import BulkHandler
from services.hot_traffic import HotTraffic
from services.ledger import Ledger
from services.purge import PurgeHandler
from services.redrive_operations import RedriveHandler
from services.registry import Registry
from services.settings import Settings


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

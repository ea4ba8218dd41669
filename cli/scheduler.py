"""`jobctl scheduler`: what is due is published, what a crash left behind is healed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.common import IncludeOption, load_registry, load_settings, open_ledger, require_broker, run

if TYPE_CHECKING:
    from services.registry import Registry
    from services.settings import Settings


def scheduler(include: IncludeOption = None) -> None:
    """Publish what is due, and index dead letters, until SIGTERM or Ctrl-C.

    Run two or more: one is active, the others stand by and take over within seconds.
    """
    from services.logs import configure

    settings = load_settings()
    require_broker(settings)
    registry = load_registry(settings, include)
    configure(settings.log_level, settings.log_format)
    run(_schedule(settings, registry))


async def _schedule(settings: Settings, registry: Registry) -> None:
    from broker.lanes import DEAD_LOG_QUEUE
    from cli.queues import require_queues
    from cli.stopping import stop_on_signals
    from services.scheduler import Scheduler

    await require_queues(settings.require_amqp_url(), [DEAD_LOG_QUEUE])
    async with open_ledger(settings) as ledger:
        scheduling = Scheduler(settings, registry, ledger)
        stop_on_signals(scheduling.stop)
        await scheduling.run()

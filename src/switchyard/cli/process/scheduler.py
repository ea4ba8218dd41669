"""`jobctl scheduler`: publish what is due, repair what a crash left behind, run bulk operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from switchyard.cli.base.common import (
    IncludeOption,
    MetricsHostOption,
    MetricsPortOption,
    load_registry,
    load_settings,
    open_ledger,
    require_broker,
    run,
    with_metrics_at,
)

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.jobs.registry import Registry


def scheduler(
    include: IncludeOption = None,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
) -> None:
    """Publish due jobs, run schedules and backfills, and index dead letters, until Ctrl-C.

    Run two or more processes: one is active, the others take over within seconds. Backfills are
    shared among all of them.
    """
    from switchyard.services.common.logs import configure
    from switchyard.services.common.tracing import tracing

    settings = with_metrics_at(load_settings(), metrics_host, metrics_port)
    require_broker(settings)
    registry = load_registry(settings, include)
    configure(settings.log_level, settings.log_format)
    with tracing("scheduler"):
        run(_schedule(settings, registry, [*settings.modules, *(include or ())]))


async def _schedule(settings: Settings, registry: Registry, modules: Sequence[str]) -> None:
    import asyncio

    from switchyard.broker.errors import WrongSystem
    from switchyard.broker.lanes import DEAD_LOG_QUEUE
    from switchyard.cli.base.common import require_queues
    from switchyard.cli.base.long_running import settle_memory, showing_metrics
    from switchyard.cli.base.stopping import stop_on_signals
    from switchyard.services.engine.bulk.runner import BulkRunner
    from switchyard.services.engine.identity.broker import require_same_system
    from switchyard.services.engine.jobs.registered_types import JobTypeSync
    from switchyard.services.engine.monitoring.loop_watch import LoopWatch, save_in_ledger
    from switchyard.services.engine.monitoring.metrics import Metrics, watch_ledger
    from switchyard.services.engine.monitoring.startup import wait_until_available
    from switchyard.services.engine.monitoring.system_metrics import SystemMetrics
    from switchyard.services.engine.scheduler.duties import bulk_handlers
    from switchyard.services.engine.scheduler.scheduler import Scheduler
    from switchyard.services.engine.schedules.file import read_file

    if settings.schedules is not None:
        read_file(settings.schedules, registry)  # what is wrong with it is said at once
    queues = [DEAD_LOG_QUEUE]
    url = settings.require_amqp_url()
    await wait_until_available("broker", lambda: require_queues(url, queues))
    settle_memory()
    async with open_ledger(settings, wait=True) as ledger:
        await wait_until_available("broker", lambda: require_same_system(settings, ledger))
        metrics = Metrics() if settings.metrics_port is not None else None
        if metrics is not None:
            ledger.observe(watch_ledger(metrics))
            SystemMetrics(settings, registry, ledger).install(metrics)
        scheduling = Scheduler(settings, registry, ledger, metrics=metrics)
        handlers = bulk_handlers(settings, registry, ledger, modules)
        bulk = BulkRunner(ledger, handlers, when_due=scheduling.bulk_due)

        def stop() -> None:
            scheduling.stop()
            bulk.stop()

        async def schedule() -> WrongSystem | None:
            """Run the scheduler until it is stopped. Bulk operations end with it in order when it
            finds the wrong system, which is returned."""
            try:
                await scheduling.run()
            except WrongSystem as error:
                bulk.stop()
                return error
            return None

        registry.process = f"the scheduler {scheduling.holder}"
        types = JobTypeSync(
            registry, ledger, own_types=registry, holder=scheduling.holder, is_worker=False
        )
        watch = LoopWatch(
            scheduling.holder, save_in_ledger(settings.ledger_url), clock=ledger.clock.time
        )
        if metrics is not None:
            metrics.add_source(watch.metric_samples)
        stop_on_signals(stop)
        async with (
            watch.watching(),
            types.running(),
            showing_metrics(metrics, settings, lambda: True),
            asyncio.TaskGroup() as group,
        ):
            scheduled = group.create_task(schedule())
            group.create_task(bulk.run())
        if (refused := scheduled.result()) is not None:
            raise refused

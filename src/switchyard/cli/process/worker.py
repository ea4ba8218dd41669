"""`jobctl worker`: a process that works the jobs of one or more kinds."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

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
    from switchyard.services.engine.runtime.worker import WorkerPlan

ALL = "all"


def worker(
    kinds: Annotated[
        list[str],
        typer.Argument(
            metavar="KIND",
            help="Worker kinds: ingest, ocr, llm, embed, link, reindex, your own; or all.",
        ),
    ],
    lanes: Annotated[
        str | None,
        typer.Option(
            metavar="LANE,…",
            help="Only these lanes, separated by commas. Default: all lanes of the kind.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help="Jobs of each kind that run at the same time. Default: JOBS_WORKER_CONCURRENCY.",
        ),
    ] = None,
    reserve: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Slots of --concurrency that only the lane with the highest priority may use. "
            "Default: JOBS_WORKER_RESERVE.",
        ),
    ] = None,
    include: IncludeOption = None,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="For development: restart when one of your modules changes."),
    ] = False,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
) -> None:
    """Run the jobs of one or more worker kinds until SIGTERM or Ctrl-C.

    Running jobs then get JOBS_SHUTDOWN_GRACE to finish; the others go back to their queues. A
    second signal ends the worker at once, and other workers take over its jobs.

    Examples:

    ```
    jobctl worker ingest --concurrency 4
    jobctl worker llm embed --lanes hot --metrics-port 9101
    ```
    """
    from switchyard.services.common.logs import configure
    from switchyard.services.common.tracing import tracing

    settings = with_metrics_at(load_settings(), metrics_host, metrics_port)
    require_broker(settings)
    if reload:
        from switchyard.cli.process.reload import Reloader

        arguments = [each for each in sys.argv[1:] if each != "--reload"]
        code = Reloader(arguments, (*settings.modules, *(include or ()))).run()
        raise typer.Exit(code)
    registry = load_registry(settings, include)
    plans = make_plans(
        settings,
        registry,
        kinds,
        lanes=None
        if lanes is None
        else [name.strip() for name in lanes.split(",") if name.strip()],
        concurrency=concurrency,
        reserve=reserve,
    )
    configure(settings.log_level, settings.log_format)
    with tracing("worker"):
        run(_work(settings, registry, plans), endures_exits=True)


def make_plans(
    settings: Settings,
    registry: Registry,
    kinds: list[str],
    *,
    lanes: list[str] | None = None,
    concurrency: int | None = None,
    reserve: int | None = None,
) -> list[WorkerPlan]:
    """Return one plan for each kind. Raises UnknownWorker."""
    from switchyard.services.engine.runtime.worker import plan_for

    if ALL in kinds:
        kinds = sorted({job_type.worker for job_type in registry})
    return [
        plan_for(
            registry,
            kind,
            lanes=lanes,
            slots=concurrency or settings.slots_of(kind),
            reserve=settings.worker_reserve if reserve is None else reserve,
        )
        for kind in dict.fromkeys(kinds)
    ]


async def _work(settings: Settings, registry: Registry, plans: list[WorkerPlan]) -> None:
    from switchyard.cli.base.common import require_queues
    from switchyard.cli.base.long_running import settle_memory, showing_metrics
    from switchyard.cli.base.stopping import retire_on_signal, stop_on_signals
    from switchyard.services.engine.identity.broker import require_same_system
    from switchyard.services.engine.identity.claiming import claiming
    from switchyard.services.engine.monitoring.metrics import Metrics, watch_ledger
    from switchyard.services.engine.monitoring.startup import wait_until_available
    from switchyard.services.engine.runtime.worker import Worker

    queues = [queue for plan in plans for queue in plan.queues]
    url = settings.require_amqp_url()
    await wait_until_available("broker", lambda: require_queues(url, queues))
    settle_memory()
    async with open_ledger(settings, wait=True) as ledger:
        await wait_until_available("broker", lambda: require_same_system(settings, ledger))
        metrics = Metrics() if settings.metrics_port is not None else None
        if metrics is not None:
            ledger.observe(watch_ledger(metrics))
        worker = Worker(settings, registry, ledger, plans, metrics=metrics)
        stop_on_signals(worker.stop)
        retire_on_signal(worker.retire)
        async with (
            claiming(settings, ledger, worker.stop),
            showing_metrics(metrics, settings, lambda: worker.is_consuming),
        ):
            await worker.run()

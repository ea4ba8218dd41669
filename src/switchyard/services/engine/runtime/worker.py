"""A worker process: one or more kinds of worker, each with its own lanes and slots."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from switchyard.broker.consume.consumer import LaneConsumer
from switchyard.broker.lanes import LANES, Lane, queue_name
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.task_supervisor import TaskSupervisor, end_tasks
from switchyard.broker.wire.reconnector import Reconnector
from switchyard.services.common.errors import NotFoundError
from switchyard.services.common.instance_ids import new_instance_id, process_mark
from switchyard.services.common.process_memory import process_memory
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.context import ProcessResources
from switchyard.services.engine.jobs.registered_types import JobTypeSync
from switchyard.services.engine.jobs.registry import JobType, Registry
from switchyard.services.engine.jobs.retry import RetryPolicy
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.job_events import announce
from switchyard.services.engine.monitoring.loop_watch import LoopWatch, save_in_ledger
from switchyard.services.engine.monitoring.metrics import Metrics, show_publishes
from switchyard.services.engine.monitoring.startup import wait_until_available
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.runtime.attempt_metrics import AttemptMetrics, WorkerGauges
from switchyard.services.engine.runtime.attempt_reporter import AttemptReporter
from switchyard.services.engine.runtime.attempt_writer import AttemptWriter
from switchyard.services.engine.runtime.claims import Claims
from switchyard.services.engine.runtime.execution import Executor
from switchyard.services.engine.runtime.followups import FollowUpPublisher
from switchyard.services.engine.runtime.handler_threads import HandlerThreads
from switchyard.services.engine.runtime.heartbeats import keep_beating
from switchyard.services.engine.runtime.permit_batching import PermitRequestBatcher
from switchyard.services.engine.runtime.permits import PermitClient
from switchyard.services.engine.runtime.runner import Runner
from switchyard.services.engine.runtime.suspect_slots import SuspectSlots
from switchyard.services.engine.runtime.worker_commands import ControlListener
from switchyard.services.engine.wings import missing_wings_hint

FINAL_DRAIN_TIMEOUT = 2.0
"""Seconds after the grace to publish and record the follow-ups of ended handlers."""
UNHELD_CHECK_INTERVAL = 20.0
"""Seconds between checks for claims of this worker under which nothing runs."""
LEDGER_PROBE_INTERVAL = 0.5
"""Seconds between probes of a ledger that is away."""
MAX_HELPERS = 4
"""Processes that a worker may start on any host, if all its job types run in the event loop."""
LANE_WORKER_PRIORITY = 10
"""Consumer priority of a worker that was started for one lane only: it gets that lane's jobs before
general workers."""


class UnknownWorker(NotFoundError):
    """No job type has this kind of worker, or none in that lane."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Lanes and slots of one kind of worker."""

    kind: str
    lanes: tuple[str, ...]
    """Most urgent first."""
    slots: int
    reserve: int
    consumer_priority: int

    @property
    def queues(self) -> list[str]:
        return [queue_name(lane, self.kind) for lane in self.lanes]


def plan_for(
    registry: Registry,
    kind: str,
    *,
    lanes: Sequence[str] | None = None,
    slots: int,
    reserve: int | None = None,
) -> WorkerPlan:
    """Return the plan of a worker of that kind, for the lanes named or for all that it has.

    `reserve` None means 1 where there are two slots or more. Raises UnknownWorker.
    """
    all_lanes = registry.lanes_of(kind)
    if not all_lanes:
        kinds = ", ".join(sorted({job_type.worker for job_type in registry}))
        raise UnknownWorker(
            f"no job type is worked by {kind!r}; kinds with work are: {kinds}; those of your own "
            "job types are known where JOBS_MODULES names their modules" + missing_wings_hint()
        )
    unknown_lanes = sorted(set(lanes or ()) - set(all_lanes))
    if unknown_lanes:
        raise UnknownWorker(
            f"{kind} has no work in {', '.join(unknown_lanes)}; its lanes are: "
            f"{', '.join(all_lanes)}"
        )
    chosen = tuple(lane for lane in all_lanes if lanes is None or lane in lanes)
    max_reserve = slots - 1
    return WorkerPlan(
        kind=kind,
        lanes=chosen,
        slots=slots,
        reserve=min(1, max_reserve) if reserve is None else min(reserve, max_reserve),
        consumer_priority=LANE_WORKER_PRIORITY if len(chosen) == 1 < len(all_lanes) else 0,
    )


def _max_processes(plan: WorkerPlan, registry: Registry) -> int:
    """Return how many processes the worker may start: one for each slot only if its jobs run in
    processes. Jobs in the event loop mostly wait for servers, so there may be many more of them
    than this host can have processes."""
    if any(each.worker == plan.kind and each.isolation == "process" for each in registry):
        return plan.slots
    return min(plan.slots, max(MAX_HELPERS, os.cpu_count() or 1))


class Worker:
    """Consumes its plans' queues until `stop`. One instance is one start of a worker."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        ledger: Ledger,
        plans: Iterable[WorkerPlan],
        *,
        lanes: tuple[Lane, ...] = LANES,
        executor: Callable[[int], Executor] = Executor,
        metrics: Metrics | None = None,
    ) -> None:
        self.worker_id = new_instance_id()
        self._settings = settings
        self._registry = registry
        self._ledger = ledger
        self._plans = tuple(plans)
        self._log = structlog.get_logger("worker").bind(worker_id=self.worker_id)
        self._stopping = asyncio.Event()
        self._second_signal = asyncio.Event()
        self._is_retiring = False
        """Whether running jobs may take as long as they need; a second signal ends that."""
        self._ledger_away = asyncio.Event()
        self._claim_requested = asyncio.Event()
        """Set whenever one of this worker's jobs is about to be claimed."""
        self._hot_jobs_reported = 0
        """Number of claimed hot jobs that the last heartbeat has told the ledger."""
        self._reconnector = Reconnector(
            settings.require_amqp_url(), f"worker {self.worker_id}", self._log
        )
        self._publisher = Publisher(settings, name=f"worker {self.worker_id} publisher")
        self._resources = ProcessResources()
        kinds = [plan.kind for plan in self._plans]
        attempt_metrics = None if metrics is None else AttemptMetrics(metrics, registry, kinds)
        reporter = AttemptReporter(
            partial(announce, self._publisher),
            self.worker_id,
            ledger.clock,
            metrics=attempt_metrics,
        )
        self.counters = reporter.counters
        attempt_writer = AttemptWriter(ledger, self._on_ledger_away)
        policy = RetryPolicy.from_levels(settings.retry_delays)
        follow_up = FollowUpPublisher(self._publisher, attempt_writer, policy, self.worker_id)
        batcher = PermitRequestBatcher(min((plan.slots for plan in self._plans), default=1))
        self._permits = PermitClient(ledger, follow_up, self.counters, settings.limits, batcher)
        self._executors = [executor(_max_processes(plan, registry)) for plan in self._plans]
        self._runners = [
            Runner(
                settings=settings,
                registry=registry,
                ledger=ledger,
                claims=Claims(
                    ledger=ledger,
                    attempt_writer=attempt_writer,
                    follow_up=follow_up,
                    counters=self.counters,
                    worker=plan.kind,
                    worker_id=self.worker_id,
                    takeover_after=settings.takeover_after,
                    suspects=SuspectSlots(plan.lanes, plan.slots),
                    lanes=lanes,
                    claim_requested=self._claim_requested,
                ),
                permits=self._permits,
                executor=executor,
                follow_up=follow_up,
                attempt_writer=attempt_writer,
                reporter=reporter,
                resources=self._resources,
            )
            for plan, executor in zip(self._plans, self._executors, strict=True)
        ]
        self._consumers = [
            LaneConsumer(
                self._reconnector,
                plan.queues,
                runner.handle,
                self._log,
                slots=plan.slots,
                reserve=plan.reserve,
                consumer_priority=plan.consumer_priority,
                tag=self.worker_id,
            )
            for plan, runner in zip(self._plans, self._runners, strict=True)
        ]
        self._type_sync = JobTypeSync(
            registry, ledger, own_types=self._own_types(), holder=self.worker_id, is_worker=True
        )
        self._watch = LoopWatch(
            self.worker_id, save_in_ledger(settings.ledger_url), clock=ledger.clock.time
        )
        if metrics is not None:
            metrics.add_source(self._watch.metric_samples)
            show_publishes(metrics, self._publisher.counts)
            gauges = WorkerGauges(self.worker_id, self._plans, self._consumers, self.counters)
            metrics.add_source(gauges.metric_samples)
            metrics.add_source(self._resources.metric_samples)

    async def run(self) -> None:
        """Work until `stop`; then finish running jobs within the grace, and return the others to
        their queues. If the ledger is away at the start, wait for it.

        Raises LedgerError when the ledger can't be used at the start, BackgroundFailed when the
        worker can't send heartbeats any more.
        """
        asyncio.get_running_loop().set_default_executor(HandlerThreads())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            async with self._watch.watching():
                if await self._try_to_register(stopping):
                    async with self._type_sync.running():
                        await self._work(stopping)
        finally:
            await end_tasks(stopping)
            await self._close()

    async def _try_to_register(self, stopping: asyncio.Task[bool]) -> bool:
        """Register this worker; return False if it is stopped while the ledger is away."""
        registering = asyncio.create_task(wait_until_available("ledger", self._register))
        await asyncio.wait((stopping, registering), return_when=asyncio.FIRST_COMPLETED)
        if registering.done():
            registering.result()
            return True
        await end_tasks(registering)
        return False

    async def _work(self, stopping: asyncio.Task[bool]) -> None:
        self._publisher.connect_soon()  # so that the first events are published, too
        background = TaskSupervisor(self._log)
        # Vital: without these two, a worker would look alive without working.
        background.start("beat", self._keep_beating, vital=True)
        background.start("watch ledger", self._watch_ledger, vital=True)
        background.start("unheld claims", self._keep_releasing_unheld_claims)
        self._permits.start(background)
        background.start(
            "control", ControlListener(self._reconnector, self._on_cancel, self._log).run
        )
        consuming = [asyncio.create_task(consumer.run()) for consumer in self._consumers]
        try:
            ends: tuple[asyncio.Future[Any], ...] = (stopping, background.failed, *consuming)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for consumer in self._consumers:
                consumer.stop()
            # Tell the ledger at once that this worker stops: the next heartbeat is seconds off.
            stop_beat = asyncio.create_task(self._beat())
            if self._is_retiring:
                await self._wait_for_all_jobs(background.failed)
            await self._drain()
            await asyncio.wait(consuming, timeout=FINAL_DRAIN_TIMEOUT)
            await background.close()
            await end_tasks(stop_beat, *consuming)
        for task in (*consuming, background.failed):
            if not task.cancelled():
                task.result()

    def stop(self) -> None:
        """Take no more jobs; `run` returns when the running ones have ended or their grace is
        over. Safe to call from a signal handler of the event loop, and more than once."""
        if not self._stopping.is_set():
            self._log.info("worker stopping", running=self.running)
        self._second_signal.set()
        self._stopping.set()

    def retire(self) -> None:
        """Take no more jobs; `run` returns when the running ones have ended, however long they
        take, or as after `stop`, once that is called. Safe to call where `stop` is."""
        if not self._stopping.is_set():
            self._log.info("worker retiring", running=self.running)
            self._is_retiring = True
        self._stopping.set()

    @property
    def running(self) -> int:
        """Number of running jobs."""
        return sum(consumer.running for consumer in self._consumers)

    @property
    def is_consuming(self) -> bool:
        """Whether this worker has a consumer on each of its queues, and takes jobs."""
        return not self._ledger_away.is_set() and "away" not in self.queue_states.values()

    @property
    def queue_states(self) -> dict[str, str]:
        """Each queue's state: `away`, `consuming` or `resting`."""
        return {
            name: state for consumer in self._consumers for name, state in consumer.states.items()
        }

    # --- life -------------------------------------------------------------------------------

    async def _register(self) -> None:
        await self._ledger.workers.register_worker(
            self.worker_id,
            kinds=[plan.kind for plan in self._plans],
            lanes=sorted({lane for plan in self._plans for lane in plan.lanes}),
            host=socket.gethostname(),
            pid=os.getpid(),
            concurrency=sum(plan.slots for plan in self._plans),
            mark=process_mark(),
            job_types=[each.name for each in self._own_types()],
        )
        for plan in self._plans:
            self._log.info(
                "worker started",
                kind=plan.kind,
                queues=plan.queues,
                slots=plan.slots,
                reserve=plan.reserve,
            )

    def _own_types(self) -> list[JobType]:
        """Return the job types that this worker can run."""
        kinds = {plan.kind for plan in self._plans}
        return [each for each in self._registry if each.worker in kinds]

    async def _drain(self) -> None:
        grace = self._settings.shutdown_grace
        if all(await asyncio.gather(*(consumer.drain(grace) for consumer in self._consumers))):
            return
        self._log.warning("jobs interrupted", reason="shutdown grace over", running=self.running)
        for runner in self._runners:
            runner.interrupt()
        if all(
            await asyncio.gather(
                *(consumer.drain(FINAL_DRAIN_TIMEOUT) for consumer in self._consumers)
            )
        ):
            return
        aborted = await asyncio.gather(
            *(consumer.abort(FINAL_DRAIN_TIMEOUT) for consumer in self._consumers)
        )
        if not all(aborted):
            self._log.error("jobs abandoned", reason="they do not stop", running=self.running)

    async def _wait_for_all_jobs(self, failed: asyncio.Future[Any]) -> None:
        """Wait until no job runs, a second signal has come, or a vital task has failed."""
        all_drained = asyncio.gather(*(consumer.drain(None) for consumer in self._consumers))
        second_signal = asyncio.create_task(self._second_signal.wait())
        await asyncio.wait(
            (all_drained, second_signal, failed), return_when=asyncio.FIRST_COMPLETED
        )
        await end_tasks(second_signal)
        all_drained.cancel()
        await asyncio.gather(all_drained, return_exceptions=True)

    async def _close(self) -> None:
        await asyncio.gather(*(executor.close() for executor in self._executors))
        await self._resources.close()
        try:
            # Before the broker redelivers the jobs to other workers, which would count crashes.
            await self._ledger.jobs.release_all(self.worker_id, self._ledger.clock.time())
            await self._permits.close()
            await self._ledger.workers.mark_stopped(self.worker_id)
        except LedgerError as error:
            self._log.warning("worker stop not recorded", error=str(error))
        await self._reconnector.close()
        await self._publisher.close()
        self._log.info("worker stopped")

    async def _keep_beating(self) -> None:
        await keep_beating(
            self._beat,
            self._settings.takeover_after,
            is_busy=lambda: any(runner.claims.has_open for runner in self._runners),
            began=self._claim_requested,
        )

    async def _beat(self) -> None:
        hot = self.counters.hot
        try:
            types_version = await self._ledger.workers.beat(
                self.worker_id,
                hot=hot > self._hot_jobs_reported,
                memory_bytes=process_memory(pid for each in self._executors for pid in each.pids),
                is_stopping=self._stopping.is_set(),
            )
            self._hot_jobs_reported = hot
            self._type_sync.sync_if_changed(types_version)
        except LedgerError as error:
            self._log.warning("ledger unreachable", error=str(error))
            self._on_ledger_away()

    async def _keep_releasing_unheld_claims(self) -> None:
        while True:
            await asyncio.sleep(UNHELD_CHECK_INTERVAL)
            try:
                await self.release_unheld_claims()
            except LedgerError as error:
                self._log.warning("unheld claims not checked", error=str(error))

    async def release_unheld_claims(self) -> int:
        """Release claims of this worker in the ledger under which nothing runs here. Such claims
        exist after the ledger was restored from an older copy, and no other worker takes over the
        jobs of a live one. Returns the number of jobs. Raises LedgerError."""
        claims = [
            (job_id, claim_id)
            for job_id, claim_id in await self._ledger.jobs.running_claims(self.worker_id)
            if not any(runner.claims.holds(job_id, claim_id) for runner in self._runners)
        ]
        if not claims:
            return 0
        # A claim that has ended since it was read is left alone.
        released = await self._ledger.jobs.release_unheld_claims(
            self.worker_id, [claim_id for _, claim_id in claims], self._ledger.clock.time()
        )
        if released:
            job_ids = [job_id for job_id, _ in claims]
            self._log.warning("unheld claims released", jobs=released, ids=job_ids[:5])
        return released

    # --- the ledger away --------------------------------------------------------------------

    def _on_ledger_away(self) -> None:
        self._ledger_away.set()

    async def _watch_ledger(self) -> None:
        """Take no jobs while the ledger is away: without a claim nothing may run."""
        while True:
            await self._ledger_away.wait()
            for consumer in self._consumers:
                consumer.pause()
            self._log.warning("worker paused", reason="ledger unreachable")
            while self._ledger_away.is_set():
                await asyncio.sleep(LEDGER_PROBE_INTERVAL)
                try:
                    await self._ledger.check()
                except LedgerError as error:
                    self._log.warning("ledger unreachable", error=str(error))
                else:
                    self._ledger_away.clear()
            self._log.info("ledger reachable again")
            for consumer in self._consumers:
                consumer.resume()

    # --- control ----------------------------------------------------------------------------

    def _on_cancel(self, job_id: str) -> None:
        if any(runner.cancel(job_id) for runner in self._runners):
            self._log.info("job cancel requested", job_id=job_id)

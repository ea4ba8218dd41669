"""Ask language models without a queue: the process that asks runs the job itself.

The job is the same that a worker would run, with the same record in the ledger, the same limits of
the servers and the same stored answers. The process is in the ledger as a worker that takes nothing
from queues, so that the scheduler does not take its jobs for those of a dead worker.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import structlog

from switchyard.broker.errors import LaneFull
from switchyard.broker.lanes import split_routing_key
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.task_supervisor import TaskSupervisor
from switchyard.services.common.process_memory import process_memory
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.job_end import EndListener
from switchyard.services.engine.monitoring.job_events import (
    ENDINGS,
    EventHub,
    announce,
    text_event,
)
from switchyard.services.engine.monitoring.metrics import Metrics
from switchyard.services.engine.publishing.outbox import publish_recorded, without_paused
from switchyard.services.engine.publishing.preparing import InvalidJob, JobRequest
from switchyard.services.engine.publishing.publisher import Published
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import FINISHED
from switchyard.services.engine.runtime.heartbeats import keep_beating
from switchyard.services.engine.runtime.inline import InlineRunner
from switchyard.services.llm.endpoint_requests import EndpointRequest
from switchyard.services.llm.llm_requests import LlmRequest
from switchyard.services.llm.model_client import ModelClient

MAX_REQUESTS = 1000
"""Requests that one process has under way at once; further ones are refused."""
SLOT_TIMEOUT = 3600.0
"""Seconds in all that a request waits for servers without a free slot, unless it expires first."""
OTHER_PROCESS_POLL_INTERVAL = 1.0
"""Seconds between polls of the record of a request that another process runs."""


class DirectRequests:
    """The requests that one process runs itself. Open it with `DirectRequests.open`."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        ledger: Ledger,
        runner: InlineRunner,
        hub: EventHub,
        *,
        hands_over: bool = False,
    ) -> None:
        """With `hands_over`, requests that can't go on here are given to workers."""
        self.hub = hub
        """Hands on the events of jobs, such as the text that they write."""
        self._registry = registry
        self._ledger = ledger
        self._runner = runner
        self._hands_over = hands_over
        self._takeover_after = settings.takeover_after
        self._began = asyncio.Event()
        """Set when a request has begun."""
        self._log = structlog.get_logger("llm")
        self._background = TaskSupervisor(self._log)
        self._registering = asyncio.Lock()
        self._is_registered = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: Settings,
        registry: Registry,
        ledger: Ledger,
        metrics: Metrics | None = None,
        *,
        hub: EventHub | None = None,
        publisher: Publisher | None = None,
    ) -> AsyncIterator[DirectRequests]:
        """Open the requests of this process, counted in `metrics`. At the end, requests under way
        are cancelled: nobody else would answer them. With a `publisher`, they are given to workers,
        and so is each request that has to be asked again; and the ends of requests are announced to
        other processes. `hub` gets the pieces of streamed answers."""
        hub = hub or EventHub()

        def announce_event(
            event: str, *, job_id: str, text: tuple[str, int] | None = None, **fields: Any
        ) -> None:
            if text is not None:
                hub.deliver(text_event(job_id, *text, ledger.clock.time()))
            elif publisher is not None and event in ENDINGS:
                announce(publisher, event, job_id=job_id, **fields)

        runner = InlineRunner(
            settings,
            registry,
            ledger,
            max_wait=SLOT_TIMEOUT,
            slots=MAX_REQUESTS,
            shared_ledger=True,
            hand_over=None if publisher is None else partial(_publish, publisher, ledger),
            announce=announce_event,
            metrics=metrics,
        )
        requests = cls(settings, registry, ledger, runner, hub, hands_over=publisher is not None)
        try:
            async with runner:
                yield requests
        finally:
            await requests._close()

    async def publish(self, request: JobRequest) -> Published:
        """Record a request and begin to ask; it goes on even if the caller goes away.

        Raises InvalidJob (also for a job type that is not a single question), UnknownJobType,
        InvalidPayload, IdempotencyConflict, LaneFull with `MAX_REQUESTS` under way, LedgerError.
        """
        self._check(request.routing_key)
        if self._runner.under_way >= MAX_REQUESTS:
            raise LaneFull(request.routing_key, dead_lettered=False)
        await self._register()
        published = await self._runner.publish(request)
        self._began.set()
        return published

    @property
    def under_way(self) -> int:
        """Requests that run here and have not ended."""
        return self._runner.under_way

    @property
    def has_waiting(self) -> bool:
        """Whether requests wait here for a slot at a server."""
        client = self._runner.shared(ModelClient)
        return client is not None and client.has_waiting

    def runs(self, job_id: str) -> bool:
        """Return whether a request runs here."""
        return self._runner.has(job_id)

    def cancel(self, job_id: str) -> bool:
        """Stop a request that runs here, and whose cancellation is recorded; False when it does not
        run here."""
        return self._runner.cancel(job_id)

    async def wait_here(self, job_id: str, *, timeout: float) -> JobRecord | None:
        """Wait while a request runs here, for at most `timeout` seconds, and return its record. A
        request that was handed over has not ended then. Raises LedgerError."""
        await self._runner.wait(job_id, timeout)
        return await self._ledger.job_reads.get(job_id)

    async def wait_for_end(
        self, job_id: str, *, timeout: float, listener: EndListener | None = None
    ) -> JobRecord | None:
        """Wait until a request has ended, or for `timeout` seconds, and return its record; None if
        there is none. The record of another process's request is polled. `listener` is not used.
        Raises LedgerError."""
        deadline = time.monotonic() + timeout
        await self._runner.wait(job_id, timeout)
        while True:
            record = await self._ledger.job_reads.get(job_id)
            seconds_left = deadline - time.monotonic()
            if record is None or record.state in FINISHED or seconds_left <= 0:
                return record
            await asyncio.sleep(min(seconds_left, OTHER_PROCESS_POLL_INTERVAL))

    def _check(self, routing_key: str) -> None:
        try:
            _, name = split_routing_key(routing_key)
        except ValueError as error:
            raise InvalidJob(f"routing key {error}", at="routing_key") from error
        if not issubclass(self._registry.get(name).payload_model, LlmRequest | EndpointRequest):
            raise InvalidJob(
                f"{name} is not a single question to a model, and only such jobs are run directly: "
                "publish it as a job"
            )

    async def _register(self) -> None:
        """Register this process as alive, before anything is recorded as run by it."""
        async with self._registering:
            if self._is_registered:
                return
            await self._ledger.workers.register_worker(
                self._runner.worker_id,
                kinds=(),
                lanes=(),
                host=socket.gethostname(),
                pid=os.getpid(),
                concurrency=MAX_REQUESTS,
            )
            self._is_registered = True
            self._background.start("sign of life", self._send_heartbeats)

    async def _send_heartbeats(self) -> None:
        await keep_beating(
            self._beat,
            self._takeover_after,
            is_busy=lambda: self._runner.under_way > 0,
            began=self._began,
        )

    async def _beat(self) -> None:
        try:
            await self._ledger.workers.beat(self._runner.worker_id, memory_bytes=process_memory())
            if self._hands_over:
                await self._runner.release_unheld_claims()
        except LedgerError as error:
            self._log.warning("ledger unreachable", error=str(error))

    async def _close(self) -> None:
        await self._background.close()
        if not self._is_registered:
            return
        try:
            await self._ledger.workers.mark_stopped(self._runner.worker_id)
        except LedgerError as error:  # the heartbeat ends: its jobs are taken over a little later
            self._log.warning("process stop not recorded", error=str(error))


async def _publish(publisher: Publisher, ledger: Ledger, job_id: str) -> None:
    """Publish a request that was handed over; the scheduler does it if this fails."""
    log = structlog.get_logger("llm")
    log.info("request handed over to the workers", job_id=job_id)
    try:
        record = await ledger.job_reads.get(job_id)
        unpaused = await without_paused(ledger, [record] if record else [])
        await publish_recorded(publisher, ledger, unpaused)
    except LedgerError as error:
        log.warning("request left to the scheduler", job_id=job_id, error=str(error))

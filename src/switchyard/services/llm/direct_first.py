"""Requests to language models by the shortest way: this process asks the server itself while
nothing waits for a worker; all other requests go through the lanes.

A request that runs here is a job like any other: it is recorded before it begins, takes a slot of
its server, counts in the budgets, and its answer is stored before it ends. What fails here, and
what runs when the process stops, is handed over to the workers; the requests of a process that was
killed, they take over."""

from __future__ import annotations

import time

from switchyard.broker.lanes import HOT, queue_name, split_routing_key
from switchyard.services.engine.monitoring.job_end import EndListener
from switchyard.services.engine.monitoring.job_events import EventHub
from switchyard.services.engine.monitoring.lane_pressure import LanePressure
from switchyard.services.engine.monitoring.pressure_thresholds import LLM_WORKER
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import Published
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import FINISHED
from switchyard.services.llm.direct_requests import DirectRequests
from switchyard.services.llm.llm_queue import QueuedRequests


class DirectFirstRequests:
    """Runs at most `max_calls` urgent requests at a time in this process, and the others through
    the lanes."""

    def __init__(
        self,
        queued: QueuedRequests,
        direct: DirectRequests,
        pressure: LanePressure,
        max_calls: int,
    ) -> None:
        self._queued = queued
        self._direct = direct
        self._pressure = pressure
        self._max_calls = max_calls

    @property
    def hub(self) -> EventHub:
        return self._queued.hub

    async def publish(self, request: JobRequest) -> Published:
        """Record a request and begin to ask, or publish it. Raises as `DirectRequests.publish` and
        `JobPublisher.publish`."""
        if await self._may_run_here(request):
            return await self._direct.publish(request)
        return await self._queued.publish(request)

    async def wait_for_end(
        self, job_id: str, *, timeout: float, listener: EndListener | None = None
    ) -> JobRecord | None:
        """Wait until a request has ended, or for `timeout` seconds, and return its record. Raises
        LedgerError."""
        deadline = time.monotonic() + timeout
        if self._direct.runs(job_id):
            record = await self._direct.wait_here(job_id, timeout=timeout)
            timeout = max(0.0, deadline - time.monotonic())
            if record is None or record.state in FINISHED or not timeout:
                return record
        return await self._queued.wait_for_end(job_id, timeout=timeout, listener=listener)

    def cancel(self, job_id: str) -> bool:
        return self._direct.cancel(job_id)

    async def _may_run_here(self, request: JobRequest) -> bool:
        """Return whether a request may run here: only if nothing as urgent waits, neither for a
        worker nor, in this process, for a server."""
        lane, _ = split_routing_key(request.routing_key)
        if lane != HOT.name or self._direct.under_way >= self._max_calls:
            return False
        if self._direct.has_waiting:
            return False
        depth = await self._pressure.get_soon(queue_name(HOT.name, LLM_WORKER))
        return depth is not None and depth.ready is not None and not depth.waiting

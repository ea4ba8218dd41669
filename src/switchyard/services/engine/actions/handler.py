"""Run bulk actions: in batches, oldest job first, as fast as their rate and their reruns allow.

The ledger records each changed job in the transaction that changes it; new jobs of a rerun get ids
derived from the operation's. The cursor is saved after each batch. So a process that continues
after a kill repeats the last batch, and nothing is changed twice.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from switchyard.broker.errors import LaneFull, NeverTaken
from switchyard.broker.lanes import HOT, LANES, Lane, queue_name
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.depths import queue_depths
from switchyard.services.engine.actions.spec import (
    MAX_COUNTED,
    ActionProgress,
    ActionSpec,
    rerun_id_of,
    rerun_outcomes,
)
from switchyard.services.engine.bulk.halting import Halted, HaltRule
from switchyard.services.engine.bulk.hot_traffic import HotTraffic
from switchyard.services.engine.bulk.session import BulkHandler, BulkSession
from switchyard.services.engine.dead.changes import (
    InvalidRedrive,
    apply_change,
    check_version,
    restore_secrets,
)
from switchyard.services.engine.identity.broker import system_guard
from switchyard.services.engine.jobs.registered_types import learn_missing_type
from switchyard.services.engine.jobs.registry import (
    InvalidPayload,
    NewerPayload,
    Registry,
    UnknownJobType,
)
from switchyard.services.engine.ledger import Ledger, to_message
from switchyard.services.engine.monitoring.job_events import announce
from switchyard.services.engine.publishing.outbox import publish_recorded, without_paused
from switchyard.services.engine.publishing.preparing import InvalidJob, JobRequest
from switchyard.services.engine.publishing.publisher import JobPublisher, Published
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.records.job_actions import TAKES, JobAction, JobMove
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.records.results import (
    Cancelled,
    JobRecord,
    JobSummary,
    Running,
)
from switchyard.services.engine.redrive.redrive_progress import (
    MAX_KEPT_NOTES,
    STATE_POLL_INTERVAL,
)
from switchyard.services.engine.redrive.sending import QueueCapacity
from switchyard.services.engine.runtime.worker_commands import send_cancel

BATCH = 100
"""Jobs that are read, changed and recorded together."""

_RERUN_ERRORS = (InvalidJob, InvalidPayload, NewerPayload, InvalidRedrive, UnknownJobType)
"""Errors that mean that a job can't be made again as requested."""


class ActionHandler:
    """Runs the bulk actions of one kind; see `services.engine.bulk.runner`."""

    def __init__(
        self,
        settings: BrokerSettings,
        registry: Registry,
        ledger: Ledger,
        action: JobAction,
        *,
        traffic: HotTraffic | None = None,
        lanes: tuple[Lane, ...] = LANES,
    ) -> None:
        self.kind = action.value
        self._settings = settings
        self._registry = registry
        self._ledger = ledger
        self._traffic = traffic or HotTraffic(ledger.workers)
        self._lanes = lanes

    async def run(self, session: BulkSession) -> None:
        """Go on until every job that fits was changed, or can't be."""
        spec = ActionSpec.from_operation(session.operation)
        async with Publisher(
            self._settings, name=session.id, guard=system_guard(self._settings, self._ledger)
        ) as publisher:
            action_run: ActionRun
            if spec.action is JobAction.CANCEL:
                action_run = CancelRun(session, spec, self._ledger, self._registry, publisher)
                await action_run.run(self._traffic)
            else:
                run_class = RerunRun if spec.action is JobAction.RERUN else MoveRun
                async with queue_depths(self._settings.require_amqp_url()) as depth:
                    action_run = run_class(session, spec, self._ledger, self._registry, publisher)
                    action_run.capacity = QueueCapacity(self._lanes, depth)
                    await action_run.run(self._traffic)


class ActionRun(ABC):
    """One process's work on one action."""

    def __init__(
        self,
        session: BulkSession,
        spec: ActionSpec,
        ledger: Ledger,
        registry: Registry,
        publisher: Publisher,
    ) -> None:
        self.session = session
        self.spec = spec
        self.ledger = ledger
        self.registry = registry
        self.publisher = publisher
        self.capacity: QueueCapacity | None = None
        self.progress = ActionProgress.from_operation(session.operation)
        self._halt_rule = HaltRule(spec.canary, spec.halt_on)
        self._cursor: dict[str, Any] = dict(session.operation.cursor or {})
        self._outcomes_read_at = float("-inf")

    @abstractmethod
    async def act(self, jobs: Sequence[JobSummary], recorded: Collection[str]) -> None:
        """Change these jobs, record it in the ledger, and count them in `progress`. Those in
        `recorded` were changed and counted by an earlier process: they are not counted again."""

    async def run(self, traffic: HotTraffic) -> None:
        """Go on from the cursor to the end, or a halt."""
        try:
            await self._begin()
            while batch := await self._next_batch():
                waiting = deque(batch)
                while waiting:
                    await self._act_on_some(waiting, traffic)
            await self._drain()
        except Halted as halted:
            await self._save()
            await self.session.finish(BulkState.HALTED, str(halted))
            return
        await self._save()
        failed = self.progress.failed
        await self.session.finish(note=f"{failed} new jobs have died" if failed else None)

    def skip(self, job_id: str, why: str) -> None:
        """Count a job that is left as it is."""
        notes = (*self.progress.notes, f"{job_id}: {why}")[:MAX_KEPT_NOTES]
        self.progress = replace(self.progress, skipped=self.progress.skipped + 1, notes=notes)

    def count_done(self, number: int) -> None:
        """Count jobs that were changed."""
        self.progress = replace(self.progress, done=self.progress.done + number)

    async def wait_for_room(self, queues: Iterable[str]) -> None:
        """Wait until each of these queues has room for one more, and take it."""
        assert self.capacity is not None
        for queue in queues:
            while not await self.capacity.take(queue):
                await self.session.move(BulkState.WAITING, f"waits for room in {queue}")
                await self.session.sleep(STATE_POLL_INTERVAL)
                self.capacity.refresh()
        await self.session.move(BulkState.RUNNING)

    async def _begin(self) -> None:
        # Jobs that were changed just before a kill are recorded, but missing in the saved count.
        done = await self.ledger.job_actions.count(self.session.id)
        self.progress = replace(self.progress, done=done)
        if self.progress.total is None:
            limit = min(self.spec.limit or MAX_COUNTED, MAX_COUNTED)
            total = await self.ledger.job_reads.count_matching(
                self.spec.which, TAKES[self.spec.action], at_most=limit
            )
            self.progress = replace(self.progress, total=total)
        if self._halt_rule.depends_on_outcomes:
            await self._read_outcomes()
            if "baseline" not in self._cursor:  # it begins, or was resumed after a halt
                self._cursor["baseline"] = [self.progress.succeeded, self.progress.failed]
        await self._save()

    async def _next_batch(self) -> list[JobSummary]:
        limit = BATCH
        if self.spec.limit is not None:
            limit = min(limit, self.spec.limit - self.progress.done - self.progress.skipped)
        if limit <= 0:
            return []
        at, job_id = self._cursor.get("after", (None, None))
        return await self.ledger.job_reads.matching_jobs(
            self.spec.which,
            TAKES[self.spec.action],
            after=None if at is None else (at, job_id),
            limit=limit,
        )

    async def _act_on_some(self, waiting: deque[JobSummary], traffic: HotTraffic) -> None:
        allowed = await self._allowance()
        if allowed == 0:
            done, failed = self._since_baseline()
            why = "waits for the ends of earlier new jobs"
            note = why if self._canary_left is None else self._halt_rule.canary_note(done, failed)
            await self.session.move(BulkState.RUNNING, note)
            await self._save()
            await self.session.sleep(STATE_POLL_INTERVAL)
            return
        await self.session.move(BulkState.RUNNING, traffic.why)
        number = await traffic.allowance(min(len(waiting), allowed))
        number = await self.session.take_slots(number)
        batch = [waiting.popleft() for _ in range(number)]
        ids = [job.id for job in batch]
        recorded = await self.ledger.job_actions.of_operation(self.session.id, ids)
        # Hot jobs need not give way to hot jobs.
        is_hot = all(job.lane == HOT.name for job in batch)
        async with nullcontext() if is_hot else traffic.turn(self.session):
            await self.act(batch, recorded)
        if self.spec.canary is not None and self._canary_left is not None:
            self._outcomes_read_at = float("-inf")  # those that have just gone count at once
        self._cursor["after"] = [batch[-1].created_at, batch[-1].id]
        await self._save()

    async def _allowance(self) -> int:
        """Return how many jobs may be changed now. Raises Halted."""
        if not self._halt_rule.depends_on_outcomes:
            return BATCH
        await self._check_outcomes()
        open_jobs = self.progress.unfinished
        allowed = min(BATCH, (self.session.operation.max_open or BATCH) - open_jobs)
        left = self._canary_left
        return max(0, allowed if left is None else min(allowed, left))

    async def _check_outcomes(self) -> None:
        if time.monotonic() - self._outcomes_read_at >= STATE_POLL_INTERVAL:
            await self._read_outcomes()
        try:
            self._halt_rule.check(*self._since_baseline(), "new jobs have died")
        except Halted:
            del self._cursor["baseline"]  # what has failed so far belongs to this halt
            raise

    @property
    def _canary_left(self) -> int | None:
        return self._halt_rule.canary_left(*self._since_baseline(), self.progress.unfinished)

    def _since_baseline(self) -> tuple[int, int]:
        """Return how many new jobs have ended, and failed of these, since it began, or was resumed
        after the last halt."""
        succeeded, died = self._cursor["baseline"]
        failed = self.progress.failed - died
        return failed + self.progress.succeeded - succeeded, failed

    async def _read_outcomes(self) -> None:
        outcomes: dict[str, Any] = await rerun_outcomes(self.ledger, self.session.operation)
        self.progress = replace(self.progress, **outcomes)
        self._outcomes_read_at = time.monotonic()

    async def _drain(self) -> None:
        """Wait for the ends of the new jobs, where the action depends on them. Raises Halted."""
        if not self._halt_rule.depends_on_outcomes:
            return
        while True:
            await self._read_outcomes()
            await self._check_outcomes()
            if not self.progress.unfinished:
                return
            await self.session.move(BulkState.DRAINING, "all are published; waits for their ends")
            await self._save()
            await self.session.sleep(STATE_POLL_INTERVAL)

    async def _save(self) -> None:
        await self.session.checkpoint(cursor=self._cursor, counts=self.progress.to_json())


class CancelRun(ActionRun):
    """Cancels jobs; those that run are stopped by their workers."""

    async def act(self, jobs: Sequence[JobSummary], recorded: Collection[str]) -> None:
        results = await self.ledger.job_actions.cancel(
            self.session.id,
            self.session.holder,
            [job.id for job in jobs],
            self.ledger.clock.time(),
        )
        if results is None:
            self.session.fail_lost()
        for job in jobs:
            result = results[job.id]
            if isinstance(result, Cancelled):
                announce(
                    self.publisher,
                    "cancelled",
                    job_id=job.id,
                    job_type=job.job_type,
                    lane=job.lane,
                    attempt=job.attempts + 1,
                )
            elif isinstance(result, Running):
                # After a kill it is sent again, which does no harm.
                await send_cancel(self.publisher, job.id)
                self.progress = replace(self.progress, stopping=self.progress.stopping + 1)
            else:
                self.skip(job.id, "it has ended meanwhile")
                continue
            self.count_done(job.id not in recorded)


class MoveRun(ActionRun):
    """Gives jobs that have not begun another lane or priority, and publishes them there."""

    async def act(self, jobs: Sequence[JobSummary], recorded: Collection[str]) -> None:
        moves = await self._plan_moves(jobs, recorded)
        await self.wait_for_room(
            queue_name(moves[job.id].lane, job.worker) for job in jobs if job.id in moves
        )
        ids = await self.ledger.job_actions.move(
            self.session.id, self.session.holder, list(moves.values()), self.ledger.clock.time()
        )
        if ids is None:
            self.session.fail_lost()
        moved = await self.ledger.job_actions.of_operation(self.session.id, list(moves))
        records = await self.ledger.job_reads.records(ids)
        due = await without_paused(self.ledger, [records[each] for each in ids if each in records])
        # What the broker refuses stays pending: a scheduler publishes it.
        await publish_recorded(self.publisher, self.ledger, due)
        self.count_done(len(moved.keys() - set(recorded)))
        for job_id in moves.keys() - moved.keys():
            self.skip(job_id, "it has begun meanwhile")

    async def _plan_moves(
        self, jobs: Sequence[JobSummary], recorded: Collection[str]
    ) -> dict[str, JobMove]:
        """Return the moves of these jobs; count those that are not moved as skipped."""
        earlier = {}
        if self.spec.undo_of is not None:
            ids = [job.id for job in jobs]
            earlier = await self.ledger.job_actions.of_operation(self.spec.undo_of, ids)
        moves: dict[str, JobMove] = {}
        for job in jobs:
            lane, priority = self.spec.lane or job.lane, self.spec.priority
            if self.spec.undo_of is not None:
                moved_from = earlier[job.id].before if job.id in earlier else None
                if moved_from is None:
                    self.skip(job.id, f"{self.spec.undo_of} has not moved it")
                    continue
                lane, priority = moved_from["lane"], moved_from["priority"]
            if priority is None:
                priority = job.priority
            if (lane, priority) == (job.lane, job.priority) and job.id not in recorded:
                self.skip(job.id, "it is there already")
                continue
            if why := await self._refusal(job, lane):
                self.skip(job.id, why)
                continue
            moves[job.id] = JobMove(job.id, lane, f"{lane}.{job.job_type}", priority)
        return moves

    async def _refusal(self, job: JobSummary, lane: str) -> str | None:
        if lane == job.lane:
            return None
        try:
            await learn_missing_type(self.registry, self.ledger, job.job_type)
            job_type = self.registry.get_publishable(job.job_type)
        except UnknownJobType as error:
            return str(error)
        if lane not in job_type.lanes:
            return f"{job.job_type} is not worked in lane {lane}"
        return None


class RerunRun(ActionRun):
    """Publishes a new job for each job: the same, or with the requested change."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._jobs = JobPublisher(
            self.registry, self.ledger, self.publisher, remote=self.spec.remote
        )

    async def act(self, jobs: Sequence[JobSummary], recorded: Collection[str]) -> None:
        ids = await self.ledger.system.job_ids()
        cause = self.spec.undo_of or self.session.id
        new_ids = {job.id: rerun_id_of(ids, cause, job.id) for job in jobs}
        existing = await self.ledger.job_reads.records(list(new_ids.values()))
        records = await self.ledger.job_reads.records([job.id for job in jobs])
        prepared: dict[str, NewJob] = {}
        new_id_by_job: dict[str, str] = {}
        for job_id, new_id in new_ids.items():
            if new_id in existing:
                if existing[new_id].operation_id == self.session.id:  # published before a kill
                    new_id_by_job[job_id] = new_id
                else:
                    self.skip(job_id, f"an earlier undo has rerun it as {new_id}")
                continue
            record = records.get(job_id)
            try:
                if record is None:
                    self.skip(job_id, "it was removed meanwhile")
                else:
                    prepared[job_id] = await self._prepare(record, new_id)
            except _RERUN_ERRORS as error:
                self.skip(job_id, f"not rerun: {error}")
        while prepared:
            await self.wait_for_room(queue_name(job.lane, job.worker) for job in prepared.values())
            outcomes = await self._jobs.publish_prepared(list(prepared.values()))
            refused: dict[str, NewJob] = {}
            for (job_id, job), outcome in zip(prepared.items(), outcomes, strict=True):
                if isinstance(outcome, LaneFull) and not outcome.dead_lettered:
                    refused[job_id] = job
                elif isinstance(outcome, NeverTaken):
                    self.skip(job_id, f"not rerun: {outcome}")
                elif isinstance(outcome, (Published, LaneFull)):
                    new_id_by_job[job_id] = job.message.job_id
                else:
                    raise outcome  # the runner goes on later, from the saved cursor
            prepared = refused
        is_ours = await self.ledger.job_actions.record_reruns(
            self.session.id, self.session.holder, new_id_by_job, self.ledger.clock.time()
        )
        if not is_ours:
            self.session.fail_lost()
        self.count_done(len(new_id_by_job.keys() - set(recorded)))

    async def _prepare(self, record: JobRecord, new_id: str) -> NewJob:
        """Make the new job. Raises one of _RERUN_ERRORS."""
        if record.joins:
            raise InvalidJob("it waited for other jobs: rerun the job that published those")
        before = to_message(record)
        routing_key = self.spec.change.to or record.routing_key
        job_type = routing_key.partition(".")[2]
        message = await asyncio.to_thread(  # a jq expression may take seconds
            apply_change, before, before.encode(), self.spec.change, job_type
        )
        await learn_missing_type(self.registry, self.ledger, job_type)
        await learn_missing_type(self.registry, self.ledger, record.job_type)
        message = restore_secrets(message, before, self.registry)
        message = check_version(self.registry.get_publishable(job_type), before, message)
        return await self._jobs.learn_and_prepare(
            JobRequest(
                routing_key,
                message.payload,
                priority=message.priority,
                max_attempts=message.metadata.max_attempts,
                source=record.source,
                job_id=new_id,
                operation_id=self.session.id,
                rerun_of=record.id,
                payload_version=message.metadata.payload_version,
                tags=record.tags,
                vouched=before.payload if job_type == record.job_type else None,
            )
        )


def action_handlers(
    settings: BrokerSettings,
    registry: Registry,
    ledger: Ledger,
    *,
    traffic: HotTraffic | None = None,
    lanes: tuple[Lane, ...] = LANES,
) -> list[BulkHandler]:
    """Make a handler for each bulk action."""
    return [
        ActionHandler(settings, registry, ledger, action, traffic=traffic, lanes=lanes)
        for action in JobAction
    ]

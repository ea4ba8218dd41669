"""A whole small system for one test: topology, ledger, publisher, and workers in this process.

async with open_system(broker310, sqlite_url) as system:
    await system.start_worker("llm")
    job_id = await system.publish("hot.noop", {"n": 1})
    assert (await system.wait_for_state(job_id, State.SUCCEEDED)).result == {"n": 1}
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from pydantic import SecretStr
from sqlalchemy import func, select

from switchyard.broker.dead.scan import QueuedDeadLetter, scanning
from switchyard.broker.errors import LaneFull
from switchyard.broker.lanes import LANES, Lane
from switchyard.broker.message import JobMessage, Metadata
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.topology.build import build
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.sql.tables import jobs as jobs_table
from switchyard.services.engine.monitoring.metrics import Metrics
from switchyard.services.engine.publishing.preparing import JobRequest, job_id_of
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import State
from switchyard.services.engine.runtime.worker import Worker, plan_for
from tests.support.brokers import TestBroker
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.jobs import journal
from tests.support.ledgers import make_ledger
from tests.support.publishing import MAX_OVERSHOOT
from tests.support.tcp_proxy import TcpProxy

JOB_MODULES = ("tests.support.jobs",)
RETRY_DELAYS = (0.2, 0.4, 0.8)


Broker = TestBroker


def lanes_with(
    *, max_length: Mapping[str, int] | None = None, ttl_seconds: Mapping[str, int] | None = None
) -> tuple[Lane, ...]:
    """Return the lanes, some of them smaller or shorter-lived: `lanes_with(max_length={"hot": 3})`.

    They have queues only for the workers of the test's job types: others take time to make.
    """
    lengths, ttls = max_length or {}, ttl_seconds or {}
    return tuple(
        replace(
            lane,
            workers=(),
            max_length=lengths.get(lane.name, lane.max_length),
            ttl_seconds=ttls.get(lane.name, lane.ttl_seconds),
        )
        for lane in LANES
    )


@dataclass
class RunningWorker:
    """A worker in this process, and the task that runs it."""

    worker: Worker
    task: asyncio.Task[None]

    @property
    def worker_id(self) -> str:
        return self.worker.worker_id

    async def stop(self) -> None:
        """Stop the worker as SIGTERM would: drain and end. Raises what the worker raised."""
        self.worker.stop()
        await asyncio.wait_for(self.task, MAX_WAIT)

    async def publishing(self) -> None:
        """Wait until the worker's publisher has a free channel."""
        await eventually(self.worker._publisher._free_channel, what="the publisher's channel")

    async def consuming(self, *queues: str) -> None:
        """Wait until the worker consumes these queues, by default all of its queues."""
        await eventually(
            lambda: self.task.done() or self._consumes(queues), what=f"consuming {queues or 'all'}"
        )
        if self.task.done():
            self.task.result()
            raise AssertionError("the worker has ended")

    def _consumes(self, queues: Sequence[str]) -> bool:
        states = self.worker.queue_states
        return all(states[name] == "consuming" for name in queues or states)


class System:
    """What a test needs of the system; made by `open_system`."""

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        registry: Registry,
        ledger: Ledger,
        lanes: tuple[Lane, ...],
    ) -> None:
        self.broker = broker
        self.settings = settings
        self.registry = registry
        self.ledger = ledger
        self.lanes = lanes
        self.wire = Publisher(settings, name="test")
        """Publishes to the broker without recording in the ledger."""
        self.jobs = JobPublisher(registry, ledger, self.wire)
        self.workers: list[RunningWorker] = []

    # --- workers ----------------------------------------------------------------------------

    async def start_worker(
        self,
        *kinds: str,
        slots: int = 4,
        reserve: int | None = None,
        lanes: Sequence[str] | None = None,
        ledger: Ledger | None = None,
        registry: Registry | None = None,
        wait: bool = True,
        metrics: Metrics | None = None,
        **settings: Any,
    ) -> RunningWorker:
        """Start a worker (`llm` unless told) and wait until it consumes.

        `lanes` are those that it works, `registry` the job types that it knows; `settings` change
        the system's for this worker alone, as in
        `amqp_url=SecretStr(proxy.url(broker.amqp_url))` or `shutdown_grace=0.1`.
        """
        worker_plans = [
            plan_for(self.registry, kind, lanes=lanes, slots=slots, reserve=reserve)
            for kind in kinds or ("llm",)
        ]
        worker = Worker(
            self.settings.model_copy(update=settings),
            registry or self.registry,
            ledger or self.ledger,
            worker_plans,
            lanes=self.lanes,
            metrics=metrics,
        )
        running = RunningWorker(worker, asyncio.create_task(worker.run()))
        self.workers.append(running)
        if wait:
            await running.consuming()
        return running

    async def stop_workers(self) -> None:
        """Stop all that still run, the way `RunningWorker.stop` does."""
        for running in self.workers:
            running.worker.stop()
        await asyncio.wait_for(
            asyncio.gather(*(running.task for running in self.workers)), MAX_WAIT
        )

    # --- publishing -------------------------------------------------------------------------

    async def publish(
        self, routing_key: str, payload: Mapping[str, Any] | None = None, **options: Any
    ) -> str:
        """Record and publish a job as users do (`options` as in JobRequest); its id."""
        published = await self.jobs.publish(JobRequest(routing_key, payload or {}, **options))
        return published.job_id

    async def publish_foreign(
        self, routing_key: str, payload: Mapping[str, Any] | None = None, **fields: Any
    ) -> JobMessage:
        """Publish a job without recording it, as a program that does not know the ledger does.

        `job_id` and `priority` are the message's, all other fields its metadata's.
        """
        message_fields = {
            name: fields.pop(name) for name in ("job_id", "priority") if name in fields
        }
        message = JobMessage(
            job_type=routing_key.partition(".")[2],
            payload=dict(payload or {}),
            metadata=Metadata(**fields),
            **message_fields,
        )
        await self.wire.publish(message, routing_key)
        return message

    async def fill(self, routing_key: str) -> list[str]:
        """Publish foreign jobs until the lane refuses; and return the ids of the accepted ones."""
        accepted: list[str] = []
        for _ in range(MAX_OVERSHOOT):
            try:
                accepted.append((await self.publish_foreign(routing_key)).job_id)
            except LaneFull:
                return accepted
        raise AssertionError("the lane never refused")

    async def publish_raw(self, routing_key: str, body: bytes, **properties: Any) -> None:
        """Publish any bytes to `jobs.topic`, confirmed."""
        async with self.channel() as channel:
            exchange = await channel.get_exchange("jobs.topic", ensure=False)
            message = aio_pika.Message(body, delivery_mode=2, **properties)
            await exchange.publish(message, routing_key)

    # --- reading ----------------------------------------------------------------------------

    async def state(self, job_id: str) -> State | None:
        """Return the job's state in the ledger; None when it has no record."""
        return (await self.ledger.job_reads.states([job_id])).get(job_id)

    async def stage_id(self, parent_id: str, job_type: str, index: int | str = 0) -> str:
        """Return the id of a job that follows from another."""
        return job_id_of(await self.ledger.system.job_ids(), parent_id, job_type, index)

    async def record(self, job_id: str) -> JobRecord:
        """Return the job's record, which must be there."""
        record = await self.ledger.job_reads.get(job_id)
        assert record is not None, f"the ledger has no job {job_id}"
        return record

    async def wait_for_state(
        self, job_id: str, *states: State, timeout: float = MAX_WAIT, while_jobs_end: bool = False
    ) -> JobRecord:
        """Wait until a job is in one of these states, and return its record; with `while_jobs_end`
        the time begins anew whenever any job ends."""

        async def reached() -> bool:
            return await self.state(job_id) in states

        try:
            await eventually(
                reached, timeout, progress=self._count_ended if while_jobs_end else None
            )
        except AssertionError:
            record = await self.ledger.job_reads.get(job_id)
            raise AssertionError(f"not {states} after {timeout:g} s: {record}") from None
        return await self.record(job_id)

    async def _count_ended(self) -> int:
        ended = select(func.count()).where(jobs_table.c.finished_at.is_not(None))
        return await self.ledger.core.database.read(lambda c: c.execute(ended).scalar_one())

    async def wait_until_all(
        self, job_ids: Iterable[str], *states: State, timeout: float = MAX_WAIT
    ) -> None:
        """Return when each of the jobs is in one of these states."""
        awaited = list(job_ids)
        not_reached: list[str] = []

        async def reached() -> bool:
            state_by_id = await self.ledger.job_reads.states(awaited)
            not_reached[:] = [
                f"{job_id}: {state_by_id.get(job_id)}"
                for job_id in awaited
                if state_by_id.get(job_id) not in states
            ]
            return not not_reached

        try:
            await eventually(reached, timeout)
        except AssertionError:
            raise AssertionError(
                f"{len(not_reached)} of {len(awaited)} are not {states} after {timeout:g} s: "
                f"{not_reached[:10]}"
            ) from None

    async def letters(self) -> list[QueuedDeadLetter]:
        """Return the letters in `jobs.dead`, oldest first; they stay there."""
        async with scanning(self.settings.require_amqp_url()) as scan:
            return [letter async for letter in scan.letters()]

    async def wait_for_letter(self, letter_id: str, timeout: float = MAX_WAIT) -> QueuedDeadLetter:
        """Wait until the letter of that id (a job's, or `raw-…`) is in `jobs.dead`, and return
        it."""

        async def found() -> QueuedDeadLetter | None:
            return next((each for each in await self.letters() if each.id == letter_id), None)

        letter: QueuedDeadLetter = await eventually(found, timeout, f"a dead letter of {letter_id}")
        return letter

    async def ready(self, queue: str) -> int:
        """Count the messages in a queue that no consumer holds, as of now."""
        async with self.channel() as channel:
            declared = await channel.declare_queue(queue, passive=True)
            return declared.declaration_result.message_count or 0

    async def wait_until_ready(self, queue: str, count: int, timeout: float = MAX_WAIT) -> None:
        """Return when that many messages are in the queue that no consumer holds."""
        async with self.channel() as channel:

            async def reached() -> bool:
                declared = await channel.declare_queue(queue, passive=True)
                return declared.declaration_result.message_count == count

            await eventually(reached, timeout, f"{count} messages ready in {queue}")

    async def take(self, queue: str, timeout: float = MAX_WAIT) -> AbstractIncomingMessage:
        """Wait for the next message of a queue, acknowledge and return it."""
        async with self.channel() as channel:
            source = await channel.get_queue(queue, ensure=False)
            message: AbstractIncomingMessage = await eventually(
                lambda: source.get(fail=False), timeout, f"a message in {queue}"
            )
            await message.ack()
            return message

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[AbstractChannel]:
        """Open a channel with confirms on a connection of its own; always straight to the
        broker."""
        async with await aio_pika.connect(self.broker.amqp_url) as connection:
            yield await connection.channel(publisher_confirms=True)


def workers_publish_by(proxy: TcpProxy, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make workers publish through the proxy; their other connections stay direct."""
    url = SecretStr(proxy.url(broker.amqp_url))

    def publisher_through_proxy(settings: Settings, **options: Any) -> Publisher:
        return Publisher(settings.model_copy(update={"amqp_url": url}), **options)

    monkeypatch.setattr(
        "switchyard.services.engine.runtime.worker.Publisher", publisher_through_proxy
    )


async def declare(
    broker: Broker,
    registry: Registry,
    *,
    lanes: tuple[Lane, ...] = LANES,
    retry_delays: Sequence[float] = RETRY_DELAYS,
) -> None:
    """Declare the topology that the job types of the registry need."""
    topology = build(broker.profile, registry.routes, lanes=lanes, retry_delays=retry_delays)
    await broker.declare(topology)


@asynccontextmanager
async def open_system(
    broker: Broker,
    database_url: str,
    *,
    modules: Sequence[str] = JOB_MODULES,
    lanes: tuple[Lane, ...] | None = None,
    retry_delays: Sequence[float] = RETRY_DELAYS,
    **settings: Any,
) -> AsyncIterator[System]:
    """Open a system: topology on the broker, tables in the database, an empty journal. Stops its
    workers at the end.

    `lanes` are those of `lanes_with()` unless given. `retry_delays` in seconds, small enough to
    be waited for. `settings` are any of the system's.
    For a node of your own: `open_system(TestBroker("3.10", "classic", "/", node), sqlite_url)`.
    """
    journal.clear()
    lanes = lanes or lanes_with()
    registry = Registry.load(modules)
    # First, because `declare` chooses the vhost only before the broker's address is used.
    await declare(broker, registry, lanes=lanes, retry_delays=retry_delays)
    # Each system has its own files and index, as it has its own ledger.
    with TemporaryDirectory(prefix="system-", ignore_cleanup_errors=True) as directory:
        system_settings = Settings(
            amqp_url=broker.amqp_url,
            management_url=broker.management_url,
            profile=broker.profile,
            database_url=database_url,
            retry_delays=tuple(retry_delays),
            modules=tuple(modules),
            **{
                "shutdown_grace": 5.0,
                "data_dir": Path(directory),
                # Tests use llm queues as any others: they are full only if the broker says so.
                "llm_full_at": 1_000_000,
                "llm_slow_at": 1_000_000,
                **settings,
            },
        )
        await make_ledger(database_url)
        async with await Ledger.open(database_url) as ledger:
            system = System(broker, system_settings, registry, ledger, lanes)
            try:
                yield system
            finally:
                journal.release_all()
                try:
                    await system.stop_workers()
                finally:
                    for running in system.workers:
                        running.task.cancel()
                    await system.wire.close()

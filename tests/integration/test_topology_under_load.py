"""Publishing while `topology apply` makes an empty broker's topology: no accepted job is lost to
the moment in which a queue is there and its bindings are not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from switchyard.broker.errors import ManagementError, PublishError, Unroutable
from switchyard.broker.lanes import UNBOUND_SUFFIX
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.management.model import Binding, Exchange, Topology
from switchyard.broker.topology.build import build
from switchyard.broker.topology.differences import Deviation, diff
from switchyard.broker.topology.reconcile import apply
from switchyard.services.engine.dead.indexing import index_waiting
from switchyard.services.engine.publishing.preparing import THEN, JobRequest
from switchyard.services.engine.records.states import State
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.joining import JOINING_MODULES
from tests.support.system import RETRY_DELAYS, System, open_system

PENDING_JOBS = 140
INTERVALS = SchedulerIntervals(pending=0.0)


class SlowClient(ManagementClient):
    """A client that makes no binding of the lanes until it may go on."""

    def __init__(self, broker: TestBroker) -> None:
        super().__init__(broker.management_url, broker.vhost)
        self.is_binding = asyncio.Event()
        self.go_on = asyncio.Event()

    async def put_binding(self, binding: Binding) -> None:
        if binding.source == "jobs.topic":
            self.is_binding.set()
            await self.go_on.wait()
        await super().put_binding(binding)


def topology_of(system: System) -> Topology:
    routes = system.registry.routes
    return build(system.broker.profile, routes, lanes=system.lanes, retry_delays=RETRY_DELAYS)


async def empty_broker(broker: TestBroker) -> None:
    """Empty the broker's vhost, as if the broker was replaced by a new one."""
    async with ManagementClient(broker.management_url, broker.vhost) as client:
        await client.delete_vhost()
        await client.put_vhost(str(urlsplit(broker.amqp_url).username))


@asynccontextmanager
async def open_scheduler(system: System) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(system.settings, system.registry, system.ledger, intervals=INTERVALS)
    try:
        yield scheduler
    finally:
        await scheduler.close()


async def has_dead_letter(system: System) -> bool:
    await index_waiting(system.settings, system.ledger, system.registry)
    return bool((await system.ledger.dead_letters.list_dead()).items or await system.letters())


async def test_pending_jobs_and_new_ones_survive_an_apply_to_an_empty_broker(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system, open_scheduler(system) as scheduler:
        for key in ("hot.noop", "backfill.noop"):
            await system.publish(key)  # the publisher knows both queues
        await empty_broker(broker)
        requests = [JobRequest(f"{lane}.noop", {}) for lane in ("hot", "backfill")]
        jobs = [await system.jobs.prepare(requests[number % 2]) for number in range(PENDING_JOBS)]
        await system.ledger.jobs.record_many(jobs)
        accepted = [new.message.job_id for new in jobs]
        is_applied = asyncio.Event()

        async def publish() -> None:
            while not is_applied.is_set():
                for request in requests:
                    try:
                        accepted.append((await system.jobs.publish(request)).job_id)
                    except PublishError:
                        await asyncio.sleep(0)

        async def turn() -> None:
            while not is_applied.is_set():
                await scheduler.turn()

        async def is_refused() -> bool:
            try:
                accepted.append(await system.publish("hot.noop"))
            except Unroutable as error:
                return "no queue 'hot.llm'" in str(error)
            return False  # recorded alone, as the connection was not there again

        async with asyncio.TaskGroup() as load, SlowClient(broker) as client:
            load.create_task(publish())
            load.create_task(turn())
            applying = load.create_task(apply(client, topology_of(system)))
            await client.is_binding.wait()
            for _ in range(2):  # by then every queue was there, and every publish refused
                await scheduler.turn()
                await eventually(is_refused)
            assert set((await system.ledger.job_reads.states(accepted)).values()) == {State.PENDING}
            client.go_on.set()
            (await applying).require_success()
            is_applied.set()

        async def none_is_pending() -> bool:
            await scheduler.turn()
            states = await system.ledger.job_reads.states(accepted)
            return State.PENDING not in states.values()

        await eventually(none_is_pending)
        assert not await has_dead_letter(system)
        await system.start_worker(slots=50)
        await system.wait_until_all(accepted, State.SUCCEEDED)


async def test_a_broken_off_apply_is_reported_and_ended_by_the_next_one(
    broker: TestBroker, sqlite_url: str
) -> None:
    class FailingClient(ManagementClient):
        async def put_binding(self, binding: Binding) -> None:
            if binding.source == "jobs.topic":
                raise ManagementError("killed")
            await super().put_binding(binding)

    async with open_system(broker, sqlite_url) as system:
        await broker.management.delete("/queues/{vhost}/hot.llm")
        async with FailingClient(broker.management_url, broker.vhost) as failing_client:
            with pytest.raises(ManagementError, match="killed"):
                await apply(failing_client, topology_of(system))
        with pytest.raises(Unroutable):
            await system.publish("hot.noop")
        async with ManagementClient(broker.management_url, broker.vhost) as client:
            differences = diff(topology_of(system), await client.fetch())
            texts = {
                difference.text
                for difference in differences
                if difference.problem is Deviation.UNFINISHED
            }
            assert texts == {
                "queue hot.llm waits for its bindings: an apply was broken off, or is under way"
            }
            assert not any(difference.is_extra for difference in differences)
            report = await apply(client, topology_of(system))
            assert report.done[-1] == "finished queue hot.llm: its bindings are there"
            assert report.left == ()
        await system.start_worker()

        async def publish_again() -> str | None:
            with suppress(Unroutable):  # the publisher keeps an answer for half a second
                return await system.publish("hot.noop")
            return None

        await system.wait_for_state(await eventually(publish_again), State.SUCCEEDED)


async def test_a_job_that_waited_for_others_stays_pending_until_its_queue_is_bound(
    broker: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_system(broker, sqlite_url, modules=JOINING_MODULES, data_dir=tmp_path) as system,
        open_scheduler(system) as scheduler,
        ManagementClient(broker.management_url, broker.vhost) as client,
    ):
        await system.start_worker()
        # As an apply leaves a queue if it is broken off at that point.
        await client.put_exchange(Exchange("backfill.llm" + UNBOUND_SUFFIX, "fanout"))
        await client.delete_binding(Binding("jobs.topic", "backfill.llm", "backfill.gather"))
        fan = await system.jobs.prepare(JobRequest("backfill.fan", {"leaves": 3, "lane": "hot"}))
        await system.ledger.jobs.record(fan)
        await system.wire.publish(fan.message, "backfill.fan")
        waiting_id = await system.stage_id(fan.message.job_id, "gather", THEN)
        await system.wait_for_state(waiting_id, State.PENDING)
        await scheduler.turn()
        assert await system.state(waiting_id) is State.PENDING
        (await apply(client, topology_of(system))).require_success()

        async def is_sent() -> bool:
            await scheduler.turn()
            return await system.state(waiting_id) is not State.PENDING

        await eventually(is_sent)
        await system.wait_for_state(waiting_id, State.SUCCEEDED)
        assert not await has_dead_letter(system)

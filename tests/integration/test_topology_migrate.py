"""Queues become those of the other profile while jobs go through them."""

import asyncio
import random
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Iterator
from pathlib import Path

import aio_pika
import pytest

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.broker.errors import NeverTaken
from switchyard.broker.lanes import JOBS_EXCHANGE, STAND_IN_PREFIX
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.management.model import Policy
from switchyard.broker.topology import differences
from switchyard.broker.topology.build import build
from switchyard.broker.topology.migrate import MigrationRefused, exclusive_migration
from switchyard.broker.topology.queue_shovel import running_shovel
from switchyard.broker.wire.channel import open_channel
from switchyard.broker.wire.connection import connected, underlying
from switchyard.broker.wire.depths import read_queue_size
from switchyard.broker.wire.envelope import Envelope
from switchyard.cli.base.errors import INTERRUPTED
from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.engine.monitoring import lane_pressure
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.checks.topology import topology
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.records.states import State
from tests.conftest import broker_of
from tests.support.backfills import QUEUE, open_backfills, read_numbers
from tests.support.brokers import TestBroker
from tests.support.chaos import (
    Effects,
    assert_all_accounted_for,
    ids_of,
    open_chaos,
    outbox,
    publish_all,
    requests_of,
    write,
)
from tests.support.eventually import eventually
from tests.support.migrating import migrate
from tests.support.system import System
from tests.support.worker_process import ROOT, Processes, environment_of

pytestmark = pytest.mark.broker43

BACKFILL_ITEMS = 300
MAX_KILLS = 6
"""Kills in each of the two directions, at most: the migration may end before."""
MIN_KILLS = 3
UNUSED_POLICIES = ("jobs.lane.maintenance", "jobs.lane.vlm_ocr")


@pytest.fixture
def broker43_classic() -> Iterator[TestBroker]:
    yield from broker_of("4.3", "classic")


async def list_differences(system: System, profile: str) -> list[str]:
    declared = build(
        "quorum" if profile == "quorum" else "classic",
        system.registry.routes,
        lanes=system.lanes,
        retry_delays=system.settings.retry_delays,
    )
    async with ManagementClient(system.broker.management_url, system.broker.vhost) as client:
        found_differences = differences.diff(declared, await client.fetch())
    # Lanes without a queue of these job types keep their policy: `apply` changes it.
    return [
        difference.text
        for difference in found_differences
        if not difference.name.startswith(UNUSED_POLICIES)
    ]


@pytest.mark.long
async def test_jobs_and_letters_survive_a_migration_there_and_back(
    broker43_classic: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with open_chaos(broker43_classic, sqlite_url, tmp_path) as system:
        dying = requests_of(3, max_attempts=1, fail_attempts=9)
        late = requests_of(1, "hot.effect")
        await system.start_worker(slots=4)
        await publish_all(system, dying)
        await eventually(lambda: has_letters(system, 3))
        await system.stop_workers()
        # A letter that the broker itself has made says so in a header of the broker's.
        async with system.channel() as channel:
            exchange = await channel.get_exchange(JOBS_EXCHANGE)
            await exchange.publish(
                aio_pika.Message(b"{}", expiration=0.001, message_id="old"), "hot.effect"
            )
        await eventually(lambda: has_letters(system, 4))

        waiting = [*requests_of(200), *late]
        await publish_all(system, waiting)
        assert {queue.done for queue in await migrate(system.settings, "quorum")} == {True}
        assert await list_differences(system, "quorum") == []
        assert await system.broker.management.depth("backfill.llm") == 200
        reasons = sorted(letter.info.reason for letter in await system.letters())
        assert reasons == sorted([Reason.EXHAUSTED] * 3 + [Reason.EXPIRED])

        await migrate(system.settings, "classic")
        assert await list_differences(system, "classic") == []
        await system.start_worker(slots=4)
        await system.wait_until_all(ids_of(waiting), State.SUCCEEDED, timeout=30)


async def has_letters(system: System, number: int) -> bool:
    return len(await system.letters()) == number


async def test_a_queue_whose_jobs_do_not_end_in_time_is_left_as_it_was(
    broker43_classic: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with open_chaos(broker43_classic, sqlite_url, tmp_path) as system:
        effects = Effects(tmp_path)
        await system.start_worker(slots=2)
        accepted = await publish_all(system, requests_of(1, until="free"))
        await effects.reach("started", 1)
        accepted += await publish_all(system, requests_of(20))
        # A busy broker's figures may be older than they are taken to be here: see SETTLED.
        await system.broker.management.wait_until_depth("backfill.llm", 21)
        is_done = {
            queue.name: queue.done for queue in await migrate(system.settings, "quorum", wait=2)
        }
        assert is_done["backfill.llm"] is False
        assert is_done["hot.llm"] is True
        queue = await system.broker.management.queue("backfill.llm")
        assert queue["type"] == "classic"
        assert queue["policy"] == "jobs.lane.backfill"
        write(tmp_path, "free")
        await assert_all_accounted_for(system, accepted)


@pytest.mark.long
async def test_a_backfill_goes_on_during_a_migration(
    broker43_classic: TestBroker,
    sqlite_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The backfill's queue takes nothing for a while, and is missing for a moment."""
    # So that the backfill sees each of these states, which are shorter here than in production.
    monkeypatch.setattr(lane_pressure, "LIMITS_TTL", 0.1)
    async with open_backfills(broker43_classic, sqlite_url, tmp_path) as (system, user):
        operation = await user.start("numbers", {"to": BACKFILL_ITEMS}, rate=BACKFILL_ITEMS / 10)
        running = asyncio.create_task(user.run(operation))
        await eventually(lambda: system.ready(QUEUE), what="it publishes")
        assert {queue.done for queue in await migrate(system.settings, "quorum")} == {True}
        await system.start_worker()
        assert (await running).state is BulkState.COMPLETED
        assert await read_numbers(system.ledger) == list(range(BACKFILL_ITEMS))


@pytest.mark.long
async def test_a_message_that_the_broker_takes_no_more_is_named_and_stays(
    own_node: Callable[..., LocalNode],
) -> None:
    node = own_node("3.10")
    async with connected(node.amqp_url, "test") as connection:
        channel = await open_channel(underlying(connection), confirms=True)
        for name in ("old", "new"):
            await channel.queue_declare(name, durable=True)
            await channel.exchange_declare(name, exchange_type="fanout")
            await channel.queue_bind(name, name)
        for job_id, size in (("one", 10), ("large", 100_000), ("two", 10)):
            await channel.publish("old", "key", Envelope(b"x" * size, job_id))
        node.rabbitmqctl("eval", "application:set_env(rabbit, max_message_size, 50000).")
        message = r"large stays in old.*100,000 bytes, and at most 50,000.*max_message_size"
        with pytest.raises(NeverTaken, match=message):
            async with running_shovel(underlying(connection), "old", "new") as shovel:
                await shovel.wait_until_empty()
        assert (await read_queue_size(channel, "old")).ready >= 1
        node.rabbitmqctl("eval", "application:set_env(rabbit, max_message_size, 500000).")
        async with running_shovel(underlying(connection), "old", "new") as shovel:
            await shovel.wait_until_empty()
        assert (await read_queue_size(channel, "old")).ready == 0
        assert (await read_queue_size(channel, "new")).ready >= 3


async def test_a_queue_that_would_drop_jobs_is_refused_before_anything_is_changed(
    broker43_classic: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with open_backfills(broker43_classic, sqlite_url, tmp_path) as (system, _):
        url, vhost = broker43_classic.management_url, broker43_classic.vhost
        async with ManagementClient(url, vhost) as client:
            drops = {"overflow": "drop-head", "max-length": 100}
            await client.put_policy(Policy("drops", f"^{QUEUE}$", drops, priority=100))
            before = await client.bindings()

            async def is_in_force() -> bool:
                policies = {queue.name: queue.policy for queue in await client.queues()}
                return policies[QUEUE] == "drops"

            await eventually(is_in_force, what="the policy is in force")
            with pytest.raises(MigrationRefused, match="does not refuse what is too much"):
                await migrate(system.settings, "quorum")
            assert await client.bindings() == before
            names = {queue.name for queue in await client.queues()}
            assert not {name for name in names if name.startswith(STAND_IN_PREFIX)}


async def test_a_second_migration_at_the_same_time_is_refused(broker43_classic: TestBroker) -> None:
    async with (
        connected(broker43_classic.amqp_url, "one") as first_connection,
        connected(broker43_classic.amqp_url, "two") as second_connection,
        exclusive_migration(underlying(first_connection)),
    ):
        with pytest.raises(MigrationRefused, match="another migration is under way"):
            async with exclusive_migration(underlying(second_connection)):
                pass


async def test_an_interrupted_migration_says_to_run_it_again(
    broker43_classic: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with open_chaos(broker43_classic, sqlite_url, tmp_path) as system:
        command = ("topology", "migrate", "--to", "quorum", "--yes")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "switchyard.cli.main", *command),
            cwd=ROOT,
            env=environment_of(system.settings),
            stdout=DEVNULL,
            stderr=PIPE,
        )
        assert process.stderr is not None
        first = await asyncio.wait_for(process.stderr.readline(), 30)
        assert first.strip().decode().endswith("…")  # the lane that it has begun

        async def has_begun() -> bool:
            return any(queue.name.startswith(STAND_IN_PREFIX) for queue in await client.queues())

        url, vhost = system.broker.management_url, system.broker.vhost
        async with ManagementClient(url, vhost) as client:
            await eventually(has_begun, what="a queue stands in for another")
        process.send_signal(signal.SIGTERM)  # as SIGINT, which a background job may ignore
        _, stderr = await asyncio.wait_for(process.communicate(), 30)
        assert "Run it again" in stderr.decode()
        assert process.returncode == INTERRUPTED
        async with ManagementClient(url, vhost) as client:
            context = DoctorContext(system.settings, system.registry, management=client)
            (diagnostic,) = await topology(context)
        assert diagnostic.finding == Finding.MIGRATION_UNFINISHED
        assert "`jobctl topology migrate --to classic`" in (diagnostic.remedy or "")
        assert "`--to quorum`" in (diagnostic.remedy or "")


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.timeout(240)
async def test_a_migration_that_is_killed_again_and_again_under_load_loses_nothing(
    broker43_classic: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    dice = random.Random(5)
    async with (
        open_chaos(broker43_classic, sqlite_url, tmp_path) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        for _ in range(2):
            await processes.start("worker", slots=4)
        requests = [*requests_of(1_400, seconds=0.02), *requests_of(150, fail_attempts=1)]
        requests += requests_of(400, "hot.effect")
        dice.shuffle(requests)
        accepted: list[str] = []

        async def publish() -> None:
            for start in range(0, len(requests), 25):
                await publish_all(system, requests[start : start + 25], accepted=accepted)
                await asyncio.sleep(0.2)

        async with outbox(system):
            load = asyncio.create_task(publish())
            kills = 0
            for profile in ("quorum", "classic"):
                while True:
                    process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-m", "tests.support.migrating", profile),
                        cwd=ROOT,
                        env=environment_of(system.settings),
                        stdout=DEVNULL,
                    )
                    try:
                        # A start takes a second: it is killed at every point, sooner or later.
                        may_end = kills >= (MAX_KILLS if profile == "quorum" else 2 * MAX_KILLS)
                        limit = 60 if may_end else 1 + dice.random() * 1.5
                        assert await asyncio.wait_for(process.wait(), limit) == 0
                        break
                    except TimeoutError:
                        process.kill()
                        await process.wait()
                        kills += 1
                assert await list_differences(system, profile) == []
            await load
            assert kills >= MIN_KILLS
            await assert_all_accounted_for(system, accepted, timeout=90)

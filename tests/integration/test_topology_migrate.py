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
from tests.support.backfills import QUEUE, numbers, opened
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

MANY = 300
KILLS = 6
"""At most, on each of the two ways: it may be done before."""
FEWEST_KILLS = 3
UNUSED = ("jobs.lane.maintenance", "jobs.lane.vlm_ocr")


@pytest.fixture
def broker43_classic() -> Iterator[TestBroker]:
    yield from broker_of("4.3", "classic")


async def differs(system: System, profile: str) -> list[str]:
    wanted = build(
        "quorum" if profile == "quorum" else "classic",
        system.registry.routes,
        lanes=system.lanes,
        retry_delays=system.settings.retry_delays,
    )
    async with ManagementClient(system.broker.management_url, system.broker.vhost) as client:
        found = differences.diff(wanted, await client.fetch())
    # Lanes without a queue of these job types keep their policy: `apply` changes it.
    return [each.text for each in found if not each.name.startswith(UNUSED)]


@pytest.mark.long
async def test_jobs_letters_and_priorities_survive_the_way_there_and_back(
    broker43_classic: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with open_chaos(broker43_classic, sqlite_url, tmp_path) as system:
        dying = requests_of(3, max_attempts=1, fail_attempts=9)
        late = requests_of(1, "hot.effect")
        await system.start_worker(slots=4)
        await publish_all(system, dying)
        await eventually(lambda: letters_are(system, 3))
        await system.stop_workers()
        # A letter that the broker itself has made says so in a header of the broker's.
        async with system.channel() as channel:
            exchange = await channel.get_exchange(JOBS_EXCHANGE)
            await exchange.publish(
                aio_pika.Message(b"{}", expiration=0.001, message_id="old"), "hot.effect"
            )
        await eventually(lambda: letters_are(system, 4))

        waiting = [*requests_of(200), *late]
        await publish_all(system, waiting)
        assert {each.done for each in await migrate(system.settings, "quorum")} == {True}
        assert await differs(system, "quorum") == []
        assert await system.broker.management.depth("backfill.llm") == 200
        reasons = sorted(letter.info.reason for letter in await system.letters())
        assert reasons == sorted([Reason.EXHAUSTED] * 3 + [Reason.EXPIRED])

        await migrate(system.settings, "classic")
        assert await differs(system, "classic") == []
        await system.start_worker(slots=4)
        await system.wait_until_all(ids_of(waiting), State.SUCCEEDED, timeout=30)


async def letters_are(system: System, number: int) -> bool:
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
        ended = {each.name: each.done for each in await migrate(system.settings, "quorum", wait=2)}
        assert ended["backfill.llm"] is False
        assert ended["hot.llm"] is True
        queue = await system.broker.management.queue("backfill.llm")
        assert queue["type"] == "classic"
        assert queue["policy"] == "jobs.lane.backfill"
        write(tmp_path, "free")
        await assert_all_accounted_for(system, accepted)


@pytest.mark.long
async def test_a_backfill_goes_on_meanwhile(
    broker43_classic: TestBroker,
    sqlite_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its queue takes nothing for a while, and is not there for a moment."""
    # So that it sees each of these, which pass more quickly here than in earnest.
    monkeypatch.setattr(lane_pressure, "LIMITS_TTL", 0.1)
    async with opened(broker43_classic, sqlite_url, tmp_path) as (system, user):
        operation = await user.start("numbers", {"to": MANY}, rate=MANY / 10)
        running = asyncio.create_task(user.run(operation))
        await eventually(lambda: system.ready(QUEUE), what="it publishes")
        assert {each.done for each in await migrate(system.settings, "quorum")} == {True}
        await system.start_worker()
        assert (await running).state is BulkState.COMPLETED
        assert await numbers(system.ledger) == list(range(MANY))


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
        told = r"large stays in old.*100,000 bytes, and at most 50,000.*max_message_size"
        with pytest.raises(NeverTaken, match=told):
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
    async with opened(broker43_classic, sqlite_url, tmp_path) as (system, _):
        url, vhost = broker43_classic.management_url, broker43_classic.vhost
        async with ManagementClient(url, vhost) as client:
            drops = {"overflow": "drop-head", "max-length": 100}
            await client.put_policy(Policy("drops", f"^{QUEUE}$", drops, priority=100))
            before = await client.bindings()

            async def is_in_force() -> bool:
                live = {queue.name: queue.policy for queue in await client.queues()}
                return live[QUEUE] == "drops"

            await eventually(is_in_force, what="the policy is in force")
            with pytest.raises(MigrationRefused, match="does not refuse what is too much"):
                await migrate(system.settings, "quorum")
            assert await client.bindings() == before
            names = {queue.name for queue in await client.queues()}
            assert not {name for name in names if name.startswith(STAND_IN_PREFIX)}


async def test_two_at_once_are_one_too_many(broker43_classic: TestBroker) -> None:
    async with (
        connected(broker43_classic.amqp_url, "one") as one,
        connected(broker43_classic.amqp_url, "two") as two,
        exclusive_migration(underlying(one)),
    ):
        with pytest.raises(MigrationRefused, match="another migration is under way"):
            async with exclusive_migration(underlying(two)):
                pass


async def test_who_breaks_it_off_is_told_to_run_it_again(
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
            return any(each.name.startswith(STAND_IN_PREFIX) for each in await client.queues())

        url, vhost = system.broker.management_url, system.broker.vhost
        async with ManagementClient(url, vhost) as client:
            await eventually(has_begun, what="a queue stands in for another")
        process.send_signal(signal.SIGTERM)  # as SIGINT, which a background job may ignore
        _, said = await asyncio.wait_for(process.communicate(), 30)
        assert "Run it again" in said.decode()
        assert process.returncode == INTERRUPTED
        async with ManagementClient(url, vhost) as client:
            seen = DoctorContext(system.settings, system.registry, management=client)
            (told,) = await topology(seen)
        assert told.finding == Finding.MIGRATION_UNFINISHED
        assert "`jobctl topology migrate --to classic`" in (told.remedy or "")
        assert "`--to quorum`" in (told.remedy or "")


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.timeout(240)
async def test_killed_time_and_again_under_load_it_loses_nothing(
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
            for to in ("quorum", "classic"):
                while True:
                    process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-m", "tests.support.migrating", to),
                        cwd=ROOT,
                        env=environment_of(system.settings),
                        stdout=DEVNULL,
                    )
                    try:
                        # A start takes a second: it is killed at every point, sooner or later.
                        enough = kills >= (KILLS if to == "quorum" else 2 * KILLS)
                        limit = 60 if enough else 1 + dice.random() * 1.5
                        assert await asyncio.wait_for(process.wait(), limit) == 0
                        break
                    except TimeoutError:
                        process.kill()
                        await process.wait()
                        kills += 1
                assert await differs(system, to) == []
            await load
            assert kills >= FEWEST_KILLS
            await assert_all_accounted_for(system, accepted, timeout=90)

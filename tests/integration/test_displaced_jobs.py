"""Accepted jobs that the broker displaces, as from full lanes at a restart, go back."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage

from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, Reason
from switchyard.broker.errors import LaneFull
from switchyard.broker.lanes import DEAD_EXCHANGE
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import envelope_of
from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.dead.indexing import index_waiting
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.dead.purge import PurgeHandler, start_purge
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.checks.jobs import dead
from switchyard.services.engine.records.states import State
from switchyard.services.engine.redrive.displaced_returner import DisplacedJobReturner
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System, declare, lanes_with, open_system

LENGTH, HELD = 4, 2
"""Jobs that a lane's queue holds, and deliveries that its consumer keeps."""
SMALL_LANES = lanes_with(max_length={"hot": LENGTH, "backfill": LENGTH})


def make_returner(system: System) -> DisplacedJobReturner:
    return DisplacedJobReturner(
        system.settings, system.registry, system.ledger, system.wire, system.lanes
    )


async def index_letters(system: System) -> None:
    await index_waiting(system.settings, system.ledger, system.registry)


async def overfill_lane(system: System, lane: str) -> list[str]:
    """Publish more jobs than the lane's queue holds: a consumer keeps some unacknowledged."""
    held: list[AbstractIncomingMessage] = []
    ids = [await system.publish(f"{lane}.noop", priority=9 - number) for number in range(LENGTH)]
    connection = await aio_pika.connect(system.broker.amqp_url)
    channel = await connection.channel()
    await channel.set_qos(HELD)
    queue = await channel.get_queue(f"{lane}.llm", ensure=False)

    async def hold(message: AbstractIncomingMessage) -> None:
        held.append(message)

    await queue.consume(hold)
    await eventually(lambda: len(held) == HELD)
    return ids + [await system.publish(f"{lane}.noop") for _ in range(HELD)]


async def has_letters(system: System, number: int) -> bool:
    return await system.ready("jobs.dead") == number


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.10", "4.3"])
async def test_jobs_that_a_restart_displaces_from_full_lanes_go_back_when_there_is_room(
    own_node: Callable[..., LocalNode], sqlite_url: str, version: str
) -> None:
    node = await asyncio.to_thread(own_node, version)
    broker = TestBroker(version, "classic", "/", node)
    async with open_system(broker, sqlite_url, lanes=SMALL_LANES) as system:
        accepted = await overfill_lane(system, "hot") + await overfill_lane(system, "backfill")
        with pytest.raises(LaneFull):
            await system.publish("hot.noop", job_id="refused")
        await asyncio.to_thread(node.restart)
        await eventually(lambda: has_letters(system, 2 * HELD + 1))
        await index_letters(system)

        states = await system.ledger.job_reads.states(accepted)
        assert set(states.values()) == {State.QUEUED}
        assert await system.state("refused") is State.DEAD
        reasons = {
            letter.id: letter.reason
            for letter in (await system.ledger.dead_letters.list_dead()).items
        }
        assert reasons.pop("refused") == "overflowed"
        assert set(reasons.values()) == {"displaced"}
        context = cast(
            "DoctorContext", SimpleNamespace(need_ledger=lambda: system.ledger, broker=None)
        )
        checks = {check.name: check for check in await dead(context)}
        assert f"threw {2 * HELD} out of full lanes" in checks["displaced jobs"].detail
        assert checks["dead letters"].detail.startswith("1 wait")

        assert await make_returner(system).turn() == 0  # both lanes are full
        assert await system.ready("jobs.dead") == 2 * HELD + 1

        await system.start_worker()
        await eventually(lambda: is_empty(system, "hot.llm", "backfill.llm"))
        assert await make_returner(system).turn() == 2 * HELD
        await system.wait_until_all(accepted, State.SUCCEEDED)
        assert [journal.runs(job_id) for job_id in accepted] == [1] * len(accepted)
        assert [letter.id for letter in await system.letters()] == ["refused"]
        returned_ids = {
            letter.id for letter in (await system.ledger.dead_letters.list_dead()).items
        } - {"refused"}
        for letter_id in returned_ids:
            letter = await system.ledger.dead_letters.get_dead(letter_id)
            assert letter is not None
            assert letter.state == "redriven"
        assert await make_returner(system).turn() == 0


async def is_empty(system: System, *queues: str) -> bool:
    return not any([await system.ready(queue) for queue in queues])


# --- letters made by hand, as the broker makes them -------------------------------------------


async def displace(system: System, job_ids: Sequence[str], routing_key: str) -> None:
    """Publish jobs past the ledger, and have the broker throw them out."""
    lane, _, job_type = routing_key.partition(".")
    death = {
        "count": 1,
        "reason": "maxlen",
        "queue": f"{lane}.llm",
        "exchange": "jobs.topic",
        "routing-keys": [routing_key],
    }
    for job_id in job_ids:
        message = JobMessage(job_id=job_id, job_type=job_type, payload={"n": 1})
        envelope = envelope_of(message, {"x-death": [death]})
        await system.wire.send(DEAD_EXCHANGE, routing_key, envelope)
    await index_letters(system)


async def test_a_job_that_was_published_past_the_ledger_goes_back_too(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system:
        await displace(system, ["raw"], "backfill.noop")
        assert (await system.record("raw")).state is State.QUEUED
        assert await make_returner(system).turn() == 1
        await system.start_worker()
        record = await system.wait_for_state("raw", State.SUCCEEDED)
        assert (record.result, record.redrives) == ({"n": 1}, 0)
        assert await system.letters() == []


async def test_a_hot_job_past_the_ledger_that_its_lane_refused_stays_dead(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await displace(system, ["raw"], "hot.noop")  # its publisher was told
        record = await system.record("raw")
        assert (record.state, record.reason) == (State.DEAD, "overflowed")
        assert await make_returner(system).turn() == 0


async def test_a_displaced_job_that_has_ended_meanwhile_is_removed_and_not_run_again(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await displace(system, ["done", "gone"], "backfill.noop")
        await system.start_worker()
        message = JobMessage(job_id="done", job_type="noop", payload={"n": 1})
        await system.wire.publish(message, "backfill.noop")
        await system.wait_for_state("done", State.SUCCEEDED)
        await system.ledger.jobs.cancel("gone", 0)
        assert await make_returner(system).turn() == 0
        assert await system.letters() == []
        assert journal.runs("done") == 1
        assert journal.runs("gone") == 0


async def test_a_displaced_job_goes_back_into_its_queue_whatever_is_bound(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await displace(system, ["raw"], "backfill.noop")
        await unbind(system, "backfill.noop")
        assert await make_returner(system).turn() == 1
        assert await system.ready("backfill.llm") == 1


# --- jobs that no queue was bound for ---------------------------------------------------------


async def unbind(system: System, routing_key: str) -> None:
    """Unbind a routing key, as if no `topology apply` had bound a new job type yet."""
    lane, _, _ = routing_key.partition(".")
    async with system.channel() as channel:
        queue = await channel.get_queue(f"{lane}.llm", ensure=False)
        await queue.unbind("jobs.topic", routing_key)


async def test_an_accepted_job_that_no_queue_was_bound_for_goes_into_its_queue(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system:
        await unbind(system, "hot.noop")
        job_id = await system.publish("hot.noop", {"n": 7})
        await eventually(lambda: has_letters(system, 1))
        await index_letters(system)
        assert await system.state(job_id) is State.QUEUED
        (letter,) = (await system.ledger.dead_letters.list_dead()).items
        assert (letter.reason, letter.worker) == ("displaced", "llm")
        context = cast(
            "DoctorContext", SimpleNamespace(need_ledger=lambda: system.ledger, broker=None)
        )
        checks = {check.name: check for check in await dead(context)}
        assert checks["unbound jobs"].detail == "no queue was bound for 1 accepted job"
        assert "`jobctl topology apply`" in checks["unbound jobs"].remedy
        assert "displaced jobs" not in checks

        assert await make_returner(system).turn() == 1
        await system.start_worker()
        record = await system.wait_for_state(job_id, State.SUCCEEDED)
        assert (record.result, record.redrives, journal.runs(job_id)) == ({"n": 7}, 0, 1)
        assert await system.letters() == []
        assert await make_returner(system).turn() == 0


async def test_a_displaced_job_waits_for_its_queue_and_holds_no_other_up(
    broker310: TestBroker, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.services.engine.redrive.displaced_returner.MAX_PER_TURN", 2)
    async with open_system(broker310, sqlite_url) as system:
        for lane in ("hot", "backfill"):
            await unbind(system, f"{lane}.noop")
        ids = [await system.publish("hot.noop") for _ in range(3)]
        await eventually(lambda: has_letters(system, 3))
        await index_letters(system)
        later = await system.publish("backfill.noop")
        await eventually(lambda: has_letters(system, 4))
        await index_letters(system)
        await broker310.management.delete("/queues/{vhost}/hot.llm")
        assert await make_returner(system).turn() == 1  # that of the lane whose queue is there
        assert await system.ready("backfill.llm") == 1
        assert await make_returner(system).turn() == 0
        assert set((await system.ledger.job_reads.states([*ids, later])).values()) == {State.QUEUED}

        await declare(broker310, system.registry, lanes=system.lanes)
        assert await make_returner(system).turn() == 2
        assert await make_returner(system).turn() == 1
        await system.start_worker()
        await system.wait_until_all([*ids, later], State.SUCCEEDED)


async def test_a_foreign_message_without_a_queue_is_not_sent_back(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await unbind(system, "hot.noop")
        message = JobMessage(job_id="foreign", job_type="noop", payload={})
        for number in range(1, 4):  # from the second time on, it has a record of its death
            await system.wire.publish(message, "hot.noop")
            await eventually(lambda: has_letters(system, number))  # noqa: B023
            await index_letters(system)
            record = await system.record("foreign")
            assert (record.state, record.reason) == (State.DEAD, "unroutable")
            assert await make_returner(system).turn() == 0
        # Nor is a foreign message with the id of one of our jobs.
        ours = await system.publish("backfill.noop", {"n": 1})
        foreign_copy = message.model_copy(update={"job_id": ours, "payload": {"n": 2}})
        await system.wire.publish(foreign_copy, "hot.noop")
        await eventually(lambda: has_letters(system, 4))
        await index_letters(system)
        assert await make_returner(system).turn() == 0
        assert await system.state(ours) is State.QUEUED


async def test_a_purge_ends_the_jobs_that_would_have_gone_back(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await displace(system, ["raw"], "backfill.noop")
        letter_filter = LetterFilter(reason=str(Reason.DISPLACED))
        operation = await start_purge(system.ledger, letter_filter, created_by="test")
        handler = PurgeHandler(system.settings, system.ledger)
        ended = await BulkRunner(system.ledger, [handler]).run_one(operation.id)
        assert ended.counts["purged"] == 1
        record = await system.record("raw")
        assert (record.state, record.error_type) == (State.DEAD, "Purged")


async def test_a_letter_with_nonsense_for_a_queue_holds_nothing_up(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        for number, queue in enumerate(("nolane.llm", "x" * 300, "backfill." + "y" * 300)):
            headers = DeadLetterInfo(
                Reason.DISPLACED, "backfill.noop", queue=queue, error_type="Broker"
            ).headers()
            message = JobMessage(job_id=f"odd-{number}", job_type="noop", payload={})
            await system.wire.send(DEAD_EXCHANGE, "backfill.noop", envelope_of(message, headers))
        await displace(system, ["raw"], "backfill.noop")
        assert await make_returner(system).turn() == 1

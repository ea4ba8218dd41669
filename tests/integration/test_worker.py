"""A worker's own life: what it consumes, how it stops, whose jobs it takes over, and when."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import SecretStr

from switchyard.broker.background import BackgroundFailed
from switchyard.broker.dead.certificate import Reason
from switchyard.broker.lanes import JOBS_EXCHANGE
from switchyard.broker.message import JobMessage, Metadata
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.wire.envelope import Envelope
from switchyard.services.jobs.registry import Registry
from switchyard.services.jobs.retry import MAX_DEATHS
from switchyard.services.ledger import Ledger
from switchyard.services.records import (
    AttemptOutcome,
    Claimed,
    ClaimRequest,
    FinishRequest,
    LedgerUnavailable,
    State,
)
from switchyard.services.runtime.worker import (
    LANE_WORKER_PRIORITY,
    LAST_WORDS,
    Share,
    UnknownWorker,
    share_of,
)
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.peers import closes, listening
from tests.support.system import JOB_MODULES, System, open_system, workers_publish_by
from tests.support.tcp_proxy import TcpProxy
from tests.support.worker_process import Processes

LEVELS = (0.1, 0.2)
PATIENT = 0.4
"""Seconds of silence after which a worker counts as dead in these tests."""


@pytest.fixture
async def system(broker310: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    async with open_system(
        broker310, sqlite_url, retry_delays=LEVELS, takeover_after=PATIENT
    ) as opened:
        yield opened


@pytest.fixture
async def proxy(broker310: TestBroker) -> AsyncIterator[TcpProxy]:
    """On a worker's way to the broker."""
    async with TcpProxy("127.0.0.1", broker310.node.amqp_port) as opened:
        yield opened


def by(proxy: TcpProxy, system: System) -> dict[str, Any]:
    return {"amqp_url": SecretStr(proxy.url(system.broker.amqp_url))}


class FaultyLedger:
    """A ledger that is away for the calls that a test names."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.away: set[str] = set()
        """Calls that do not reach it; `*` for all."""
        self.loses_answer_of: set[str] = set()
        """Calls that reach it, but whose answer is lost, once each."""
        self.clock = ledger.clock

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            if {name, "*"} & self.away:
                raise LedgerUnavailable("away")
            answer = await getattr(self._ledger, name)(*arguments, **options)
            if name in self.loses_answer_of:
                self.loses_answer_of.remove(name)
                raise LedgerUnavailable("its answer was lost")
            return answer

        return call


async def held_by(
    system: System, message: JobMessage, worker_id: str, takeover_from: str | None = None
) -> str:
    """Let another worker, which is only in the ledger, claim the job; the claim's id."""
    await system.ledger.register_worker(
        worker_id, kinds=["llm"], lanes=["hot"], host="elsewhere", pid=1, concurrency=1
    )
    request = ClaimRequest(
        message=message,
        lane="hot",
        worker="llm",
        routing_key=f"hot.{message.job_type}",
        worker_id=worker_id,
        claim_id=f"{worker_id}/1",
        now=time.time(),
        takeover_from=takeover_from,
    )
    assert isinstance(await system.ledger.claim(request), Claimed)
    return request.claim_id


# --- what it consumes ---------------------------------------------------------------------------


def test_a_share_has_the_lanes_of_its_kind_and_one_reserved_slot() -> None:
    registry = Registry.load(JOB_MODULES)
    share = share_of(registry, "llm", slots=4)
    assert share == Share("llm", ("hot", "backfill"), 4, reserve=1, consumer_priority=0)
    assert share.queues == ["hot.llm", "backfill.llm"]
    assert share_of(registry, "link", slots=4).queues == ["hot.link", "maintenance.link"]
    assert share_of(registry, "llm", slots=1).reserve == 0
    assert share_of(registry, "llm", slots=3, reserve=9).reserve == 2
    special = share_of(registry, "llm", slots=4, lanes=["backfill"])
    assert (special.queues, special.consumer_priority) == (["backfill.llm"], LANE_WORKER_PRIORITY)


def test_a_kind_or_lane_without_work_is_refused_with_those_that_have() -> None:
    registry = Registry.load(JOB_MODULES)
    with pytest.raises(UnknownWorker, match="embed, link, llm"):
        share_of(registry, "ocr", slots=1)
    with pytest.raises(UnknownWorker, match="hot, backfill"):
        share_of(registry, "llm", slots=1, lanes=["maintenance"])


async def test_a_worker_of_several_kinds_has_slots_for_each(system: System) -> None:
    running = await system.start_worker("llm", "embed", slots=1)
    assert set(running.worker.queue_states) == {
        *("hot.llm", "backfill.llm"),
        *("hot.embed", "backfill.embed"),
    }
    held = await system.publish("hot.gated")
    await journal.started(held)
    other = await system.publish("hot.received")
    await system.wait_for_state(other, State.SUCCEEDED)


async def test_a_worker_is_on_record_from_its_start_to_its_stop(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url, takeover_after=PATIENT) as system:
        running = await system.start_worker("llm", "link", slots=3)
        (record,) = await system.ledger.list_workers()
        assert record.worker_id == running.worker_id
        assert (record.kinds, record.lanes) == (("llm", "link"), ("backfill", "hot", "maintenance"))
        assert (record.concurrency, record.stopped_at) == (6, None)
        beat = await system.ledger.worker_beat(running.worker_id)
        assert beat is not None

        async def beats() -> bool:
            return (await system.ledger.worker_beat(running.worker_id) or 0) >= beat + 2

        await eventually(beats)
        await running.stop()
        (record,) = await system.ledger.list_workers()
        assert record.stopped_at is not None


async def test_a_worker_tells_that_it_takes_hot_jobs(system: System) -> None:
    await system.start_worker("llm")

    async def hot_at() -> float | None:
        (record,) = await system.ledger.list_workers()
        return record.hot_at

    done = await system.publish("backfill.scripted", {"steps": ["done"]})
    await system.wait_for_state(done, State.SUCCEEDED)
    (before,) = await system.ledger.list_workers()
    beat = before.beat

    async def has_beaten() -> bool:
        return (await system.ledger.worker_beat(before.worker_id) or 0) > beat + 1

    await eventually(has_beaten)
    assert await hot_at() is None
    # However old it says that it is: clocks of publishers are not trusted.
    times = {"created_at": datetime(2020, 1, 1, tzinfo=UTC), "queued_at": datetime.now(UTC)}
    old = JobMessage(job_type="scripted", payload={"steps": ["done"]}, metadata=Metadata(**times))
    async with Publisher(system.settings) as publisher:
        await publisher.publish(old, "hot.scripted")

    async def is_told() -> bool:
        return await hot_at() is not None

    await eventually(is_told)


async def test_a_worker_without_a_ledger_does_not_start(system: System) -> None:
    faulty = FaultyLedger(system.ledger)
    faulty.away.add("register_worker")
    running = await system.start_worker("llm", ledger=faulty, wait=False)  # type: ignore[arg-type]
    with pytest.raises(LedgerUnavailable):
        await running.task
    system.workers.clear()


# --- stopping -----------------------------------------------------------------------------------


async def test_stop_lets_a_running_job_finish_within_the_grace(system: System) -> None:
    running = await system.start_worker("llm", slots=1, shutdown_grace=20)
    held = await system.publish("hot.gated")
    await journal.started(held)
    waiting = await system.publish("hot.noop")
    stopping = asyncio.create_task(running.stop())
    await eventually(lambda: set(running.worker.queue_states.values()) == {"away"})
    journal.release(held)
    await stopping
    assert await system.state(held) is State.SUCCEEDED
    assert await system.state(waiting) is State.QUEUED
    assert await system.ready("hot.llm") == 1


async def test_one_that_retires_takes_no_more_and_ends_with_its_last_job_beyond_any_grace(
    system: System,
) -> None:
    running = await system.start_worker("llm", slots=1, shutdown_grace=0.05)
    held = await system.publish("hot.gated")
    await journal.started(held)
    running.worker.retire()
    await eventually(lambda: set(running.worker.queue_states.values()) == {"away"})
    waiting = await system.publish("hot.noop")
    await system.start_worker("llm", slots=1)
    await system.wait_for_state(waiting, State.SUCCEEDED)  # by the other
    assert await system.state(held) is State.RUNNING
    journal.release(held)
    await asyncio.wait_for(running.task, 20)
    record = await system.record(held)
    assert (record.state, record.timeline) == (State.SUCCEEDED, ())


async def test_one_that_retires_and_is_told_to_stop_has_its_grace(system: System) -> None:
    running = await system.start_worker("llm", slots=1, shutdown_grace=0.05)
    held = await system.publish("hot.gated")
    await journal.started(held)
    running.worker.retire()
    await eventually(lambda: set(running.worker.queue_states.values()) == {"away"})
    await running.stop()
    assert await system.state(held) is State.QUEUED


@pytest.mark.parametrize(
    ("key", "payload"), [("hot.gated", {}), ("hot.crunched", {"do": "spin"}), ("hot.stubborn", {})]
)
async def test_over_the_grace_a_job_goes_back_and_nothing_is_held_against_it(
    system: System, key: str, payload: dict[str, Any]
) -> None:
    running = await system.start_worker("llm", slots=1, shutdown_grace=0.1)
    job_id = await system.publish(key, payload)
    await system.wait_for_state(job_id, State.RUNNING)
    if "crunched" not in key:
        await journal.started(job_id)
    stopped_at = time.monotonic()
    await running.stop()
    if "gated" in key:
        assert time.monotonic() - stopped_at < LAST_WORDS
    if "stubborn" not in key:
        assert running.worker.counters.returned == 1
    record = await system.record(job_id)
    assert (record.state, record.attempts, record.crashes) == (State.QUEUED, 0, 0)
    assert [line.outcome for line in record.timeline] == [AttemptOutcome.RELEASED]
    assert await system.ready("hot.llm") == 1
    await system.start_worker("llm", slots=1)
    await system.wait_for_state(job_id, State.RUNNING, State.SUCCEEDED)
    assert (await system.record(job_id)).crashes == 0
    journal.release(job_id)


@pytest.fixture
async def held_publisher(
    broker310: TestBroker, monkeypatch: pytest.MonkeyPatch, proxy: TcpProxy
) -> TcpProxy:
    """The proxy through which workers publish, and do nothing else."""
    workers_publish_by(proxy, broker310, monkeypatch)
    return proxy


@pytest.mark.parametrize("step", ["raise", "permanent"])
async def test_what_follows_from_a_handler_is_seen_through_beyond_the_grace(
    system: System, held_publisher: TcpProxy, step: str
) -> None:
    running = await system.start_worker("llm", shutdown_grace=0.1)
    await eventually(lambda: held_publisher.connections == 1)
    held_publisher.pause("to_client")
    job_id = await system.publish("hot.scripted", {"steps": [step]}, max_attempts=1)
    await system.wait_for_letter(job_id)
    stopping = asyncio.create_task(running.stop())
    await eventually(lambda: set(running.worker.queue_states.values()) == {"away"})
    await asyncio.sleep(0.3)  # beyond the grace
    assert not stopping.done()
    held_publisher.resume()
    await stopping
    record = await system.record(job_id)
    assert (record.state, record.attempts) == (State.DEAD, 1)
    assert len(await system.letters()) == 1
    assert await system.ready("hot.llm") == 0


async def test_a_job_that_could_not_be_concluded_goes_back_and_counts_no_crash(
    system: System, held_publisher: TcpProxy
) -> None:
    running = await system.start_worker("llm", shutdown_grace=0.1)
    await eventually(lambda: held_publisher.connections == 1)
    held_publisher.refuse()
    held_publisher.cut()
    job_id = await system.publish("hot.scripted", {"steps": ["raise", "done"]})
    await journal.started(job_id)
    await running.stop()
    record = await system.record(job_id)
    assert (record.state, record.attempts, record.crashes) == (State.QUEUED, 0, 0)
    await held_publisher.accept()
    await system.start_worker("llm")
    record = await system.wait_for_state(job_id, State.SUCCEEDED)
    assert (record.attempts, record.crashes, journal.runs(job_id)) == (0, 0, 2)


async def test_a_job_that_was_just_being_claimed_goes_back_and_counts_no_crash(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, answer = asyncio.Event(), asyncio.Event()
    claim = system.ledger.claim

    async def slow(request: ClaimRequest) -> Any:
        result = await claim(request)
        claimed.set()
        await answer.wait()
        return result

    monkeypatch.setattr(system.ledger, "claim", slow)
    running = await system.start_worker("llm", shutdown_grace=0.1)
    job_id = await system.publish("hot.noop")
    await claimed.wait()
    assert await system.state(job_id) is State.RUNNING
    await running.stop()
    assert await system.state(job_id) is State.QUEUED
    answer.set()
    await system.start_worker("llm")
    record = await system.wait_for_state(job_id, State.SUCCEEDED)
    assert (record.crashes, journal.runs(job_id)) == (0, 1)


async def test_stop_ends_a_worker_that_can_not_reach_its_broker(
    system: System, proxy: TcpProxy
) -> None:
    running = await system.start_worker("llm", **by(proxy, system))
    proxy.refuse()
    proxy.cut()
    await eventually(lambda: set(running.worker.queue_states.values()) == {"away"})
    await running.stop()


# --- the connection lost ------------------------------------------------------------------------


async def test_a_job_runs_on_when_the_connection_is_lost_and_is_not_run_again(
    system: System, proxy: TcpProxy
) -> None:
    running = await system.start_worker("llm", **by(proxy, system))
    job_id = await system.publish("hot.gated")
    await journal.started(job_id)
    for _ in range(2):
        before = proxy.connections
        proxy.cut()
        await eventually(lambda before=before: proxy.connections > before)  # type: ignore[misc]
        await running.consuming()
    management = system.broker.management
    await management.wait_for("hot.llm", messages_unacknowledged=1, messages=1)
    journal.release(job_id)
    record = await system.wait_for_state(job_id, State.SUCCEEDED)
    assert (journal.runs(job_id), record.crashes, record.timeline) == (1, 0, ())
    assert running.worker.counters.skipped == 0
    await management.wait_until_depth("hot.llm", 0)  # the new delivery was settled


async def test_a_retry_that_its_own_worker_gets_back_too_early_is_not_swallowed(
    broker310: TestBroker, sqlite_url: str, proxy: TcpProxy
) -> None:
    """The retry is published, the ledger is away, the connection is lost; then the retry is back
    before the job itself. The attempt, not yet recorded, may settle only the latter."""
    async with open_system(broker310, sqlite_url, retry_delays=(0.1, 60)) as system:
        faulty = FaultyLedger(system.ledger)
        faulty.away.add("finish")
        running = await system.start_worker("llm", ledger=faulty, **by(proxy, system))  # type: ignore[arg-type]
        steps = {"steps": ["retry:30", "done"]}
        job_id = await system.publish("hot.scripted", steps, priority=1)
        retry = await system.take("jobs.retry.60s")
        proxy.refuse()
        proxy.cut()
        await system.wait_until_ready("hot.llm", 1)
        first = Envelope(retry.body, job_id, priority=10)
        await system.wire.send(JOBS_EXCHANGE, "hot.scripted", first)
        await proxy.accept()
        await running.consuming()
        await system.wait_until_ready("hot.llm", 0)
        faulty.away.clear()
        record = await system.wait_for_state(job_id, State.SUCCEEDED)
        assert (record.attempts, journal.runs(job_id)) == (1, 2)


# --- takeover -----------------------------------------------------------------------------------


async def test_the_job_of_a_dead_worker_is_taken_over_once_it_is_silent(system: System) -> None:
    message = await system.publish_foreign("hot.noop")
    await held_by(system, message, "ghost")
    began = time.monotonic()
    await system.start_worker("llm")
    record = await system.wait_for_state(message.job_id, State.SUCCEEDED)
    assert time.monotonic() - began >= PATIENT
    assert record.crashes == 1
    assert [(line.outcome, line.worker_id) for line in record.timeline] == [
        (AttemptOutcome.CRASHED, "ghost")
    ]


async def test_the_job_of_a_worker_that_has_stopped_is_taken_over_at_once(system: System) -> None:
    message = await system.publish_foreign("hot.noop")
    await held_by(system, message, "ghost")
    await system.ledger.stopped("ghost")
    await system.start_worker("llm", takeover_after=60)
    await system.wait_for_state(message.job_id, State.SUCCEEDED)


@pytest.mark.parametrize("deaths", [1, MAX_DEATHS - 1])
async def test_a_job_that_was_there_when_workers_died_runs_in_a_process_of_its_own(
    system: System, deaths: int
) -> None:
    message = await system.publish_foreign("hot.located")
    await held_by_dead(system, message, deaths)
    await system.start_worker("llm")
    record = await system.wait_for_state(message.job_id, State.SUCCEEDED)
    assert record.crashes == deaths
    assert record.result == {"parent": os.getpid(), "state": "running"}


async def test_a_suspect_that_kills_its_own_process_is_dead_and_harms_nobody(
    system: System,
) -> None:
    message = await system.publish_foreign("hot.deadly")
    await held_by_dead(system, message, 1)
    worker = await system.start_worker("llm", slots=2)
    other = await system.publish("hot.gated")
    record = await system.wait_for_state(message.job_id, State.DEAD)
    assert (record.reason, record.error_type, record.crashes) == ("crashed", "ProcessCrashed", 1)
    assert [line.outcome for line in record.timeline] == ["crashed", "dead"]
    journal.release(other)
    await system.wait_for_state(other, State.SUCCEEDED)
    assert worker.worker.counters.succeeded == 1


async def test_a_job_that_was_there_whenever_a_worker_died_is_dead_at_last(
    system: System,
) -> None:
    message = await system.publish_foreign("hot.noop")
    await held_by_dead(system, message, MAX_DEATHS)
    await system.start_worker("llm")
    record = await system.wait_for_state(message.job_id, State.DEAD)
    assert (record.reason, record.error_type) == ("crashed", "WorkerCrashed")
    assert record.crashes == MAX_DEATHS
    letter = await system.wait_for_letter(message.job_id)
    assert letter.certificate.reason is Reason.CRASHED
    assert journal.starts == []


async def held_by_dead(system: System, message: JobMessage, deaths: int) -> None:
    """So many workers had the job one after another; the last one's death is yet to be seen."""
    held = None
    for number in range(deaths):
        held = await held_by(system, message, f"ghost-{number}", takeover_from=held)


async def test_the_job_of_a_living_worker_is_left_to_it(system: System) -> None:
    message = await system.publish_foreign("hot.noop")
    claim_id = await held_by(system, message, "living")

    async def live() -> None:
        while True:
            await system.ledger.beat("living")
            await asyncio.sleep(0.05)

    living = asyncio.create_task(live())
    running = await system.start_worker("llm", takeover_after=1.0)
    # Its copy is put off, looked at again, put off again …
    for _ in range(2):
        await system.wait_until_ready("jobs.retry.100ms", 1)
        await system.wait_until_ready("jobs.retry.100ms", 0)
    done = FinishRequest(message.job_id, claim_id, State.SUCCEEDED, attempts=0, now=time.time())
    assert await system.ledger.finish(done)
    await eventually(lambda: running.worker.counters.skipped == 1)
    living.cancel()
    assert journal.starts == []
    record = await system.record(message.job_id)
    assert (record.state, record.crashes) == (State.SUCCEEDED, 0)


async def test_a_claim_whose_answer_was_lost_does_not_lock_out_its_own_worker(
    system: System,
) -> None:
    """The job is ours in the ledger and runs nowhere; we live, so nobody takes it from us."""
    faulty = FaultyLedger(system.ledger)
    faulty.loses_answer_of.add("claim")
    running = await system.start_worker("llm", ledger=faulty)  # type: ignore[arg-type]
    job_id = await system.publish("hot.noop")
    record = await system.wait_for_state(job_id, State.SUCCEEDED)
    assert (record.crashes, journal.runs(job_id)) == (0, 1)
    assert running.worker.counters.returned == 1


# --- the ledger away ----------------------------------------------------------------------------


async def test_while_the_ledger_is_away_nothing_is_taken_and_nothing_is_lost(
    system: System,
) -> None:
    faulty = FaultyLedger(system.ledger)
    running = await system.start_worker("llm", ledger=faulty)  # type: ignore[arg-type]
    held = await system.publish("hot.gated")
    await journal.started(held)
    faulty.away.add("*")
    ids = [await system.publish("hot.noop") for _ in range(20)]
    await eventually(lambda: set(running.worker.queue_states.values()) == {"resting"})
    journal.release(held)
    await system.wait_until_ready("hot.llm", 20)
    assert await system.state(held) is State.RUNNING
    faulty.away.clear()
    await system.wait_until_all([held, *ids], State.SUCCEEDED)
    assert [journal.runs(job_id) for job_id in (held, *ids)] == [1] * 21
    assert [record.crashes for record in [await system.record(each) for each in ids]] == [0] * 20
    await running.consuming()


async def test_a_worker_goes_on_giving_signs_of_life_after_the_ledger_was_away(
    system: System,
) -> None:
    faulty = FaultyLedger(system.ledger)
    running = await system.start_worker("llm", ledger=faulty)  # type: ignore[arg-type]
    faulty.away.add("beat")
    await eventually(lambda: "resting" in running.worker.queue_states.values())
    faulty.away.clear()
    await running.consuming()
    beat = await system.ledger.worker_beat(running.worker_id)

    async def beats() -> bool:
        return await system.ledger.worker_beat(running.worker_id) != beat

    await eventually(beats)


# --- what runs beside the jobs ------------------------------------------------------------------


async def test_a_worker_whose_disk_is_full_gives_signs_of_life_and_works(
    system: System, tmp_path: Path
) -> None:
    """Its log can't be written: that must not end what nobody waits for."""
    async with Processes(system.settings, tmp_path) as processes:
        worker = await processes.start("worker", log=Path("/dev/full"))
        await another_beat(system, worker.worker_id)
        job_id = await system.publish("hot.noop")
        await system.wait_for_state(job_id, State.SUCCEEDED)
        await another_beat(system, worker.worker_id)
        worker.terminate()
        await worker.ended()


async def test_a_worker_that_can_not_give_signs_of_life_ends(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any, **__: Any) -> None:
        raise ValueError("a bug")

    faulty = FaultyLedger(system.ledger)
    faulty.beat = fails  # type: ignore[attr-defined]
    worker = await system.start_worker("llm", ledger=cast("Ledger", faulty))
    with pytest.raises(BackgroundFailed, match=r"beat.*a bug"):
        await asyncio.wait_for(asyncio.shield(worker.task), 15)
    system.workers.remove(worker)


async def test_a_worker_starts_behind_a_port_that_hangs_up_and_works_when_it_is_a_broker(
    system: System, proxy: TcpProxy
) -> None:
    proxy.refuse()
    with listening(closes, proxy.port):
        worker = await system.start_worker("llm", wait=False, **by(proxy, system))
        await asyncio.sleep(0.5)
        assert not worker.task.done()
    await proxy.accept()
    await worker.consuming()
    job_id = await system.publish("hot.noop")
    await system.wait_for_state(job_id, State.SUCCEEDED)


async def another_beat(system: System, worker_id: str) -> None:
    before = await system.ledger.worker_beat(worker_id)

    async def seen() -> bool:
        return await system.ledger.worker_beat(worker_id) != before

    await eventually(seen, what="a sign of life")

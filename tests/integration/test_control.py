"""Cancelling jobs before they start, while they run, and while they wait for a retry."""

import json
import time

import pytest

from switchyard.broker.lanes import CONTROL_EXCHANGE
from switchyard.broker.wire.envelope import Envelope
from switchyard.services.engine.records.requests import FinishRequest
from switchyard.services.engine.records.results import AttemptFinished, Cancelled, Running
from switchyard.services.engine.records.states import AttemptOutcome, State
from switchyard.services.engine.runtime import handler_task
from switchyard.services.engine.runtime.worker_commands import send_cancel
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System, open_system


async def wait_until_listening(system: System, workers: int = 1) -> None:
    """Wait until that many workers hear commands."""

    async def are_bound() -> bool:
        path = f"/exchanges/{{vhost}}/{CONTROL_EXCHANGE}/bindings/source"
        return len(await system.broker.management.get(path)) >= workers

    await eventually(are_bound, what="a worker that listens")


async def test_a_job_that_was_cancelled_before_it_started_is_never_run(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system:
        job_id = await system.publish("hot.noop")
        assert await system.ledger.jobs.cancel(job_id, time.time()) == Cancelled()
        worker = await system.start_worker("llm")
        await eventually(lambda: worker.worker.counters.skipped == 1)
        await system.stop_workers()
        assert await system.ready("hot.llm") == 0
        assert await system.state(job_id) is State.CANCELLED
        assert journal.starts == []


async def test_a_running_job_is_stopped_and_never_run_again(system: System) -> None:
    worker = await system.start_worker("llm")
    await system.start_worker("llm")
    await wait_until_listening(system, workers=2)
    job_id, other_id = [await system.publish("hot.gated") for _ in range(2)]
    await journal.started(job_id, other_id)
    assert isinstance(await system.ledger.jobs.cancel(job_id, time.time()), Running)
    await send_cancel(system.wire, job_id)
    record = await system.wait_for_state(job_id, State.CANCELLED)
    assert [attempt.outcome for attempt in record.timeline] == [AttemptOutcome.CANCELLED]
    assert journal.cancelled == [job_id]
    journal.release(other_id)
    await system.wait_for_state(other_id, State.SUCCEEDED)
    await system.stop_workers()
    assert await system.ready("hot.llm") == 0
    assert journal.runs(job_id) == 1
    assert worker.worker.running == 0
    assert await system.letters() == []


async def test_a_job_in_a_process_of_its_own_is_killed(system: System) -> None:
    worker = await system.start_worker("llm", slots=1)
    await wait_until_listening(system)
    job_id = await system.publish("hot.crunched", {"do": "spin"})
    await system.wait_for_state(job_id, State.RUNNING)
    await send_cancel(system.wire, job_id)
    await system.wait_for_state(job_id, State.CANCELLED)
    later_id = await system.publish("hot.crunched", {"n": 4})
    assert (await system.wait_for_state(later_id, State.SUCCEEDED)).result == {"n": 8}
    await eventually(lambda: worker.worker.counters.cancelled == 1, what="the worker's count")


async def test_a_job_that_waits_for_its_retry_is_not_run_again(system: System) -> None:
    worker = await system.start_worker("llm")
    job_id = await system.publish("hot.scripted", {"steps": ["retry:0.5", "done"]})
    await system.wait_for_state(job_id, State.RETRYING)
    assert await system.ledger.jobs.cancel(job_id, time.time()) == Cancelled()
    await eventually(lambda: worker.worker.counters.skipped == 1)
    assert await system.state(job_id) is State.CANCELLED
    assert journal.runs(job_id) == 1


@pytest.mark.parametrize("step", ["retry", "snooze", "permanent"])
async def test_a_run_ends_as_cancelled_although_its_worker_heard_no_command(
    system: System, step: str
) -> None:
    worker = await system.start_worker("llm")
    job_id = await system.publish("hot.held_script", {"steps": [step]})
    await journal.started(job_id)
    assert isinstance(await system.ledger.jobs.cancel(job_id, time.time()), Running)
    journal.release(job_id)
    await system.wait_for_state(job_id, State.CANCELLED)
    counters = worker.worker.counters
    await eventually(lambda: counters.cancelled == 1, what="the worker's count")
    assert (counters.retried, counters.snoozed, counters.dead) == (0, 0, 0)
    await system.stop_workers()
    assert await system.letters() == []
    assert journal.runs(job_id) == 1


async def test_a_run_ends_as_cancelled_if_the_cancel_comes_after_its_retry_was_sent(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await system.start_worker("llm")
    finish = system.ledger.jobs.finish

    async def cancel_and_finish(request: FinishRequest) -> AttemptFinished | None:
        assert isinstance(await system.ledger.jobs.cancel(job_id, time.time()), Running)
        return await finish(request)

    monkeypatch.setattr(system.ledger.jobs, "finish", cancel_and_finish)
    job_id = await system.publish("hot.held_script", {"steps": ["retry"]})
    await journal.started(job_id)
    journal.release(job_id)
    await system.wait_for_state(job_id, State.CANCELLED)
    counters = worker.worker.counters
    await eventually(lambda: counters.cancelled == 1 and counters.skipped == 1)
    assert counters.retried == 0


async def test_a_handler_that_ignores_its_cancel_may_succeed(system: System) -> None:
    await system.start_worker("llm")
    await wait_until_listening(system)
    job_id = await system.publish("hot.stubborn")
    await journal.started(job_id)
    await send_cancel(system.wire, job_id)
    await journal.until(lambda: journal.cancelled == [job_id])
    journal.release(job_id)
    await system.wait_for_state(job_id, State.SUCCEEDED)


async def test_a_handler_that_ignores_its_cancel_and_its_time_limit_holds_no_slot(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_task, "CANCEL_GRACE", 0.3)
    worker = await system.start_worker("llm", slots=1)
    await wait_until_listening(system)
    job_id = await system.publish("hot.stubborn")
    await journal.started(job_id)
    await send_cancel(system.wire, job_id)
    await system.wait_for_state(job_id, State.CANCELLED)

    slow = await system.publish("hot.stubborn_and_slow")
    record = await system.wait_for_state(slow, State.DEAD)
    assert (record.attempts, record.reason, record.error_type) == (
        1,
        "permanent",
        "TimeLimitExceeded",
    )
    assert "swallows CancelledError" in str(record.error_message)
    assert journal.runs(slow) == 1

    await system.wait_for_state(await system.publish("hot.noop"), State.SUCCEEDED)
    await eventually(lambda: worker.worker.running == 0, what="a free slot")
    # What the handlers return at last is ignored.
    journal.release(job_id, slow)
    assert await system.state(job_id) is State.CANCELLED


async def test_senseless_commands_are_ignored(system: System) -> None:
    await system.start_worker("llm")
    await wait_until_listening(system)
    job_id = await system.publish("hot.gated")
    await journal.started(job_id)
    nonsense = [
        b"",
        b"\xff",
        b"[]",
        b"3",
        b'{"command": "cancel"}',
        json.dumps({"command": "dance", "job_id": job_id}).encode(),
        json.dumps({"command": "cancel", "job_id": "another"}).encode(),
    ]
    for number, body in enumerate(nonsense):
        await system.wire.send(CONTROL_EXCHANGE, "", Envelope(body, f"nonsense-{number}"))
    await send_cancel(system.wire, job_id)
    await system.wait_for_state(job_id, State.CANCELLED)


async def test_commands_are_acknowledged(system: System) -> None:
    """A queue whose messages are never acknowledged grows, and on 3.10 loses its channel."""
    await system.start_worker("llm")
    await wait_until_listening(system)
    for number in range(5):
        await send_cancel(system.wire, f"nobody-{number}")

    async def is_empty() -> bool:
        queues = await system.broker.management.get("/queues/{vhost}")
        own_queues = [queue for queue in queues if queue["name"].startswith("amq.gen")]
        return [queue.get("messages") for queue in own_queues] == [0] and bool(
            own_queues[0].get("message_stats", {}).get("ack") == 5
        )

    await eventually(is_empty)


async def test_a_cancel_that_nobody_hears_is_no_error(system: System) -> None:
    await send_cancel(system.wire, "nobody")


async def test_a_worker_hears_commands_again_after_its_connection_was_closed(
    system: System,
) -> None:
    worker = await system.start_worker("llm")
    job_id = await system.publish("hot.gated")
    await journal.started(job_id)
    management = system.broker.management
    await eventually(management.close_connections)
    await eventually(lambda: "consuming" not in worker.worker.queue_states.values())
    await worker.consuming()
    await wait_until_listening(system)
    await send_cancel(system.wire, job_id)
    await system.wait_for_state(job_id, State.CANCELLED)
    assert journal.runs(job_id) == 1

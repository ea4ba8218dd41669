"""Faults that users of other systems have reported, tried here: work that is lost, stuck or done
twice, and monitoring that is wrong."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.engine.monitoring.metrics import Metrics
from switchyard.services.engine.publishing.preparing import THEN
from switchyard.services.engine.records.states import State
from switchyard.services.engine.runtime import handler_task
from switchyard.services.engine.runtime.handler_threads import MAX_CALLS
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import Note, journal
from tests.support.metrics import Scrape
from tests.support.system import JOB_MODULES, System, open_system

TIME_LIMIT = 0.3
"""Seconds that `wait_in_thread` may take."""


class ThreadCalls:
    """Calls that handlers make in threads, and that wait until the test lets them go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self._lock = threading.Lock()
        self._running = self.max_running = 0

    def call(self) -> None:
        with self._lock:
            self._running += 1
            self.max_running = max(self.max_running, self._running)
        self.go_on.wait(60)
        with self._lock:
            self._running -= 1


ALL_THREAD_CALLS = [ThreadCalls()]
"""The last one is that of the test that runs now."""


@job("wait_in_thread", worker="llm", lanes=("hot",), timeout=TIME_LIMIT, max_attempts=3)
async def wait_in_thread(payload: Note, ctx: JobContext) -> Outcome:
    journal.note_start(ctx)
    try:
        await asyncio.to_thread(ALL_THREAD_CALLS[-1].call)
    except asyncio.CancelledError:
        journal.cancelled.append(ctx.job_id)
        journal.changed()
        raise
    return Done()


@job("ask_thread", worker="llm", lanes=("hot",), timeout=30)
async def ask_thread(payload: Note, ctx: JobContext) -> Outcome:
    return Done({"n": await asyncio.to_thread(lambda: payload.n)})


@job("join_killed", worker="llm", lanes=("hot",), timeout=30)
async def join_killed(payload: Note, ctx: JobContext) -> Outcome:
    """Goes on when its two jobs have ended, one of which kills its process each time."""
    jobs = [Job("crunched", {"do": "die"}), Job("noop", {})]
    return Next(jobs, then=Job("received", {}), when_dead="go_on")


@pytest.fixture
def thread_calls() -> Iterator[ThreadCalls]:
    ALL_THREAD_CALLS.append(ThreadCalls())
    yield ALL_THREAD_CALLS[-1]
    ALL_THREAD_CALLS[-1].go_on.set()


@pytest.fixture
async def system(broker310: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    async with open_system(
        broker310, sqlite_url, modules=(*JOB_MODULES, __name__), retry_delays=(0.1, 0.2)
    ) as opened:
        yield opened


async def test_a_call_in_a_thread_is_not_made_again_beside_itself_nor_takes_threads_for_good(
    system: System, thread_calls: ThreadCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    # hatchet-dev/hatchet #1022: after a time-out, the next attempt runs beside the one before.
    monkeypatch.setattr(handler_task, "CANCEL_GRACE", 0.2)
    worker = await system.start_worker("llm", slots=MAX_CALLS)
    job_ids = [await system.publish("hot.wait_in_thread") for _ in range(MAX_CALLS)]
    await system.wait_until_all(job_ids, State.DEAD)
    assert thread_calls.max_running == MAX_CALLS
    assert {journal.runs(job_id) for job_id in job_ids} == {1}
    record = await system.record(job_ids[0])
    assert (record.reason, record.error_type) == ("permanent", "TimeLimitExceeded")
    assert "1 of its calls in threads run on" in (record.error_message or "")
    later_id = await system.publish("hot.ask_thread", {"n": 7})
    assert (await system.wait_for_state(later_id, State.SUCCEEDED)).result == {"n": 7}
    assert await asyncio.to_thread(lambda: 1) == 1
    await worker.stop()  # does not wait for the calls


async def test_a_call_in_a_thread_that_ends_soon_after_the_time_limit_is_tried_again(
    system: System, thread_calls: ThreadCalls
) -> None:
    await system.start_worker("llm")
    job_id = await system.publish("hot.wait_in_thread")
    await journal.until(lambda: job_id in journal.cancelled)
    thread_calls.go_on.set()
    await system.wait_for_state(job_id, State.SUCCEEDED)
    assert (journal.runs(job_id), thread_calls.max_running) == (2, 1)


async def test_a_job_that_waits_for_one_whose_process_is_killed_each_time_goes_on(
    system: System,
) -> None:
    # rq/rq #2006: a job that may go on without a failed one is not started if that was abandoned.
    await system.start_worker("llm", "embed")
    job_id = await system.publish("hot.join_killed")
    waiting_id = await system.stage_id(job_id, "received", THEN)
    await system.wait_for_state(waiting_id, State.SUCCEEDED)
    assert journal.runs(waiting_id) == 1
    dead = await system.record(await system.stage_id(job_id, "crunched", 0))
    assert (dead.state, dead.reason) == (State.DEAD, "crashed")


async def test_a_job_that_is_cancelled_between_two_attempts_runs_no_more(system: System) -> None:
    # hatchet-dev/hatchet #4900: the retry of superseded work runs.
    await system.start_worker("llm")
    job_id = await system.publish("hot.scripted", {"steps": ["retryable:0.5", "done"]})
    await system.wait_for_state(job_id, State.RETRYING)
    await system.ledger.jobs.cancel(job_id, system.ledger.clock.time())
    await system.wait_until_ready("jobs.retry.200ms", 0)
    later_id = await system.publish("hot.noop")
    await system.wait_for_state(later_id, State.SUCCEEDED)
    assert (await system.state(job_id), journal.runs(job_id)) == (State.CANCELLED, 1)


async def test_gauges_of_a_worker_return_to_zero_however_its_jobs_have_ended(
    system: System,
) -> None:
    # Bogdanp/dramatiq #672: the gauge of delayed messages only ever rises.
    metrics = Metrics()
    worker = await system.start_worker("llm", slots=4, metrics=metrics)
    scripts = [["retry:0", "done"], ["snooze:0", "done"], ["permanent"], ["raise"], ["nonsense"]]
    job_ids = [await system.publish("hot.scripted", {"steps": steps}) for steps in scripts]
    job_ids += [
        await system.publish("hot.crunched", {"do": action}) for action in ("die", "double")
    ]
    job_ids += [await system.publish("hot.slow"), gated_id := await system.publish("hot.gated")]
    await system.publish_raw("hot.noop", b"no job")
    await journal.started(gated_id)
    end_states = (State.SUCCEEDED, State.DEAD)
    await system.wait_until_all(
        [job_id for job_id in job_ids if job_id != gated_id], *end_states, timeout=60
    )
    scrape = Scrape((await metrics.scrape()).decode())
    assert scrape.value("switchyard_slots_used") >= 1
    await system.ledger.jobs.cancel(gated_id, system.ledger.clock.time())
    journal.release(gated_id)
    await eventually(lambda: worker.worker.running == 0, what="free slots")
    scrape = Scrape((await metrics.scrape()).decode())
    assert scrape.value("switchyard_slots_used") == 0
    assert scrape.value("llm_worker_concurrency") == 0

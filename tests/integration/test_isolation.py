"""Jobs in processes of their own: limits of time, processor time and memory, and their deaths."""

import asyncio
import os
import signal
from typing import Any

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.services.engine.records.states import State
from switchyard.services.engine.runtime.execution import Executor
from tests.support.eventually import eventually
from tests.support.jobs import MEMORY_LIMIT_MB, journal
from tests.support.system import System


async def crunch(system: System, do: str, *, key: str = "hot.crunched", **options: Any) -> str:
    """Publish a job that does `do`, wait until it has ended, and return its id."""
    job_id = await system.publish(key, {"do": do, "n": 21}, **options)
    await system.wait_for_state(job_id, State.SUCCEEDED, State.DEAD)
    return job_id


async def test_a_cpu_bound_handler_runs_in_a_process_of_its_own(system: System) -> None:
    await system.start_worker("llm", slots=1)
    assert (await system.record(await crunch(system, "double"))).result == {"n": 42}
    pids = [(await system.record(await crunch(system, "pid"))).result for _ in range(2)]
    assert pids[0] == pids[1] != {"pid": os.getpid()}  # kept for the next job
    refused = await system.record(await crunch(system, "permanent"))
    assert (refused.reason, refused.error_type) == ("permanent", "PermanentError")
    assert "in end_as" in (await system.wait_for_letter(refused.id)).info.traceback
    retried = await system.record(await crunch(system, "raise", max_attempts=2))
    assert (retried.reason, retried.attempts) == ("exhausted", 2)
    for nonsense in ("nonsense", "unpicklable"):
        assert await system.state(await crunch(system, nonsense, max_attempts=1)) is State.DEAD
    assert (await system.record(await crunch(system, "exit", max_attempts=1))).error_type == (
        "SystemExit"
    )


async def test_a_process_is_killed_at_its_time_limit(system: System) -> None:
    worker = await system.start_worker("llm", slots=1)
    record = await system.record(await crunch(system, "spin", max_attempts=1))
    assert (record.reason, record.error_type) == ("exhausted", "TimeLimitExceeded")
    await eventually(lambda: worker.worker.running == 0)
    assert (await system.record(await crunch(system, "double"))).result == {"n": 42}


async def test_a_job_that_takes_too_much_processor_time_is_not_tried_again(
    system: System,
) -> None:
    await system.start_worker("llm", slots=1)
    for _ in range(2):  # each job has its own time, in whatever process it runs
        record = await system.record(await crunch(system, "spin", key="hot.frugal"))
        assert (record.reason, record.error_type) == ("permanent", "ProcessorTimeExceeded")
        assert "frugal took more than its 1 s of processor time" in (record.error_message or "")
        assert record.attempts == 1
        assert (await system.record(await crunch(system, "double"))).result == {"n": 42}


async def test_a_process_has_the_memory_limit_of_the_job_that_it_runs(system: System) -> None:
    await system.start_worker("llm", slots=1)
    record = await system.record(await crunch(system, "allocate", max_attempts=1))
    assert (record.reason, record.error_type) == ("exhausted", "MemoryError")
    limited = await system.record(await crunch(system, "limit"))
    assert limited.result == {"limit": MEMORY_LIMIT_MB * 1024 * 1024}
    unlimited = await system.record(await crunch(system, "limit", key="hot.unlimited"))
    assert unlimited.result is not None
    assert unlimited.result["limit"] != MEMORY_LIMIT_MB * 1024 * 1024


async def test_a_job_that_kills_its_process_twice_is_dead_and_the_worker_lives_on(
    system: System,
) -> None:
    worker = await system.start_worker("llm", slots=2)
    gated_id = await system.publish("hot.gated")
    await journal.started(gated_id)
    record = await system.record(await crunch(system, "die"))
    assert (record.reason, record.error_type) == ("crashed", "ProcessCrashed")
    assert record.attempts == 2
    letter = await system.wait_for_letter(record.id)
    assert letter.info.reason is Reason.CRASHED
    assert "killed by SIGKILL, as the kernel does" in letter.info.message
    assert (await system.record(await crunch(system, "double"))).result == {"n": 42}
    journal.release(gated_id)
    await system.wait_for_state(gated_id, State.SUCCEEDED)
    await eventually(lambda: worker.worker.counters.succeeded == 2, what="the worker's count")


async def test_a_process_that_is_killed_while_it_is_idle_costs_no_later_job(
    system: System,
) -> None:
    await system.start_worker("llm", slots=1)
    result = (await system.record(await crunch(system, "pid"))).result
    assert result is not None
    os.kill(result["pid"], signal.SIGKILL)
    later_ids = [await crunch(system, "double") for _ in range(2)]
    assert [(await system.record(job_id)).state for job_id in later_ids] == [State.SUCCEEDED] * 2


async def test_an_executor_that_was_never_used_has_no_processes_to_end() -> None:
    executor = Executor(processes=4)
    await asyncio.wait_for(executor.close(), 1)

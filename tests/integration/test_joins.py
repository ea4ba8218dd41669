"""`Next(jobs, then=…)` with real workers: the waiting job runs once, after all others."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.publishing.preparing import THEN
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.chaos import Effects, outbox
from tests.support.joining import JOINING_MODULES
from tests.support.redrives import redrive
from tests.support.system import System, lanes_with, open_system


@pytest.fixture
async def system(broker310: TestBroker, database_url: str, tmp_path: Path) -> AsyncIterator[System]:
    async with open_system(
        broker310, database_url, modules=JOINING_MODULES, data_dir=tmp_path
    ) as opened:
        await opened.start_worker("llm")
        yield opened


async def wait_for_gather(system: System, fan_id: str, *states: State) -> JobRecord:
    then_id = await system.stage_id(fan_id, "gather", THEN)
    return await system.wait_for_state(then_id, *(states or (State.SUCCEEDED,)))


async def list_gather_runs(system: System, fan_id: str) -> list[str]:
    """Return the id of the job that waited for a fan's jobs, once for each of its runs."""
    then_id = await system.stage_id(fan_id, "gather", THEN)
    return [
        job_id for job_id in Effects(system.settings.data_dir).ids("gathered") if job_id == then_id
    ]


async def test_the_waiting_job_runs_once_after_all_others_and_gets_their_results(
    system: System,
) -> None:
    fan_id = await system.publish("hot.fan", {"leaves": 40})
    gather = await wait_for_gather(system, fan_id)
    assert gather.result == {"depth": 1, "states": {"succeeded": 40}, "numbers": list(range(40))}
    assert (gather.joins, gather.pipeline, gather.lane) == (True, fan_id, "hot")
    assert await list_gather_runs(system, fan_id) == [gather.id]
    join = await system.ledger.joins.join(gather.id)
    assert join is not None
    assert (join.total, join.succeeded, join.open) == (40, 40, 0)


async def test_the_waiting_job_waits_for_follow_up_jobs_as_well(system: System) -> None:
    fan_id = await system.publish("hot.fan", {"leaves": 3, "follow": 2})
    result = (await wait_for_gather(system, fan_id)).result or {}
    assert result["states"] == {"succeeded": 9}


async def test_joins_within_joins_end_from_the_inside(system: System) -> None:
    fan_id = await system.publish("hot.fan", {"leaves": 3, "depth": 3})
    result = (await wait_for_gather(system, fan_id)).result or {}
    # Three fans, and the three jobs that waited for the jobs of these.
    assert (result["depth"], result["states"]) == (3, {"succeeded": 6})
    assert len(Effects(system.settings.data_dir).ids("leaf")) == 27
    assert len(Effects(system.settings.data_dir).ids("gathered")) == 1 + 3 + 9


async def test_a_join_of_no_jobs_runs_at_once(system: System) -> None:
    fan_id = await system.publish("hot.fan", {"leaves": 0})
    gather = await wait_for_gather(system, fan_id)
    assert (gather.result or {})["states"] == {}


async def test_the_waiting_job_waits_until_dead_jobs_were_redriven(system: System) -> None:
    fan_id = await system.publish("hot.fan", {"leaves": 4, "dead": 2})
    dead = [await system.stage_id(fan_id, "leaf", number) for number in range(2)]
    await system.wait_until_all(dead, State.DEAD)
    others = [await system.stage_id(fan_id, "leaf", number) for number in range(2, 4)]
    await system.wait_until_all(others, State.SUCCEEDED)
    then_id = await system.stage_id(fan_id, "gather", THEN)
    assert await system.state(then_id) is State.JOINING
    await redrive(system, LetterFilter(ids=frozenset(dead)))
    assert ((await wait_for_gather(system, fan_id)).result or {})["states"] == {"succeeded": 4}
    assert await list_gather_runs(system, fan_id) == [then_id]


async def test_with_go_on_the_waiting_job_runs_and_knows_which_are_dead(
    system: System,
) -> None:
    fan_id = await system.publish("hot.fan", {"leaves": 4, "dead": 1, "when_dead": "go_on"})
    gather = await wait_for_gather(system, fan_id)
    assert (gather.result or {})["states"] == {"dead": 1, "succeeded": 3}
    assert (gather.result or {})["numbers"] == [1, 2, 3]
    await redrive(system, LetterFilter(job_type="leaf"))
    await system.wait_for_state(await system.stage_id(fan_id, "leaf", 0), State.SUCCEEDED)
    assert await list_gather_runs(system, fan_id) == [gather.id]


async def test_with_fail_the_waiting_job_dies_and_runs_when_it_is_redriven_after_them(
    system: System,
) -> None:
    fan_id = await system.publish("hot.fan", {"leaves": 2, "dead": 1, "when_dead": "fail"})
    gather = await wait_for_gather(system, fan_id, State.DEAD)
    assert (gather.reason, gather.error_type) == ("permanent", "JoinedJobsFailed")
    assert await list_gather_runs(system, fan_id) == []
    await redrive(system, LetterFilter(job_type="leaf"))
    await system.wait_for_state(await system.stage_id(fan_id, "leaf", 0), State.SUCCEEDED)
    await redrive(system, LetterFilter(job_type="gather"))
    assert ((await wait_for_gather(system, fan_id)).result or {})["states"] == {"succeeded": 2}


async def test_a_job_that_expires_on_the_broker_counts_as_dead(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    lanes = lanes_with(ttl_seconds={"backfill": 1})
    async with (
        open_system(
            broker310, sqlite_url, modules=JOINING_MODULES, data_dir=tmp_path, lanes=lanes
        ) as system,
        outbox(system),
    ):
        await system.start_worker("llm", lanes=["hot"])
        payload = {"leaves": 2, "lane": "backfill", "when_dead": "go_on"}
        fan_id = await system.publish("hot.fan", payload)
        gather = await wait_for_gather(system, fan_id)
        assert (gather.result or {})["states"] == {"dead": 2}
        leaf = await system.record(await system.stage_id(fan_id, "leaf", 0))
        assert leaf.reason == "expired"


async def test_a_cancelled_job_counts_as_ended(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_system(broker310, sqlite_url, modules=JOINING_MODULES, data_dir=tmp_path) as system,
        outbox(system),
    ):
        await system.start_worker("llm", lanes=["hot"])
        fan_id = await system.publish("hot.fan", {"leaves": 2, "lane": "backfill"})
        await system.wait_for_state(fan_id, State.SUCCEEDED)
        for number in range(2):
            await system.ledger.jobs.cancel(await system.stage_id(fan_id, "leaf", number), 0)
        assert ((await wait_for_gather(system, fan_id)).result or {})["states"] == {"cancelled": 2}


async def test_a_job_whose_handler_returns_an_invalid_join_is_dead(system: System) -> None:
    fan_id = await system.publish("hot.fan", {"answer": "nonsense"})
    fan = await system.wait_for_state(fan_id, State.DEAD)
    assert fan.error_type == "InvalidOutcome"
    assert "when_dead" in (fan.error_message or "")

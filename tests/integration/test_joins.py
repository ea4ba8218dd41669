"""`Next(jobs, then=…)` with real workers: what waits runs once, after all that it waits for."""

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


async def gathered(system: System, fan_id: str, *states: State) -> JobRecord:
    then_id = await system.stage_id(fan_id, "gather", THEN)
    return await system.wait_for_state(then_id, *(states or (State.SUCCEEDED,)))


async def gathered_by(system: System, fan_id: str) -> list[str]:
    """Runs of the job that waited for a fan's jobs."""
    then_id = await system.stage_id(fan_id, "gather", THEN)
    return [each for each in Effects(system.settings.data_dir).ids("gathered") if each == then_id]


async def test_the_waiting_job_runs_once_after_all_others_and_gets_their_results(
    system: System,
) -> None:
    fan_id = await system.publish("hot.fan", {"leaves": 40})
    then = await gathered(system, fan_id)
    assert then.result == {"depth": 1, "states": {"succeeded": 40}, "numbers": list(range(40))}
    assert (then.joins, then.pipeline, then.lane) == (True, fan_id, "hot")
    assert await gathered_by(system, fan_id) == [then.id]
    join = await system.ledger.joins.join(then.id)
    assert join is not None
    assert (join.total, join.succeeded, join.open) == (40, 40, 0)


async def test_the_waiting_job_waits_for_follow_up_jobs_as_well(system: System) -> None:
    fan_id = await system.publish("hot.fan", {"leaves": 3, "follow": 2})
    result = (await gathered(system, fan_id)).result or {}
    assert result["states"] == {"succeeded": 9}


async def test_joins_within_joins_end_from_the_inside(system: System) -> None:
    fan_id = await system.publish("hot.fan", {"leaves": 3, "depth": 3})
    result = (await gathered(system, fan_id)).result or {}
    # Three fans, and the three that waited for what these had made.
    assert (result["depth"], result["states"]) == (3, {"succeeded": 6})
    assert len(Effects(system.settings.data_dir).ids("leaf")) == 27
    assert len(Effects(system.settings.data_dir).ids("gathered")) == 1 + 3 + 9


async def test_a_join_of_no_jobs_runs_at_once(system: System) -> None:
    fan_id = await system.publish("hot.fan", {"leaves": 0})
    then = await gathered(system, fan_id)
    assert (then.result or {})["states"] == {}


async def test_the_waiting_job_waits_until_dead_jobs_were_redriven(system: System) -> None:
    fan_id = await system.publish("hot.fan", {"leaves": 4, "dead": 2})
    dead = [await system.stage_id(fan_id, "leaf", number) for number in range(2)]
    await system.wait_until_all(dead, State.DEAD)
    others = [await system.stage_id(fan_id, "leaf", number) for number in range(2, 4)]
    await system.wait_until_all(others, State.SUCCEEDED)
    then_id = await system.stage_id(fan_id, "gather", THEN)
    assert await system.state(then_id) is State.JOINING
    await redrive(system, LetterFilter(ids=frozenset(dead)))
    assert ((await gathered(system, fan_id)).result or {})["states"] == {"succeeded": 4}
    assert await gathered_by(system, fan_id) == [then_id]


async def test_with_go_on_the_waiting_job_runs_and_knows_which_are_dead(
    system: System,
) -> None:
    fan_id = await system.publish("hot.fan", {"leaves": 4, "dead": 1, "when_dead": "go_on"})
    then = await gathered(system, fan_id)
    assert (then.result or {})["states"] == {"dead": 1, "succeeded": 3}
    assert (then.result or {})["numbers"] == [1, 2, 3]
    await redrive(system, LetterFilter(job_type="leaf"))
    await system.wait_for_state(await system.stage_id(fan_id, "leaf", 0), State.SUCCEEDED)
    assert await gathered_by(system, fan_id) == [then.id]


async def test_with_fail_the_waiting_job_dies_and_runs_when_it_is_redriven_after_them(
    system: System,
) -> None:
    fan_id = await system.publish("hot.fan", {"leaves": 2, "dead": 1, "when_dead": "fail"})
    then = await gathered(system, fan_id, State.DEAD)
    assert (then.reason, then.error_type) == ("permanent", "JoinedJobsFailed")
    assert await gathered_by(system, fan_id) == []
    await redrive(system, LetterFilter(job_type="leaf"))
    await system.wait_for_state(await system.stage_id(fan_id, "leaf", 0), State.SUCCEEDED)
    await redrive(system, LetterFilter(job_type="gather"))
    assert ((await gathered(system, fan_id)).result or {})["states"] == {"succeeded": 2}


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
        then = await gathered(system, fan_id)
        assert (then.result or {})["states"] == {"dead": 2}
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
        assert ((await gathered(system, fan_id)).result or {})["states"] == {"cancelled": 2}


async def test_a_job_whose_handler_returns_an_invalid_join_is_dead(system: System) -> None:
    fan_id = await system.publish("hot.fan", {"answer": "nonsense"})
    fan = await system.wait_for_state(fan_id, State.DEAD)
    assert fan.error_type == "InvalidOutcome"
    assert "when_dead" in (fan.error_message or "")

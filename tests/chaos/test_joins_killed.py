"""Workers and schedulers that are killed while a thousand joined jobs run: what waits for them runs
once, and after all of them."""

import asyncio
import itertools
import time
from collections import Counter
from pathlib import Path

import pytest

from switchyard.broker.dead.certificate import Reason
from switchyard.services.publishing.preparing import THEN, job_id_of
from switchyard.services.records import State
from tests.support.brokers import TestBroker
from tests.support.chaos import (
    Effects,
    history_of,
    open_chaos,
    wait_until_lanes_are_empty,
)
from tests.support.joining import JOINING_MODULES
from tests.support.system import System
from tests.support.worker_process import Process, Processes

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]

SCHEDULER = {"turn": 0.1, "lease": 1.0, "pending": 2.0, "silent": 3.0}


class Fleet:
    """Workers and schedulers; who is killed is started again, beside what goes on."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._alive: dict[str, list[Process]] = {"worker": [], "scheduler": []}
        self._starting: set[asyncio.Task[None]] = set()
        self.killed = 0

    async def __aenter__(self) -> "Fleet":
        roles = ("worker", "worker", "worker", "scheduler", "scheduler")
        for role in roles:  # one after the other: a busy machine starts five at once slowly
            await self._start(role)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self._starting, return_exceptions=True)

    async def _start(self, role: str) -> None:
        options = SCHEDULER if role == "scheduler" else {"slots": 16}
        self._alive[role].append(await self._processes.start(role, **options))

    async def kill(self, role: str) -> None:
        """Kill who has lived longest, where another one is there: a busy machine takes its time to
        start one, and work shall go on."""
        if len(self._alive[role]) < 2:
            return
        victim = self._alive[role].pop(0)
        victim.kill()
        await victim.ended()
        self.killed += 1
        task = asyncio.create_task(self._start(role))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def keep_killing(self, every: float) -> None:
        """One every so many seconds, or as soon as there is one again."""
        for role in itertools.cycle(("worker", "scheduler", "worker")):
            await asyncio.gather(self.kill(role), asyncio.sleep(every))


async def was_joined_once(system: System, fan_id: str, leaves: int) -> bool:
    """The job that waited left `joining` once and ended once, and when it ran, all that it waited
    for had ended: well, or as one that was there at too many deaths of workers. False where it was
    the one that waits, or the one that made them all, that was there."""
    then = job_id_of(fan_id, "gather", THEN)
    for each in (fan_id, then):
        record = await system.wait_for_state(each, State.SUCCEEDED, State.DEAD, timeout=120)
        if record.state is State.DEAD:
            assert record.reason == Reason.CRASHED
            return False
    result = record.result or {}
    assert result["states"].keys() <= {"succeeded", "dead"}
    assert sum(result["states"].values()) == leaves
    assert len(result["numbers"]) == result["states"]["succeeded"] > leaves / 2
    changes = await history_of(system.settings.ledger_url)
    of_it = Counter((old, new) for job_id, old, new in changes if job_id == then)
    assert of_it[State.JOINING, State.PENDING] == 1
    assert sum(number for (_, new), number in of_it.items() if new == State.SUCCEEDED) == 1
    return True


@pytest.mark.long
async def test_a_thousand_jobs_are_joined_once_whoever_is_killed_every_second(
    broker310: TestBroker, database_url: str, tmp_path: Path
) -> None:
    async with (
        open_chaos(
            broker310, database_url, tmp_path, modules=JOINING_MODULES, takeover_after=0.8
        ) as system,
        Processes(system.settings, tmp_path) as processes,
        Fleet(processes) as fleet,
    ):
        killing = asyncio.create_task(fleet.keep_killing(1.0))
        try:
            until, rounds = time.monotonic() + 60, 0
            while time.monotonic() < until:
                fan_id = await system.publish(
                    "backfill.fan", {"leaves": 1000, "when_dead": "go_on"}
                )
                rounds += await was_joined_once(system, fan_id, 1000)
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        assert rounds > 0
        print(f"{rounds} rounds, {fleet.killed} killed")  # for whoever runs it with -s
        await wait_until_lanes_are_empty(system, 60)
        reasons = {letter.certificate.reason for letter in await system.letters()}
        assert reasons <= {Reason.CRASHED}


async def test_joins_three_deep_come_to_their_end_once_whoever_is_killed(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_chaos(
            broker310, sqlite_url, tmp_path, modules=JOINING_MODULES, takeover_after=0.8
        ) as system,
        Processes(system.settings, tmp_path) as processes,
        Fleet(processes) as fleet,
    ):
        fan_id = await system.publish("backfill.fan", {"leaves": 5, "depth": 3})
        effects = Effects(tmp_path)
        for some in (20, 60, 100):
            await effects.reach("leaf", some, timeout=60)
            await fleet.kill("worker")
        then = job_id_of(fan_id, "gather", THEN)
        record = await system.wait_for_state(then, State.SUCCEEDED, timeout=90)
        assert (record.result or {})["states"] == {"succeeded": 10}
        changes = await history_of(system.settings.ledger_url)
        let_go = Counter(job_id for job_id, old, _ in changes if old == State.JOINING)
        assert sorted(let_go.values()) == [1] * (1 + 5 + 25)

"""One run: a join of many jobs on a system of its own, while somebody is killed every second."""

import asyncio
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Literal

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.services.engine.publishing.preparing import THEN
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker, fresh_vhost, new_node
from tests.support.chaos import history_of, open_chaos, wait_until_lanes_are_empty
from tests.support.join_run.account import faults_of, was_spent
from tests.support.join_run.fleet import Fleet
from tests.support.joining import JOINING_MODULES
from tests.support.postgres import PostgresServer
from tests.support.system import System
from tests.support.worker_process import Processes

EVERY = 1.0
"""Seconds from one kill to the next."""
KILLS = 3
"""So many must be killed. Until then one join follows the other: a fast machine ends one between
two kills."""
SILENCE = 240.0
"""Seconds in which some job must end: how long a whole join takes depends on the machine."""
TRIES = 5
"""So many joins are begun where the one that makes them, or that waits, is there at too many deaths
itself: that is its end, and says nothing of joins."""
VERSIONS: dict[str, str] = {"classic": "3.10", "quorum": "4.3"}


@dataclass
class Verdict:
    """What came of one run."""

    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    killed: dict[str, int] = field(default_factory=dict)
    dead: int = 0
    """Joined jobs that were there at too many deaths."""
    joined: int = 0
    """Joins that came to their end."""
    spent: int = 0
    """Joins that were begun again."""

    @property
    def text(self) -> str:
        kills = ", ".join(f"{count} {role}s" for role, count in self.killed.items())
        dead = f", {self.dead} given up" if self.dead else ""
        again = f"; begun again {self.spent} times" if self.spent else ""
        good = "one then, after all" + (f", {self.joined} times" if self.joined > 1 else "")
        how = f"WRONG: {'; '.join(self.wrong)}" if self.wrong else good
        return f"{how}{dead}{again} ({self.seconds:.0f} s, killed {kills})"


async def run_join(
    broker: TestBroker, database_url: str, directory: Path, *, seed: int, leaves: int = 1000
) -> Verdict:
    """Join so many jobs under kills; the seed decides who is killed, and in which order."""
    verdict = Verdict()
    async with (
        open_chaos(
            broker, database_url, directory, modules=JOINING_MODULES, takeover_after=0.8
        ) as system,
        Processes(system.settings, directory) as processes,
        Fleet(processes, Random(seed)) as fleet,
    ):
        killing = asyncio.create_task(fleet.keep_killing(EVERY))
        began = time.monotonic()
        try:
            while not verdict.joined or sum(fleet.killed.values()) < KILLS:
                if await _joined(system, leaves, verdict):
                    verdict.joined += 1
                else:
                    verdict.spent += 1
                    if verdict.spent == TRIES:
                        verdict.wrong.append(f"{TRIES} joins did not come to their end")
                if verdict.wrong:
                    break
        except AssertionError as error:
            verdict.wrong.append(str(error))
        finally:
            verdict.seconds = time.monotonic() - began
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        verdict.killed = dict(fleet.killed)
        if not verdict.wrong:
            await _look_at_the_end(system, verdict)
    return verdict


async def _joined(system: System, leaves: int, verdict: Verdict) -> bool:
    """Return whether a join has ended that says something; what is wrong with it is in the
    verdict."""
    fan_id = await system.publish("backfill.fan", {"leaves": leaves, "when_dead": "go_on"})
    fan = await _wait_for_end(system, fan_id)
    if was_spent(fan):
        return False
    if fan.state is State.DEAD:
        verdict.wrong.append(f"the job that makes the others is dead: {fan.error_message}")
        return False
    then_id = await system.stage_id(fan_id, "gather", THEN)
    then = await _wait_for_end(system, then_id)
    changes = await history_of(system.settings.ledger_url)
    verdict.wrong += faults_of(then, changes, leaves)
    verdict.dead += (then.result or {}).get("states", {}).get(State.DEAD, 0)
    return not was_spent(then)


async def _wait_for_end(system: System, job_id: str) -> JobRecord:
    ends = (State.SUCCEEDED, State.DEAD)
    return await system.wait_for_state(job_id, *ends, timeout=SILENCE, while_jobs_end=True)


async def _look_at_the_end(system: System, verdict: Verdict) -> None:
    """Check that nothing is left on the broker, and that only jobs are dead that were there at too
    many deaths."""
    try:
        await wait_until_lanes_are_empty(system, 60)
    except AssertionError as error:
        verdict.wrong.append(str(error))
    reasons = {letter.info.reason for letter in await system.letters()}
    if reasons - {Reason.CRASHED}:
        verdict.wrong.append(f"jobs died of {', '.join(sorted(reasons))}")


# --- as a command ---------------------------------------------------------------------------------


@dataclass
class Plan:
    """What is asked for."""

    runs: int = 20
    seed: int = 1
    """Of the first run; each has one more than the one before."""
    jobs: int = 1000
    profile: Literal["classic", "quorum"] = "classic"
    ledger: Literal["sqlite", "postgresql", "both"] = "both"

    @property
    def ledgers(self) -> tuple[str, ...]:
        return ("sqlite", "postgresql") if self.ledger == "both" else (self.ledger,)


async def run_all(plan: Plan, directory: Path) -> bool:
    """Return whether all runs ended as they must; prints a line for each, and the verdict."""
    print(f"Join run: {plan.runs} runs of {plan.jobs} jobs, {plan.profile}, ledger {plan.ledger}")
    print(f"Logs: {directory}", flush=True)
    good = True
    with ExitStack() as stack:
        node = new_node(VERSIONS[plan.profile], directory / "node")
        stack.callback(node.kill)
        await asyncio.to_thread(node.start)
        postgres = None
        if "postgresql" in plan.ledgers:
            # Not below ours, where PostgreSQL's own user may not go.
            place = stack.enter_context(TemporaryDirectory(prefix="switchyard-join-run-"))
            postgres = PostgresServer(Path(place))
            stack.callback(postgres.stop)
            await asyncio.to_thread(postgres.start)
        for seed in range(plan.seed, plan.seed + plan.runs):
            for ledger in plan.ledgers:
                own = directory / f"{seed}-{ledger}"
                own.mkdir()
                url = f"sqlite+aiosqlite:///{own / 'ledger.db'}"
                if ledger == "postgresql" and postgres is not None:
                    url = postgres.create_database()
                with fresh_vhost(node, VERSIONS[plan.profile], plan.profile) as broker:
                    verdict = await run_join(broker, url, own, seed=seed, leaves=plan.jobs)
                good = good and not verdict.wrong
                print(f"seed {seed}, {ledger}: {verdict.text}", flush=True)
    print("All joins ended once, after all of their jobs" if good else "NOT as it must be")
    return good

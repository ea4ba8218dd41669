"""One run: a join of many jobs on a system of its own, while a process is killed every second."""

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
from tests.support.join_run.account import find_faults, was_given_up
from tests.support.join_run.fleet import Fleet
from tests.support.joining import JOINING_MODULES
from tests.support.postgres import PostgresServer
from tests.support.system import System
from tests.support.worker_process import Processes

KILL_INTERVAL = 1.0
"""Seconds from one kill to the next."""
MIN_KILLS = 3
"""Processes that must be killed in a run. Until then another join follows, as a fast machine ends
one between two kills."""
PROGRESS_TIMEOUT = 240.0
"""Seconds within which some job must end: how long a whole join takes depends on the machine."""
MAX_SPENT_JOINS = 5
"""Joins that may end without a verdict, because the job that makes or awaits the others was given
up after too many deaths of workers."""
BROKER_VERSIONS: dict[str, str] = {"classic": "3.10", "quorum": "4.3"}


@dataclass
class Verdict:
    """The result of one run."""

    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0
    killed: dict[str, int] = field(default_factory=dict)
    given_up_jobs: int = 0
    """Joined jobs that were given up because they ran at too many deaths of workers."""
    joined: int = 0
    """Joins that ended with a verdict."""
    given_up_joins: int = 0
    """Joins without a verdict, each followed by another one."""

    @property
    def text(self) -> str:
        kills = ", ".join(f"{count} {role}s" for role, count in self.killed.items())
        given_up_jobs = f", {self.given_up_jobs} given up" if self.given_up_jobs else ""
        repeated = f"; begun again {self.given_up_joins} times" if self.given_up_joins else ""
        success = "one then, after all" + (f", {self.joined} times" if self.joined > 1 else "")
        outcome = f"WRONG: {'; '.join(self.faults)}" if self.faults else success
        return f"{outcome}{given_up_jobs}{repeated} ({self.seconds:.0f} s, killed {kills})"


async def run_join(
    broker: TestBroker, database_url: str, directory: Path, *, seed: int, leaves: int = 1000
) -> Verdict:
    """Join that many jobs under kills; the seed decides which processes are killed."""
    verdict = Verdict()
    async with (
        open_chaos(
            broker, database_url, directory, modules=JOINING_MODULES, takeover_after=0.8
        ) as system,
        Processes(system.settings, directory) as processes,
        Fleet(processes, Random(seed)) as fleet,
    ):
        killing = asyncio.create_task(fleet.keep_killing(KILL_INTERVAL))
        began = time.monotonic()
        try:
            while not verdict.joined or sum(fleet.killed.values()) < MIN_KILLS:
                if await _run_one_join(system, leaves, verdict):
                    verdict.joined += 1
                else:
                    verdict.given_up_joins += 1
                    if verdict.given_up_joins == MAX_SPENT_JOINS:
                        verdict.faults.append(f"{MAX_SPENT_JOINS} joins did not come to their end")
                if verdict.faults:
                    break
        except AssertionError as error:
            verdict.faults.append(str(error))
        finally:
            verdict.seconds = time.monotonic() - began
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        verdict.killed = dict(fleet.killed)
        if not verdict.faults:
            await _check_leftovers(system, verdict)
    return verdict


async def _run_one_join(system: System, leaves: int, verdict: Verdict) -> bool:
    """Run a join and add its faults to the verdict. Return whether it ended with a verdict."""
    fan_id = await system.publish("backfill.fan", {"leaves": leaves, "when_dead": "go_on"})
    fan = await _wait_for_end(system, fan_id)
    if was_given_up(fan):
        return False
    if fan.state is State.DEAD:
        verdict.faults.append(f"the job that makes the others is dead: {fan.error_message}")
        return False
    then_id = await system.stage_id(fan_id, "gather", THEN)
    then = await _wait_for_end(system, then_id)
    changes = await history_of(system.settings.ledger_url)
    verdict.faults += find_faults(then, changes, leaves)
    verdict.given_up_jobs += (then.result or {}).get("states", {}).get(State.DEAD, 0)
    return not was_given_up(then)


async def _wait_for_end(system: System, job_id: str) -> JobRecord:
    ends = (State.SUCCEEDED, State.DEAD)
    return await system.wait_for_state(job_id, *ends, timeout=PROGRESS_TIMEOUT, while_jobs_end=True)


async def _check_leftovers(system: System, verdict: Verdict) -> None:
    """Check that nothing is left on the broker, and that jobs died only because they ran at too
    many deaths of workers."""
    try:
        await wait_until_lanes_are_empty(system, 60)
    except AssertionError as error:
        verdict.faults.append(str(error))
    reasons = {letter.info.reason for letter in await system.letters()}
    if reasons - {Reason.CRASHED}:
        verdict.faults.append(f"jobs died of {', '.join(sorted(reasons))}")


# --- as a command ---------------------------------------------------------------------------------


@dataclass
class Plan:
    """Options of the command."""

    runs: int = 20
    seed: int = 1
    """Seed of the first run; each further run has the next number."""
    jobs: int = 1000
    profile: Literal["classic", "quorum"] = "classic"
    ledger: Literal["sqlite", "postgresql", "both"] = "both"

    @property
    def ledgers(self) -> tuple[str, ...]:
        return ("sqlite", "postgresql") if self.ledger == "both" else (self.ledger,)


async def run_all(plan: Plan, directory: Path) -> bool:
    """Run all joins and print a line for each. Return whether all ended as they must."""
    print(f"Join run: {plan.runs} runs of {plan.jobs} jobs, {plan.profile}, ledger {plan.ledger}")
    print(f"Logs: {directory}", flush=True)
    is_good = True
    with ExitStack() as stack:
        node = new_node(BROKER_VERSIONS[plan.profile], directory / "node")
        stack.callback(node.kill)
        await asyncio.to_thread(node.start)
        postgres = None
        if "postgresql" in plan.ledgers:
            # Not below `directory`, which PostgreSQL's own user may not enter.
            postgres_folder = stack.enter_context(TemporaryDirectory(prefix="switchyard-join-run-"))
            postgres = PostgresServer(Path(postgres_folder))
            stack.callback(postgres.stop)
            await asyncio.to_thread(postgres.start)
        for seed in range(plan.seed, plan.seed + plan.runs):
            for ledger in plan.ledgers:
                run_directory = directory / f"{seed}-{ledger}"
                run_directory.mkdir()
                url = f"sqlite+aiosqlite:///{run_directory / 'ledger.db'}"
                if ledger == "postgresql" and postgres is not None:
                    url = postgres.create_database()
                with fresh_vhost(node, BROKER_VERSIONS[plan.profile], plan.profile) as broker:
                    verdict = await run_join(
                        broker, url, run_directory, seed=seed, leaves=plan.jobs
                    )
                is_good = is_good and not verdict.faults
                print(f"seed {seed}, {ledger}: {verdict.text}", flush=True)
    print("All joins ended once, after all of their jobs" if is_good else "NOT as it must be")
    return is_good

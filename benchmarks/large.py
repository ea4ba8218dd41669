"""`make bench ARGS=large`: does what a year of jobs leaves in the ledger make anything slower?"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Any

from benchmarks.common import environment, module_command, payload, run_json
from benchmarks.contenders.with_switchyard import MODULE
from benchmarks.large_ledger import JOBS_PER_OPERATION, RARE_SOURCE, YEAR, fill
from benchmarks.measurements import Measurement, Row
from benchmarks.stage import Stage
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.publisher import Publisher
from switchyard.services.common.logs import configure
from switchyard.services.common.settings import Settings
from switchyard.services.engine.identity.broker import system_guard
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import JobPublisher, Published
from switchyard.services.engine.records.requests import (
    ClaimRequest,
    DeadLetterFilter,
    FinishRequest,
    JobFilter,
    NewJob,
)
from switchyard.services.engine.records.results import Claimed
from switchyard.services.engine.records.retention import RetentionAges
from switchyard.services.engine.records.states import State
from switchyard.services.engine.scheduler.retention import Pruner

SMALL = 100_000
"""Jobs of the ledger that the large one is compared with."""
TARGET = "at most 1.3"
REPEATS = 5
"""Of each operation on each ledger, one after the other; their median is one round."""
BATCH = 100
"""Jobs that are published, claimed or looked at together."""
PRUNED = 5_000
"""Jobs that are old enough to be removed."""
LETTERS = 6_000
"""Dead letters of 20 causes that wait on the broker: few of many, so a redrive asks the index."""


def large_sqlite(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Work on a ledger with that many jobs of a year, against one with 100,000."""
    return _compared(stage, "sqlite", rounds, count)


def large_postgresql(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Work on a ledger with that many jobs of a year, against one with 100,000."""
    return _compared(stage, "postgresql", rounds, count)


@dataclass
class System:
    """One of the two systems."""

    ledger: Ledger
    publisher: JobPublisher
    ages: RetentionAges
    """By which the oldest thousands are to be removed, the same number in both systems."""
    made_at: float
    count: int

    def moment(self, share: float) -> float:
        """Return when that share of the jobs had been made."""
        return self.made_at - YEAR * (1 - share)


Operation = Callable[[System], Awaitable[object]]


def _compared(stage: Stage, kind: str, rounds: int, count: int) -> list[Row]:
    configure("warning")
    made, envs = Row(f"{count:,} jobs made", "s"), []
    for size in (SMALL, count):
        env = environment("", **stage.switchyard("large", kind))
        began = time.monotonic()
        asyncio.run(_fill(env["JOBS_DATABASE_URL"], size))
        made.rounds = [time.monotonic() - began]
        run_json(module_command("run_redrive", "bury", LETTERS), env)
        envs.append(env)
    rows = [made, *asyncio.run(_measured(envs, (SMALL, count), rounds))]
    redrive = _Compared("redrive of one cause of 20")
    for _ in range(rounds):
        for env, values in zip(envs, redrive.rounds, strict=True):
            done = run_json(module_command("run_redrive", "group"), env)
            values.append(done["seconds"] / done["redriven"] * 1000)
    return [*rows, redrive.row("ms/letter")]


async def _fill(url: str, count: int) -> None:
    async with await Ledger.open(url) as ledger:
        await fill(ledger, url, count)


@dataclass
class _Compared:
    """What an operation takes on both ledgers."""

    name: str
    rounds: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    def row(self, unit: str) -> Row:
        small, large = self.rounds
        before = statistics.median(small)
        row = Row(f"{self.name} ({before:,.1f} at {SMALL:,})", unit, large, TARGET)
        row.ratio = row.median / before
        return row


async def _measured(envs: Sequence[dict[str, str]], sizes: Sequence[int], rounds: int) -> list[Row]:
    async with AsyncExitStack() as stack:
        systems = [await _opened(stack, env, size) for env, size in zip(envs, sizes, strict=True)]
        found = []
        for name, operation in OPERATIONS.items():
            compared = _Compared(name)
            for system in systems:
                await operation(system)  # reads what the first one finds cold
            for _ in range(rounds):
                for system, values in zip(systems, compared.rounds, strict=True):
                    values.append(await _median(partial(operation, system)))
            found.append(compared.row("ms"))
        return found


async def _median(operation: Callable[[], Awaitable[object]]) -> float:
    took = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        await operation()
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


async def _opened(stack: AsyncExitStack, env: dict[str, str], count: int) -> System:
    settings = Settings.model_validate(
        {name[5:].lower(): value for name, value in env.items() if name.startswith("JOBS_")}
    )
    ledger = await stack.enter_async_context(await Ledger.open(settings.ledger_url))
    publisher = await stack.enter_async_context(
        Publisher(settings, guard=system_guard(settings, ledger))
    )
    oldest = await ledger.retention.oldest_job()
    assert oldest is not None
    made_at = oldest + YEAR * (1 - 1 / count)
    age = ledger.clock.time() - (oldest + YEAR * PRUNED / count)
    return System(
        ledger,
        JobPublisher(Registry.load([MODULE]), ledger, publisher),
        RetentionAges({State.SUCCEEDED: age, State.CANCELLED: age, State.DEAD: age}),
        made_at,
        count,
    )


# --- what is done ---------------------------------------------------------------------------------


def _listing(**wanted: Any) -> Operation:
    async def list_jobs(system: System) -> None:
        page = await system.ledger.job_reads.list_jobs(JobFilter(**wanted))
        assert page.items or page.examined_since, wanted

    return list_jobs


async def _deep_page(system: System) -> None:
    until = JobFilter(until=system.moment(0.1))
    first = await system.ledger.job_reads.list_jobs(until, limit=1)
    page = await system.ledger.job_reads.list_jobs(cursor=first.next_cursor)
    assert len(page.items) == 50


async def _hour(system: System) -> None:
    since = system.moment(0.5)
    wanted = JobFilter(since=since, until=since + 3600, lane="hot")
    assert (await system.ledger.job_reads.list_jobs(wanted)).items


async def _operation_listed(system: System) -> None:
    wanted = JobFilter(operation_id=f"operation-{system.count // 2 // JOBS_PER_OPERATION}")
    assert (await system.ledger.job_reads.list_jobs(wanted)).items


async def _one_job(system: System) -> None:
    page = await system.ledger.job_reads.list_jobs(JobFilter(until=system.moment(0.3)), limit=1)
    assert await system.ledger.job_reads.get(page.items[0].id)


async def _published(system: System) -> None:
    requests = [JobRequest("backfill.noop", payload(number)) for number in range(BATCH)]
    results = await system.publisher.publish_many(requests)
    assert all(isinstance(each, Published) for each in results), results


async def _worked(system: System) -> None:
    """Record jobs, claim and end them, as publisher and worker do; without the broker."""
    jobs, now = system.ledger.jobs, system.ledger.clock.time()
    messages = [
        JobMessage(job_id=f"worked-{token_hex(8)}", job_type="noop", payload=payload(number))
        for number in range(BATCH)
    ]
    await jobs.record_many([NewJob(each, "hot", "llm", "hot.noop") for each in messages])
    await jobs.mark_queued([each.job_id for each in messages], now)
    claims = [
        ClaimRequest(each, "hot", "llm", "hot.noop", "worker-1", token_hex(8), now)
        for each in messages
    ]
    results = await asyncio.gather(*map(jobs.claim, claims))
    assert all(isinstance(each, Claimed) for each in results), results
    await asyncio.gather(
        *(
            jobs.finish(FinishRequest(each.message.job_id, each.claim_id, State.SUCCEEDED, 1, now))
            for each in claims
        )
    )


async def _pruned(system: System) -> None:
    """Two steps of the pruner: what is too old is looked for, and some of it removed."""
    retention, removed = system.ledger.retention, 0
    for lane in ("hot", "backfill"):
        found = await retention.examine(
            system.ages, State.SUCCEEDED, lane, before=None, limit=BATCH
        )
        removal = await retention.remove_jobs(system.ages, found.removable[:20])
        removed += removal.rows["jobs"]
    assert removed


async def _nothing_to_prune(system: System) -> None:
    ages = system.ages.longer_by(YEAR)
    report = await Pruner(system.ledger, ages).make_pass(dry_run=True)
    assert not report.rows["jobs"]


OPERATIONS: dict[str, Operation] = {
    "jobs list": _listing(),
    "jobs list, deep page": _deep_page,
    "jobs list --state dead": _listing(state=State.DEAD),
    "jobs list --state succeeded": _listing(state=State.SUCCEEDED),
    "jobs list --state succeeded --lane hot": _listing(state=State.SUCCEEDED, lane="hot"),
    "jobs list --state running": _listing(state=State.RUNNING),
    "jobs list --lane maintenance": _listing(lane="maintenance"),
    "jobs list --type": _listing(job_type="embed_chunks"),
    "jobs list --source": _listing(source="source-3"),
    "jobs list --source, long ago": _listing(source=RARE_SOURCE),
    "jobs list --tag": _listing(tags={"team": "search"}),
    "jobs list --error": _listing(error="no page"),
    "jobs list --slower-than": _listing(state=State.SUCCEEDED, slower_than=90),
    "jobs list, one hour": _hour,
    "jobs list, one operation": _operation_listed,
    "jobs show": _one_job,
    "jobs by state and lane": lambda system: system.ledger.job_reads.counts(),
    "gauges of the metrics": lambda system: system.ledger.gauges.gauges(),
    "what is due": lambda system: system.ledger.due_work.find_due(
        system.made_at, unconfirmed_before=system.made_at, silent_for=60
    ),
    "doctor: time-outs": lambda system: system.ledger.job_reads.timed_out(system.made_at - 3600),
    "files that are needed": lambda system: system.ledger.references.names_needed(),
    "dead groups": lambda system: system.ledger.dead_letters.dead_groups(),
    "dead list": lambda system: system.ledger.dead_letters.list_dead(
        DeadLetterFilter(state="waiting")
    ),
    "dead letters counted": lambda system: system.ledger.dead_letters.count_dead(
        DeadLetterFilter(state="waiting", error_type="ErrorA")
    ),
    f"{BATCH} jobs published": _published,
    f"{BATCH} jobs recorded, claimed, ended": _worked,
    "pruning, two steps": _pruned,
    "pruning, nothing to do": _nothing_to_prune,
    "pruning, overdue jobs": lambda system: system.ledger.retention.overdue(
        system.ages.longer_by(YEAR), by=60, sample=1000
    ),
}
"""What is measured, in this order: pruning comes last, as it makes the ledgers smaller."""


ALL: dict[str, tuple[Measurement, int, int]] = {
    "large-sqlite": (large_sqlite, 3, 2_000_000),
    "large-postgresql": (large_postgresql, 3, 10_000_000),
}

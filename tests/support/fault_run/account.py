"""The account of a fault run: what became of every job that was accepted.

A door is a way by which jobs come in, such as HTTP, AMQP or a backfill of a file.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import create_async_engine

from switchyard.broker.dead.scan import QueuedDeadLetter
from switchyard.services.engine.ledger.sql.tables import attempts, jobs
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.records.states import FINISHED, State
from switchyard.services.pipeline.records.documents import COMPLETED
from tests.support.chaos import Effect, Effects, history_of, wait_until_lanes_are_empty
from tests.support.fault_run.chronicle import Chronicle
from tests.support.fault_run.load import Accepted
from tests.support.system import System

FAULT_JOB_PREFIX = "fault_"
"""Beginning of the names of job types whose handlers leave traces."""
GIVEN_UP = frozenset({"crashed", "released", "superseded"})
"""Outcomes in the ledger of attempts after which another run may begin before their own end."""
FAULT_KINDS = (
    "lost",
    "not ended",
    "wrongly dead",
    "wrongly alive",
    "ended twice",
    "never run",
    "overlap",
    "letters",
)


@dataclass
class Run:
    """One run of a handler, by the traces that it has left."""

    worker_id: str
    attempt: int
    began: float
    ended: float | None = None
    ending: str = "no end"


@dataclass
class Account:
    """Counts of jobs by door, and everything that is wrong."""

    doors: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    faulty_jobs: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """What is wrong with each faulty job, by id."""
    other_faults: list[str] = field(default_factory=list)
    """What is wrong and belongs to no job."""
    runs: dict[str, list[Run]] = field(default_factory=dict)
    timelines: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """The ledger's timeline of each job that has one."""
    rows: dict[str, Any] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not self.faulty_jobs and not self.other_faults

    def blame(self, door: str, job_id: str, kind: str, detail: str = "") -> None:
        self.doors[door][kind] += 1
        self.faulty_jobs[job_id].append(f"{kind} ({detail})" if detail else kind)


async def count_open_jobs(system: System) -> int:
    """Return the number of jobs in the ledger that have not ended."""
    return sum(
        count for state, count in (await _count_states(system)).items() if state not in FINISHED
    )


async def _count_states(system: System) -> dict[State, int]:
    engine = create_async_engine(system.settings.ledger_url)
    async with engine.connect() as connection:
        rows = await connection.execute(text("SELECT state, COUNT(*) FROM jobs GROUP BY state"))
        counts = {State(state): count for state, count in rows}
    await engine.dispose()
    return counts


async def make_account(
    system: System, accepted: Accepted, documents: dict[str, str], chronicle: Chronicle
) -> Account:
    """Judge every job, backfill and document, once all is quiet. `documents` are states by id."""
    account = Account()
    await _read(system, account)
    account.runs = runs_of(Effects(system.settings.data_dir).all())
    doors = {job_id: _door_of(row) for job_id, row in account.rows.items()} | accepted.jobs
    changes = defaultdict(list)
    for job_id, old, new in await history_of(system.settings.ledger_url):
        changes[job_id].append((old, new))
    letters = deaths_in(await system.letters())
    for job_id, door in doors.items():
        judge(account, door, job_id, changes[job_id], letters[job_id], chronicle)
    for stray in letters.keys() - account.rows.keys():
        account.other_faults.append(f"a dead letter without a job: {stray}")
    await _judge_others(system, accepted, documents, account)
    return account


def deaths_in(letters: Sequence[QueuedDeadLetter]) -> Counter[str]:
    """Count the deaths of each id that its letters report. A letter whose publish was cut off
    before its confirm exists twice, and counts once."""
    return Counter(letter_id for letter_id, _ in {(letter.id, letter.death) for letter in letters})


def judge(
    account: Account,
    door: str,
    job_id: str,
    changes: Sequence[tuple[str, str]],
    letters: int,
    chronicle: Chronicle,
) -> None:
    """Compare an accepted job with its changes of state (old, new), dead letters and runs."""
    account.doors[door]["accepted"] += 1
    row = account.rows.get(job_id)
    if row is None:
        account.blame(door, job_id, "lost", "the ledger does not know it")
        return
    _judge_end(account, door, row)
    ends = [new for _, new in changes if new in FINISHED]
    left_ends = [old for old, _ in changes if old in FINISHED]
    if len(ends) > 1 or left_ends:
        account.blame(door, job_id, "ended twice", f"{ends}, left {left_ends}")
    if letters != (row.state == State.DEAD):
        account.blame(door, job_id, "letters", f"{letters}, and it is {row.state}")
    for first, second in overlaps(account.runs.get(job_id, [])):
        if not any(
            _was_given_up(line, first, second, chronicle) for line in account.timelines[job_id]
        ):
            detail = f"{first.worker_id} and {second.worker_id} at {chronicle.at(second.began)}"
            account.blame(door, job_id, "overlap", detail)


async def _read(system: System, account: Account) -> None:
    engine = create_async_engine(system.settings.ledger_url)
    async with engine.connect() as connection:
        for row in await connection.execute(select(jobs)):
            account.rows[row.id] = row
        for line in await connection.execute(select(attempts).order_by(attempts.c.id)):
            account.timelines[line.job_id].append(line)
    await engine.dispose()


def _door_of(row: Any) -> str:
    """Return the door of a job whose id no caller has received."""
    if row.parent_id is not None:
        return "next" if row.job_type.startswith(FAULT_JOB_PREFIX) else "upload"
    if row.operation_id is not None:
        return "file"
    # An API answer that was cut off leaves a recorded job, which must end as well.
    return "unsure" if row.job_type.startswith(FAULT_JOB_PREFIX) else "upload"


def _judge_end(account: Account, door: str, row: Any) -> None:
    must_die = bool(json.loads(row.payload).get("dies"))
    if row.state == State.SUCCEEDED:
        account.doors[door]["succeeded"] += 1
    elif row.state == State.DEAD and must_die:
        account.doors[door]["dead"] += 1
    if row.state not in (State.SUCCEEDED, State.DEAD):
        account.blame(door, row.id, "not ended", row.state)
    elif row.state == State.DEAD and not must_die:
        account.blame(door, row.id, "wrongly dead", f"{row.reason}: {row.error_message}")
    elif row.state == State.SUCCEEDED and must_die:
        account.blame(door, row.id, "wrongly alive")
    elif (
        row.state == State.SUCCEEDED
        and row.job_type.startswith(FAULT_JOB_PREFIX)
        and not any(run.ending == "done" for run in account.runs.get(row.id, []))
    ):
        account.blame(door, row.id, "never run", "it is said to have succeeded")


async def _judge_others(
    system: System, accepted: Accepted, documents: dict[str, str], account: Account
) -> None:
    job_counts = Counter(
        row.operation_id for row in account.rows.values() if row.operation_id and not row.parent_id
    )
    for backfill, items in accepted.backfills.items():
        record = await system.ledger.bulk.get_bulk(backfill)
        if (
            record is None
            or record.state is not BulkState.COMPLETED
            or job_counts[backfill] != items
        ):
            state = record and record.state
            account.other_faults.append(
                f"{backfill}: {state}, {job_counts[backfill]} jobs of {items} items"
            )
    for document in sorted(accepted.documents):
        if documents.get(document) != COMPLETED:
            account.other_faults.append(f"document {document}: {documents.get(document)}")
    try:
        await wait_until_lanes_are_empty(system)
    except AssertionError as error:
        account.other_faults.append(str(error))


# --- runs -------------------------------------------------------------------------------------


def runs_of(effects: list[Effect]) -> dict[str, list[Run]]:
    """Return the runs of each job, in the order in which they began."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for effect in effects:
        job_runs = runs[effect.job_id]
        if effect.what == "started":
            job_runs.append(Run(effect.worker_id, effect.attempt, effect.at))
            continue
        for run in job_runs:
            is_same_attempt = (run.worker_id, run.attempt) == (effect.worker_id, effect.attempt)
            if is_same_attempt and run.ended is None:
                run.ended, run.ending = effect.at, effect.what
                break
    return dict(runs)


def overlaps(runs: list[Run]) -> list[tuple[Run, Run]]:
    """Return the pairs of runs of which the second began before the first had ended.

    A run without an end was killed with its process, nobody knows when, so it proves nothing.
    """
    return [
        (first, second)
        for index, first in enumerate(runs)
        for second in runs[index + 1 :]
        if first.ended is not None and second.began < first.ended
    ]


def _was_given_up(line: Any, first: Run, second: Run, chronicle: Chronicle) -> bool:
    """Return whether the ledger gave up the first run before the second began."""
    is_given_up = line.outcome in GIVEN_UP and line.worker_id == first.worker_id
    # The two clocks may differ by half a second.
    return is_given_up and chronicle.from_epoch(line.finished_at) <= second.began + 0.5

"""The account of a fault run: what became of every job that was accepted."""

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

OURS = "fault_"
"""How the names of job types begin whose handlers leave traces."""
TAKEN = frozenset({"crashed", "released", "superseded"})
"""How an attempt stands in the ledger that another run has followed before its end."""
KINDS = (
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
    """One run of a handler, as it has noted itself."""

    worker_id: str
    attempt: int
    began: float
    ended: float | None = None
    how: str = "no end"


@dataclass
class Account:
    """By door and in all; `faulty` says what is wrong with which job."""

    doors: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    faulty: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    others: list[str] = field(default_factory=list)
    """What is wrong and no job's."""
    runs: dict[str, list[Run]] = field(default_factory=dict)
    lines: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """The ledger's timeline of each job that has one."""
    rows: dict[str, Any] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not self.faulty and not self.others

    def blame(self, door: str, job_id: str, kind: str, detail: str = "") -> None:
        self.doors[door][kind] += 1
        self.faulty[job_id].append(f"{kind} ({detail})" if detail else kind)


async def open_jobs(system: System) -> int:
    """Return the jobs in the ledger that have not ended."""
    return sum(count for state, count in (await _states(system)).items() if state not in FINISHED)


async def _states(system: System) -> dict[State, int]:
    engine = create_async_engine(system.settings.ledger_url)
    async with engine.connect() as connection:
        rows = await connection.execute(text("SELECT state, COUNT(*) FROM jobs GROUP BY state"))
        found = {State(state): count for state, count in rows}
    await engine.dispose()
    return found


async def settle(
    system: System, accepted: Accepted, documents: dict[str, str], told: Chronicle
) -> Account:
    """Look at everything, once all is quiet. `documents` are their states, by id."""
    account = Account()
    await _read(system, account)
    account.runs = runs_of(Effects(system.settings.data_dir).all())
    doors = {job_id: _door_of(row) for job_id, row in account.rows.items()} | accepted.jobs
    changes = defaultdict(list)
    for job_id, old, new in await history_of(system.settings.ledger_url):
        changes[job_id].append((old, new))
    letters = deaths_in(await system.letters())
    for job_id, door in doors.items():
        judge(account, door, job_id, changes[job_id], letters[job_id], told)
    for stray in letters.keys() - account.rows.keys():
        account.others.append(f"a dead letter of nobody's: {stray}")
    await _judge_others(system, accepted, documents, account)
    return account


def deaths_in(letters: Sequence[QueuedDeadLetter]) -> Counter[str]:
    """Count the deaths that the letters of each id tell of. A letter whose publish was cut off
    before its confirm is there twice, and counts once."""
    return Counter(letter_id for letter_id, _ in {(each.id, each.death) for each in letters})


def judge(
    account: Account,
    door: str,
    job_id: str,
    changes: Sequence[tuple[str, str]],
    letters: int,
    told: Chronicle,
) -> None:
    """Hold one accepted job against its changes of state (old, new) and its dead letters."""
    account.doors[door]["accepted"] += 1
    row = account.rows.get(job_id)
    if row is None:
        account.blame(door, job_id, "lost", "the ledger does not know it")
        return
    _judge_end(account, door, row)
    ends = [new for _, new in changes if new in FINISHED]
    left = [old for old, _ in changes if old in FINISHED]
    if len(ends) > 1 or left:
        account.blame(door, job_id, "ended twice", f"{ends}, left {left}")
    if letters != (row.state == State.DEAD):
        account.blame(door, job_id, "letters", f"{letters}, and it is {row.state}")
    for first, second in overlaps(account.runs.get(job_id, [])):
        if not any(_took_over(line, first, second, told) for line in account.lines[job_id]):
            detail = f"{first.worker_id} and {second.worker_id} at {told.at(second.began)}"
            account.blame(door, job_id, "overlap", detail)


async def _read(system: System, account: Account) -> None:
    engine = create_async_engine(system.settings.ledger_url)
    async with engine.connect() as connection:
        for row in await connection.execute(select(jobs)):
            account.rows[row.id] = row
        for line in await connection.execute(select(attempts).order_by(attempts.c.id)):
            account.lines[line.job_id].append(line)
    await engine.dispose()


def _door_of(row: Any) -> str:
    """Return by which door a job came in whose id nobody was told."""
    if row.parent_id is not None:
        return "next" if row.job_type.startswith(OURS) else "upload"
    if row.operation_id is not None:
        return "file"
    # An answer that was cut may leave a job behind: it is kept, so it must end as well.
    return "unsure" if row.job_type.startswith(OURS) else "upload"


def _judge_end(account: Account, door: str, row: Any) -> None:
    dies = bool(json.loads(row.payload).get("dies"))
    if row.state == State.SUCCEEDED:
        account.doors[door]["succeeded"] += 1
    elif row.state == State.DEAD and dies:
        account.doors[door]["dead"] += 1
    if row.state not in (State.SUCCEEDED, State.DEAD):
        account.blame(door, row.id, "not ended", row.state)
    elif row.state == State.DEAD and not dies:
        account.blame(door, row.id, "wrongly dead", f"{row.reason}: {row.error_message}")
    elif row.state == State.SUCCEEDED and dies:
        account.blame(door, row.id, "wrongly alive")
    elif (
        row.state == State.SUCCEEDED
        and row.job_type.startswith(OURS)
        and not any(run.how == "done" for run in account.runs.get(row.id, []))
    ):
        account.blame(door, row.id, "never run", "it is said to have succeeded")


async def _judge_others(
    system: System, accepted: Accepted, documents: dict[str, str], account: Account
) -> None:
    made = Counter(
        row.operation_id for row in account.rows.values() if row.operation_id and not row.parent_id
    )
    for backfill, items in accepted.backfills.items():
        record = await system.ledger.bulk.get_bulk(backfill)
        if record is None or record.state is not BulkState.COMPLETED or made[backfill] != items:
            state = record and record.state
            account.others.append(f"{backfill}: {state}, {made[backfill]} jobs of {items} items")
    for document in sorted(accepted.documents):
        if documents.get(document) != COMPLETED:
            account.others.append(f"document {document}: {documents.get(document)}")
    try:
        await wait_until_lanes_are_empty(system)
    except AssertionError as error:
        account.others.append(str(error))


# --- runs -------------------------------------------------------------------------------------


def runs_of(effects: list[Effect]) -> dict[str, list[Run]]:
    """Return the runs of each job, in the order in which they began."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for effect in effects:
        own = runs[effect.job_id]
        if effect.what == "started":
            own.append(Run(effect.worker_id, effect.attempt, effect.at))
            continue
        for run in own:
            same = (run.worker_id, run.attempt) == (effect.worker_id, effect.attempt)
            if same and run.ended is None:
                run.ended, run.how = effect.at, effect.what
                break
    return dict(runs)


def overlaps(runs: list[Run]) -> list[tuple[Run, Run]]:
    """Return the pairs of runs of which the second began before the first had ended.

    One without an end was killed with its process, and nobody knows when: it is no proof.
    """
    return [
        (first, second)
        for index, first in enumerate(runs)
        for second in runs[index + 1 :]
        if first.ended is not None and second.began < first.ended
    ]


def _took_over(line: Any, first: Run, second: Run, told: Chronicle) -> bool:
    """Tell whether the ledger has noted, in time, that the first run was given up."""
    given_up = line.outcome in TAKEN and line.worker_id == first.worker_id
    # Half a second for the clocks, which are two.
    return given_up and told.from_epoch(line.finished_at) <= second.began + 0.5

"""What a fault run prints: the account as a table, and the story of what went wrong."""

from collections.abc import Iterator
from pathlib import Path

from tests.support.fault_run.account import KINDS, Account
from tests.support.fault_run.chronicle import Chronicle

TOLD = 5
"""Faulty jobs whose story is told."""
AROUND = 3.0
"""Seconds before and after a job's own events."""
MOST_LINES = 40
COLUMNS = ("accepted", "succeeded", "dead", *KINDS)


def table(account: Account) -> str:
    """Write a table with a line for each door."""
    heads = ["door", *COLUMNS]
    rows = [
        [door, *(str(counts[column] or "·") for column in COLUMNS)]
        for door, counts in sorted(account.doors.items())
    ]
    sums = [sum(counts[column] for counts in account.doors.values()) for column in COLUMNS]
    rows.append(["all", *(str(number or "·") for number in sums)])
    widths = [max(len(row[index]) for row in (heads, *rows)) for index in range(len(heads))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in (heads, *rows)
    )


def story(account: Account, told: Chronicle, logs: list[Path]) -> Iterator[str]:
    """Write what is wrong, and what happened around the first of the faulty jobs."""
    yield from (f"WRONG {text}" for text in (*told.wrong, *account.others))
    for number, (job_id, what) in enumerate(account.faulty.items()):
        yield f"WRONG job {job_id}: {'; '.join(what)}"
        if number < TOLD:
            yield from (f"    {line}" for line in _job_story(job_id, account, told, logs))


def _job_story(job_id: str, account: Account, told: Chronicle, logs: list[Path]) -> Iterator[str]:
    events: list[tuple[float, str]] = []
    if row := account.rows.get(job_id):
        yield f"{row.routing_key} of {row.source}, {row.state}, crashes {row.crashes}"
        yield f"payload {row.payload}, error {row.error_type}: {row.error_message}"
        events.append((told.from_epoch(row.created_at), "made"))
        if row.finished_at is not None:
            events.append((told.from_epoch(row.finished_at), f"ledger: {row.state}"))
    for run in account.runs.get(job_id, []):
        events.append((run.began, f"attempt {run.attempt} begins on {run.worker_id}"))
        if run.ended is not None:
            events.append((run.ended, f"attempt {run.attempt} on {run.worker_id}: {run.how}"))
    events += [
        (
            told.from_epoch(line.finished_at),
            f"ledger: attempt {line.attempt} on {line.worker_id}: {line.outcome}",
        )
        for line in account.lines.get(job_id, [])
    ]
    if events:
        events += told.between(min(events)[0] - AROUND, max(events)[0] + AROUND)
    for moment, text in sorted(events):
        yield f"{told.at(moment)} {text}"
    said = (line for log in logs for line in _lines_of(log, job_id))
    for number, line in enumerate(said):
        if number == MOST_LINES:
            break
        yield line


def _lines_of(log: Path, job_id: str) -> Iterator[str]:
    with log.open(errors="replace") as lines:
        for line in lines:
            if job_id in line:
                yield f"{log.stem}: {line.strip()[:400]}"

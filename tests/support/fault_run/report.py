"""Formats the output of a fault run: the account as a table, and the events around faulty jobs."""

from collections.abc import Iterator
from pathlib import Path

from tests.support.fault_run.account import FAULT_KINDS, Account
from tests.support.fault_run.chronicle import Chronicle

MAX_DETAILED_JOBS = 5
"""Faulty jobs that are reported with their events."""
MARGIN = 3.0
"""Seconds before a job's first and after its last event in which other events are reported, too."""
MAX_LOG_LINES = 40
"""Lines of the logs about one job."""
COLUMNS = ("accepted", "succeeded", "dead", *FAULT_KINDS)


def format_table(account: Account) -> str:
    """Write a table with a line for each door."""
    header = ["door", *COLUMNS]
    rows = [
        [door, *(str(counts[column] or "·") for column in COLUMNS)]
        for door, counts in sorted(account.doors.items())
    ]
    totals = [sum(counts[column] for counts in account.doors.values()) for column in COLUMNS]
    rows.append(["all", *(str(number or "·") for number in totals)])
    widths = [max(len(row[index]) for row in (header, *rows)) for index in range(len(header))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in (header, *rows)
    )


def describe_faults(account: Account, chronicle: Chronicle, logs: list[Path]) -> Iterator[str]:
    """Yield lines about all that is wrong, with the events around the first of the faulty jobs."""
    yield from (f"WRONG {text}" for text in (*chronicle.faults_found, *account.other_faults))
    for number, (job_id, faults) in enumerate(account.faulty_jobs.items()):
        yield f"WRONG job {job_id}: {'; '.join(faults)}"
        if number < MAX_DETAILED_JOBS:
            yield from (f"    {line}" for line in _describe_job(job_id, account, chronicle, logs))


def _describe_job(
    job_id: str, account: Account, chronicle: Chronicle, logs: list[Path]
) -> Iterator[str]:
    events: list[tuple[float, str]] = []
    if row := account.rows.get(job_id):
        yield f"{row.routing_key} of {row.source}, {row.state}, crashes {row.crashes}"
        yield f"payload {row.payload}, error {row.error_type}: {row.error_message}"
        events.append((chronicle.from_epoch(row.created_at), "made"))
        if row.finished_at is not None:
            events.append((chronicle.from_epoch(row.finished_at), f"ledger: {row.state}"))
    for run in account.runs.get(job_id, []):
        events.append((run.began, f"attempt {run.attempt} begins on {run.worker_id}"))
        if run.ended is not None:
            events.append((run.ended, f"attempt {run.attempt} on {run.worker_id}: {run.ending}"))
    events += [
        (
            chronicle.from_epoch(line.finished_at),
            f"ledger: attempt {line.attempt} on {line.worker_id}: {line.outcome}",
        )
        for line in account.timelines.get(job_id, [])
    ]
    if events:
        events += chronicle.between(min(events)[0] - MARGIN, max(events)[0] + MARGIN)
    for moment, text in sorted(events):
        yield f"{chronicle.at(moment)} {text}"
    log_lines = (line for log in logs for line in _lines_of(log, job_id))
    for number, line in enumerate(log_lines):
        if number == MAX_LOG_LINES:
            break
        yield line


def _lines_of(log: Path, job_id: str) -> Iterator[str]:
    with log.open(errors="replace") as lines:
        for line in lines:
            if job_id in line:
                yield f"{log.stem}: {line.strip()[:400]}"

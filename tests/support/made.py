"""Requests to the ledger, with default values for the fields that a test does not set."""

from typing import Any

from sqlalchemy import Connection

from switchyard.broker.message import JobMessage, Metadata
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.sql.dialect import insert_into
from switchyard.services.engine.ledger.sql.tables import redriven_letters
from switchyard.services.engine.records.requests import (
    ClaimRequest,
    DeadLetterRecord,
    FinishRequest,
    NewJob,
)
from switchyard.services.engine.records.states import AttemptOutcome, State

NOW = 1_800_000_000.25


def message(job_id: str = "job-1", *, payload: dict[str, Any] | None = None, **metadata: Any):
    return JobMessage(
        job_id=job_id,
        job_type="summarize_content",
        priority=5,
        payload={"text": "hello"} if payload is None else payload,
        metadata=Metadata(**metadata),
    )


def new_job(job: JobMessage | str = "job-1", **changes: Any) -> NewJob:
    job = message(job) if isinstance(job, str) else job
    fields: dict[str, Any] = {"lane": "hot", "worker": "llm", "now": NOW}
    return NewJob(job, routing_key="hot.summarize_content", **{**fields, **changes})


def claim(
    job: JobMessage | str = "job-1",
    claim_id: str = "claim-1",
    *,
    worker_id: str = "worker-1",
    takeover_from: str | None = None,
    **metadata: Any,
) -> ClaimRequest:
    job = message(job, **metadata) if isinstance(job, str) else job
    return ClaimRequest(
        job,
        lane="hot",
        worker="llm",
        routing_key="hot.summarize_content",
        worker_id=worker_id,
        claim_id=claim_id,
        now=NOW + 10,
        takeover_from=takeover_from,
    )


def finish(
    state: State = State.SUCCEEDED,
    claim_id: str = "claim-1",
    *,
    job_id: str = "job-1",
    attempts: int = 1,
    outcome: AttemptOutcome | None = None,
    **changes: Any,
) -> FinishRequest:
    return FinishRequest(
        job_id, claim_id, state, attempts=attempts, now=NOW + 20, outcome=outcome, **changes
    )


def letter(job_id: str | None = "job-1", reason: str = "exhausted", **changes: Any):
    fields: dict[str, Any] = {
        "id": job_id or "raw-1",
        "job_id": job_id,
        "dead_at": NOW + 30,
        "body": b"{}",
    }
    return DeadLetterRecord(reason=reason, **{**fields, **changes})


async def record_redrive(ledger: Ledger, redrives: int, job_id: str = "job-1") -> None:
    """Record that a redrive with this number sends a copy, as it does before it sends it."""
    planned = {"operation_id": f"redrive-{redrives}", "letter_id": job_id, "redrives": redrives}

    def work(connection: Connection) -> None:
        statement = insert_into(connection, redriven_letters).on_conflict_do_nothing()
        connection.execute(statement, planned)

    await ledger.core.database.write(work)

"""Define the endings of an attempt: make them from a handler's outcome, and turn them into the
ledger's records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.broker.message import JobMessage
from switchyard.broker.wording import pluralize
from switchyard.services.engine.jobs.limits import LimitRefused
from switchyard.services.engine.jobs.registry import InvalidPayload, Registry, UnknownJobType
from switchyard.services.engine.jobs.retry import (
    INVALID_OUTCOME,
    MAX_DEATHS,
    MAX_UNENDED_RUNS,
    Decision,
    Delayed,
    Died,
    Failure,
    RetryPolicy,
    Succeeded,
    decide,
)
from switchyard.services.engine.jobs.secret_fields import Scrubber
from switchyard.services.engine.ledger.sql.codec import to_json
from switchyard.services.engine.publishing.preparing import InvalidJob, children_of
from switchyard.services.engine.records.errors import RowRejected
from switchyard.services.engine.records.job_ids import JobIds
from switchyard.services.engine.records.joins import JoinRecord
from switchyard.services.engine.records.requests import FinishRequest, NewJob
from switchyard.services.engine.records.states import AttemptOutcome, State


@dataclass(frozen=True, slots=True)
class CancelledWhileRunning:
    """The job was cancelled while it ran: it is never run again."""


@dataclass(frozen=True, slots=True)
class Released:
    """The job was claimed but is not run here: it returns to its queue unchanged, without using an
    attempt."""


Ending = Decision | CancelledWhileRunning
SUCCEEDED = "succeeded"
OUTCOMES = (SUCCEEDED, "retried", "snoozed", "dead", "cancelled")


def outcome_of(ending: Ending) -> str:
    """Return the one of OUTCOMES that an ending counts as."""
    match ending:
        case Succeeded():
            return SUCCEEDED
        case Delayed():
            return "retried" if ending.counts else "snoozed"
        case Died():
            return "dead"
        case _:
            return "cancelled"


def remove_secrets(registry: Registry, message: JobMessage, outcome: Any) -> Any:
    """Return a handler's outcome; from a Failure, remove quotes of the secrets in the job's
    payload."""
    if not isinstance(outcome, Failure):
        return outcome
    secrets = registry.secrets_of(message.job_type)
    return outcome.scrub(Scrubber.from_payload(message.payload, secrets))


async def classify(
    registry: Registry,
    message: JobMessage,
    lane: str,
    outcome: Any,
    policy: RetryPolicy,
    *,
    now: datetime,
    max_result_bytes: int,
    ids: JobIds,
    crashes: int = 0,
) -> tuple[Decision, list[NewJob]]:
    """Decide how the attempt ends whose handler returned or failed with `outcome`, and which
    jobs follow from it.

    `now` is the ledger's time; `max_result_bytes` limits a result as JSON; `ids` makes
    the ids of the jobs that follow; `crashes`: workers that have died with the job in them. Raises
    whatever foreign values in the handler's outcome raise when they are used.
    """
    metadata = message.metadata
    # A job with a process of its own was not in the worker process that died.
    was_in_dead_worker = crashes > 0 and registry.get(message.job_type).isolation == "task"
    decision = decide(
        outcome,
        attempts=metadata.attempts,
        max_attempts=metadata.max_attempts,
        policy=policy,
        now=now,
        crashes=crashes if was_in_dead_worker else 0,
    )
    if not isinstance(decision, Succeeded):
        return decision, []
    try:
        _check_result(decision.result, max_result_bytes)
        following = await children_of(
            registry, ids, message, lane, decision.jobs, decision.then, decision.when_dead
        )
        return decision, following
    except (RowRejected, InvalidJob, InvalidPayload, UnknownJobType) as error:
        return end_invalid_outcome(message, error), []


def _check_result(result: Any, max_bytes: int) -> None:
    """Raise RowRejected for a result that is not JSON, or larger than JOBS_MAX_RESULT_BYTES."""
    if (size := len(to_json(result))) > max_bytes:
        raise RowRejected(
            f"the result has {size:,} bytes, more than JOBS_MAX_RESULT_BYTES allows "
            f"({max_bytes:,}): write it to a file, and put only the file's name into the result"
        )


def end_invalid_outcome(message: JobMessage, error: Exception) -> Died:
    """End a job whose handler's outcome is invalid: a defect of the handler, which another attempt
    would not fix."""
    failure = Failure(INVALID_OUTCOME, str(error), permanent=True)
    return Died(Reason.PERMANENT, message.metadata.attempts + 1, failure)


def end_unwritable(message: JobMessage, ending: object, error: BaseException) -> Died:
    """End a job whose attempt's ending can't be published or recorded: another attempt would only
    cost the same again. `ending` is the handler's outcome, or its Failure."""
    failure = Failure.from_error(error)
    original_error = (
        f" ({ending.error_type}: {ending.message})" if isinstance(ending, Failure) else ""
    )
    return Died(
        Reason.PERMANENT,
        message.metadata.attempts + 1,
        Failure(
            INVALID_OUTCOME,
            f"how the attempt has ended could not be written: {failure.error_type}: "
            f"{failure.message}{original_error}",
            failure.traceback,
            permanent=True,
        ),
    )


def end_unwaitable(message: JobMessage, delayed: Delayed, error: Exception) -> Died:
    """End a job that should be retried, but whose message the broker refuses: it has grown beyond
    the broker's limit, or the limit was lowered."""
    failure = replace(
        delayed.failure,
        message=f"{delayed.failure.message}; it can't be tried again: {error}",
        permanent=True,
    )
    return Died(Reason.PERMANENT, delayed.attempts, failure)


def end_expired(message: JobMessage, hint: str = "") -> Died:
    """End a job that is too old to be started."""
    failure = Failure("Expired", f"it waited longer than its lane or its job allows{hint}")
    return Died(Reason.EXPIRED, message.metadata.attempts, failure)


def end_limit_refused(message: JobMessage, error: LimitRefused) -> Died:
    """End a job that can never get its permits."""
    return Died(Reason.PERMANENT, message.metadata.attempts, Failure.from_error(error))


def end_begun_too_often(message: JobMessage, crashes: int, unended: int) -> Died | None:
    """End a job that was in MAX_DEATHS workers when they died, or whose last MAX_UNENDED_RUNS runs
    had no end; return None if it may run."""
    if crashes >= MAX_DEATHS:
        failure = Failure("WorkerCrashed", f"its worker died {pluralize(crashes, 'time')}")
    elif unended >= MAX_UNENDED_RUNS:
        failure = Failure(
            "RunsWithoutEnd",
            f"it was begun {pluralize(unended, 'time')} in a row, and none of these runs came to "
            "an end: each time its worker was stopped or died, or could not write how the run had "
            "ended, as the log of the worker says; redrive it when that is mended",
        )
    else:
        return None
    return Died(Reason.CRASHED, message.metadata.attempts, failure)


def inherit_join(join_id: str | None, following: Sequence[NewJob]) -> list[NewJob]:
    """Add the job's join id to its follow-up jobs, except those that belong to a join of their
    own."""
    if join_id is None:
        return list(following)
    return [each if each.join_id else replace(each, join_id=join_id) for each in following]


def end_joined_dead(message: JobMessage, join: JoinRecord | None) -> Died | None:
    """End a job that may only run if all jobs that it waited for have succeeded, where some have
    not; return None if it may run."""
    if join is None or join.when_dead != "fail" or not join.dead + join.cancelled:
        return None
    failure = Failure(
        "JoinedJobsFailed",
        f"of {join.total:,} jobs that it waited for, {join.dead:,} are dead and {join.cancelled:,} "
        "cancelled: redrive those first, then this job",
        permanent=True,
    )
    return Died(Reason.PERMANENT, message.metadata.attempts + 1, failure)


def finish_request(
    message: JobMessage, claim_id: str, ending: Ending | Released, *, now: float
) -> FinishRequest:
    """Make the ledger's request that records how an attempt has ended; `now` is its time."""
    state, outcome = _state_and_outcome(ending)
    failed_ending = ending if isinstance(ending, Delayed | Died) else None
    return FinishRequest(
        job_id=message.job_id,
        claim_id=claim_id,
        state=state,
        attempts=failed_ending.attempts if failed_ending else message.metadata.attempts,
        now=now,
        result=ending.result if isinstance(ending, Succeeded) else None,
        reason=str(ending.reason) if isinstance(ending, Died) else None,
        error_type=failed_ending.failure.error_type if failed_ending else None,
        error_message=failed_ending.failure.message if failed_ending else None,
        outcome=outcome,
    )


def _state_and_outcome(ending: Ending | Released) -> tuple[State, AttemptOutcome | None]:
    match ending:
        case Succeeded():
            return State.SUCCEEDED, None
        case Delayed(counts=True):
            return State.RETRYING, AttemptOutcome.RETRY
        case Delayed():
            return State.RETRYING, AttemptOutcome.SNOOZE
        case Died():
            return State.DEAD, AttemptOutcome.DEAD
        case CancelledWhileRunning():
            return State.CANCELLED, AttemptOutcome.CANCELLED
        case Released():
            return State.QUEUED, AttemptOutcome.RELEASED

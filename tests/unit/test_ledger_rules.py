"""The claim's rules as one table."""

import pytest

from switchyard.broker.message import JobMessage, Metadata
from switchyard.services.engine.ledger.sql.copy_validation import is_foreign, must_update_record
from switchyard.services.engine.ledger.sql.job_content import (
    ContentHistory,
    EditedContent,
    JobContent,
)
from switchyard.services.engine.ledger.sql.job_rows import JobRow
from switchyard.services.engine.ledger.sql.job_rules import (
    decide_claim,
    is_revocable,
    is_revocable_by,
    may_overflow,
    may_queue,
    may_redrive,
)
from switchyard.services.engine.records.requests import ClaimRequest
from switchyard.services.engine.records.results import (
    Claimed,
    ClaimResult,
    Finished,
    HeldByWorker,
    StillJoining,
    Superseded,
)
from switchyard.services.engine.records.states import REVOCABLE, TRANSITIONS, State

HELD = HeldByWorker("worker-1", "claim-1")


def row(state: State, redrives: int = 0, attempts: int = 0, crashes: int = 0) -> JobRow:
    return JobRow("job-1", state, redrives, attempts, crashes, "worker-1", "claim-1")


def request(
    redrives: int = 0,
    attempts: int = 0,
    *,
    takeover_from: str | None = None,
    claim_id: str = "claim-2",
) -> ClaimRequest:
    metadata = Metadata(redrives=redrives, attempts=attempts)
    message = JobMessage(job_id="job-1", job_type="t", payload={}, metadata=metadata)
    return ClaimRequest(message, "hot", "llm", "hot.t", "worker-2", claim_id, 0.0, takeover_from)


@pytest.mark.parametrize(
    ("known", "asked", "answer"),
    [
        (None, request(), Claimed(0)),
        (None, request(2, 1), Claimed(0)),
        (row(State.SCHEDULED), request(), Claimed(0)),
        (row(State.PENDING), request(), Claimed(0)),
        (row(State.QUEUED), request(), Claimed(0)),
        (row(State.QUEUED, crashes=1), request(), Claimed(1)),
        (row(State.QUEUED, crashes=1), request(1), Claimed(0)),
        (row(State.RETRYING, 0, 1, 1), request(0, 1), Claimed(1)),
        (row(State.RETRYING, 0, 1), request(0, 2), Claimed(0)),
        (row(State.RETRYING, 0, 2), request(0, 1), Superseded(0, 2)),
        (row(State.QUEUED, 1, 0), request(0, 9), Superseded(1, 0)),
        (row(State.SUCCEEDED), request(), Finished(State.SUCCEEDED)),
        (row(State.SUCCEEDED), request(5, 5), Finished(State.SUCCEEDED)),
        (row(State.CANCELLED), request(5, 5), Finished(State.CANCELLED)),
        (row(State.DEAD, 0, 3), request(0, 3), Finished(State.DEAD)),
        (row(State.DEAD, 0, 3), request(0, 9), Finished(State.DEAD)),
        (row(State.DEAD, 1, 0), request(0, 9), Finished(State.DEAD)),
        (row(State.DEAD, 0, 3, 2), request(1, 0), Claimed(0)),
        (row(State.JOINING), request(), StillJoining()),
        (row(State.JOINING), request(5, 5), StillJoining()),
        (row(State.RUNNING), request(), HELD),
        (row(State.RUNNING), request(0, 1), HELD),
        (row(State.RUNNING, 0, 1), request(0, 0), Superseded(0, 1)),
        (row(State.RUNNING), request(takeover_from="claim-0"), HELD),
        (row(State.RUNNING), request(takeover_from="claim-1"), Claimed(1, unended=1)),
        (
            row(State.RUNNING, crashes=1),
            request(takeover_from="claim-1"),
            Claimed(2, unended=1),
        ),
        (row(State.RUNNING, crashes=1), request(1, takeover_from="claim-1"), Claimed(0)),
        (row(State.RUNNING, crashes=1), request(claim_id="claim-1"), Claimed(1)),
        (row(State.QUEUED), request(takeover_from="claim-1"), Claimed(0)),
    ],
)
def test_who_may_run_a_job(known: JobRow | None, asked: ClaimRequest, answer: ClaimResult) -> None:
    assert decide_claim(known, asked) == answer


@pytest.mark.parametrize("state", list(State))
def test_the_rules_keep_to_the_table_of_transitions(state: State) -> None:
    if isinstance(decide_claim(row(state), request(1, takeover_from="claim-1")), Claimed):
        assert State.RUNNING in TRANSITIONS[state]
    if may_queue(row(state)) or may_redrive(row(state), 1):
        assert State.QUEUED in TRANSITIONS[state]
    if may_overflow(row(state)):
        assert State.DEAD in TRANSITIONS[state]


@pytest.mark.parametrize(
    ("state", "holder", "receipt", "may"),
    [
        (State.PENDING, "mine", "mine", True),
        (State.PENDING, "mine", "another's", False),
        (State.PENDING, "mine", "", False),
        (State.PENDING, "mine", None, False),
        (State.PENDING, None, "mine", False),  # somebody else was told of it
        (State.PENDING, None, None, False),
        *((state, "mine", "mine", state in REVOCABLE) for state in State),
    ],
)
def test_who_may_take_a_record_back(
    state: State, holder: str | None, receipt: str | None, may: bool
) -> None:
    known = JobRow("job-1", state, 0, 0, 0, claim_id=holder)
    assert is_revocable_by(known, receipt) is may
    assert is_revocable(known) is (state in REVOCABLE and holder is not None)


RECORDED = JobContent("summarize", '{"a":1,"b":[null]}')
OTHER = JobContent("summarize", '{"a":2,"b":[null]}')
EDITED = JobContent("summarize", '{"a":3}')
KNOWN = ContentHistory(RECORDED)
ONCE_EDITED = ContentHistory(RECORDED, [EditedContent(1, RECORDED, EDITED, undone=False)])
RECORDED_EDIT = ContentHistory(EDITED, [EditedContent(1, RECORDED, EDITED, undone=False)])
UNDONE = ContentHistory(RECORDED, [EditedContent(1, RECORDED, EDITED, undone=True)])


@pytest.mark.parametrize(
    ("work", "known", "foreign"),
    [
        (OTHER, None, False),  # nobody has that id
        (RECORDED, KNOWN, False),  # a retry, a plain redrive
        (
            JobContent("summarize", '{"b": [NaN], "a": 1}'),
            KNOWN,
            False,
        ),  # the same, written otherwise
        (JobContent("summarize", '{"a":1,"b":[null],"c":null}'), KNOWN, True),
        (JobContent("translate", RECORDED.payload), KNOWN, True),
        (OTHER, KNOWN, True),
        (EDITED, KNOWN, True),
        (EDITED, ONCE_EDITED, False),  # its copy is faster than its record
        (RECORDED, RECORDED_EDIT, False),  # a late copy of what it was
        (EDITED, UNDONE, False),  # a late copy, skipped by its generation
        (OTHER, RECORDED_EDIT, True),
    ],
)
def test_a_message_is_foreign_if_its_work_was_never_that_of_its_id(
    work: JobContent, known: ContentHistory | None, foreign: bool
) -> None:
    assert is_foreign(work, 0, 0.0, known) is foreign


@pytest.mark.parametrize(
    ("work", "redrives", "known", "answer"),
    [
        (RECORDED, 0, KNOWN, False),
        (RECORDED, 9, KNOWN, False),  # a redrive that changes nothing, or claims to be one
        (EDITED, 1, ONCE_EDITED, True),
        (EDITED, 1, RECORDED_EDIT, True),  # with another lane or priority, perhaps
        (EDITED, 2, RECORDED_EDIT, False),  # and redriven once more
    ],
)
def test_only_what_a_redrive_has_made_of_a_job_is_written_into_its_record(
    work: JobContent, redrives: int, known: ContentHistory, answer: bool
) -> None:
    assert must_update_record(request(redrives), work, row(State.DEAD), known) is answer

"""The rules for claims, revocations and changed copies of a job, as tables."""

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
    ("job_row", "claim_request", "result"),
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
def test_the_result_of_a_claim(
    job_row: JobRow | None, claim_request: ClaimRequest, result: ClaimResult
) -> None:
    assert decide_claim(job_row, claim_request) == result


@pytest.mark.parametrize("state", list(State))
def test_the_rules_allow_only_transitions_of_the_table(state: State) -> None:
    if isinstance(decide_claim(row(state), request(1, takeover_from="claim-1")), Claimed):
        assert State.RUNNING in TRANSITIONS[state]
    if may_queue(row(state)) or may_redrive(row(state), 1):
        assert State.QUEUED in TRANSITIONS[state]
    if may_overflow(row(state)):
        assert State.DEAD in TRANSITIONS[state]


@pytest.mark.parametrize(
    ("state", "holder", "receipt", "is_allowed"),
    [
        (State.PENDING, "mine", "mine", True),
        (State.PENDING, "mine", "another's", False),
        (State.PENDING, "mine", "", False),
        (State.PENDING, "mine", None, False),
        (State.PENDING, None, "mine", False),  # another request was answered with it
        (State.PENDING, None, None, False),
        *((state, "mine", "mine", state in REVOCABLE) for state in State),
    ],
)
def test_only_the_holder_of_the_receipt_may_revoke_a_record(
    state: State, holder: str | None, receipt: str | None, is_allowed: bool
) -> None:
    job_row = JobRow("job-1", state, 0, 0, 0, claim_id=holder)
    assert is_revocable_by(job_row, receipt) is is_allowed
    assert is_revocable(job_row) is (state in REVOCABLE and holder is not None)


RECORDED = JobContent("summarize", '{"a":1,"b":[null]}')
OTHER = JobContent("summarize", '{"a":2,"b":[null]}')
EDITED = JobContent("summarize", '{"a":3}')
UNEDITED = ContentHistory(RECORDED)
EDIT_NOT_RECORDED = ContentHistory(RECORDED, [EditedContent(1, RECORDED, EDITED, undone=False)])
EDIT_RECORDED = ContentHistory(EDITED, [EditedContent(1, RECORDED, EDITED, undone=False)])
UNDONE_EDIT = ContentHistory(RECORDED, [EditedContent(1, RECORDED, EDITED, undone=True)])


@pytest.mark.parametrize(
    ("content", "history", "expected"),
    [
        (OTHER, None, False),  # the id is new
        (RECORDED, UNEDITED, False),  # a retry, a plain redrive
        (
            JobContent("summarize", '{"b": [NaN], "a": 1}'),
            UNEDITED,
            False,
        ),  # the same payload in other JSON
        (JobContent("summarize", '{"a":1,"b":[null],"c":null}'), UNEDITED, True),
        (JobContent("translate", RECORDED.payload), UNEDITED, True),
        (OTHER, UNEDITED, True),
        (EDITED, UNEDITED, True),
        (EDITED, EDIT_NOT_RECORDED, False),  # the copy arrives before the record is written
        (RECORDED, EDIT_RECORDED, False),  # a late copy from before the edit
        (EDITED, UNDONE_EDIT, False),  # a late copy, skipped by its generation
        (OTHER, EDIT_RECORDED, True),
    ],
)
def test_a_message_is_foreign_if_the_job_never_had_its_content(
    content: JobContent, history: ContentHistory | None, expected: bool
) -> None:
    assert is_foreign(content, 0, 0.0, history) is expected


@pytest.mark.parametrize(
    ("content", "redrives", "history", "expected"),
    [
        (RECORDED, 0, UNEDITED, False),
        (RECORDED, 9, UNEDITED, False),  # a redrive that changes nothing, or a false count
        (EDITED, 1, EDIT_NOT_RECORDED, True),
        (EDITED, 1, EDIT_RECORDED, True),  # the lane or priority may have changed
        (EDITED, 2, EDIT_RECORDED, False),  # redriven again, without another change
    ],
)
def test_only_content_changed_by_a_redrive_updates_the_record(
    content: JobContent, redrives: int, history: ContentHistory, expected: bool
) -> None:
    assert must_update_record(request(redrives), content, row(State.DEAD), history) is expected

"""The account of a join under kills finds every kind of fault; otherwise an empty one proves
nothing."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import State
from tests.support.join_run.account import Change, find_faults

RELEASED: Change = ("then", "joining", "pending")
RAN: Change = ("then", "running", "succeeded")


def joining_job(states: dict[str, int], *, result_count: int, **fields: Any) -> JobRecord:
    """Return a job that joined three others, and found `numbers` different results."""
    result = {"states": states, "numbers": list(range(result_count))}
    values = {"id": "then", "state": State.SUCCEEDED, "reason": None, "error_message": None}
    return cast("JobRecord", SimpleNamespace(**values | {"result": result} | fields))


FAULTLESS = joining_job({"succeeded": 3}, result_count=3)


@pytest.mark.parametrize(
    ("joining", "changes"),
    [
        (FAULTLESS, [RELEASED, RAN]),
        (joining_job({"succeeded": 2, "dead": 1}, result_count=2), [RELEASED, RAN]),
        (FAULTLESS, [RELEASED, RAN, ("other", "joining", "pending")]),
        (joining_job({}, result_count=0, state=State.DEAD, reason="crashed"), [RELEASED]),
    ],
    ids=["all-succeeded", "one-was-spent", "another-join", "it-was-spent-itself"],
)
def test_a_join_that_ended_once_after_all_jobs_has_no_fault(
    joining: JobRecord, changes: list[Change]
) -> None:
    assert find_faults(joining, changes, 3) == []


@pytest.mark.parametrize(
    ("joining", "changes", "fault"),
    [
        (FAULTLESS, [RELEASED, RELEASED, RAN], "let go 2 times"),
        (FAULTLESS, [RAN], "let go 0 times"),
        (FAULTLESS, [RELEASED, RAN, RAN], "succeeded 2 times"),
        (joining_job({"succeeded": 2, "running": 1}, result_count=2), [RELEASED, RAN], "early"),
        (joining_job({"succeeded": 2}, result_count=2), [RELEASED, RAN], "found 2 of 3"),
        (joining_job({"succeeded": 3}, result_count=2), [RELEASED, RAN], "results are missing"),
        (
            joining_job({}, result_count=0, state=State.DEAD, error_message="odd"),
            [RELEASED],
            "dead: odd",
        ),
    ],
)
def test_the_fault_of_a_join_is_named(
    joining: JobRecord, changes: list[Change], fault: str
) -> None:
    assert fault in "; ".join(find_faults(joining, changes, 3))

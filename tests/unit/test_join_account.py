"""The account of a join under kills finds what is wrong: else its silence would say nothing."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import State
from tests.support.join_run.account import Change, faults_of

LET_GO: Change = ("then", "joining", "pending")
RAN: Change = ("then", "running", "succeeded")


def a_then(states: dict[str, int], *, numbers: int, **more: Any) -> JobRecord:
    """It waited for three; `numbers` of the results that it found differ."""
    result = {"states": states, "numbers": list(range(numbers))}
    values = {"id": "then", "state": State.SUCCEEDED, "reason": None, "error_message": None}
    return cast("JobRecord", SimpleNamespace(**values | {"result": result} | more))


GOOD = a_then({"succeeded": 3}, numbers=3)


@pytest.mark.parametrize(
    ("then", "changes"),
    [
        (GOOD, [LET_GO, RAN]),
        (a_then({"succeeded": 2, "dead": 1}, numbers=2), [LET_GO, RAN]),
        (GOOD, [LET_GO, RAN, ("other", "joining", "pending")]),
        (a_then({}, numbers=0, state=State.DEAD, reason="crashed"), [LET_GO]),
    ],
    ids=["all-succeeded", "one-was-spent", "another-join", "it-was-spent-itself"],
)
def test_a_join_that_ended_once_after_all_has_no_fault(
    then: JobRecord, changes: list[Change]
) -> None:
    assert faults_of(then, changes, 3) == []


@pytest.mark.parametrize(
    ("then", "changes", "said"),
    [
        (GOOD, [LET_GO, LET_GO, RAN], "let go 2 times"),
        (GOOD, [RAN], "let go 0 times"),
        (GOOD, [LET_GO, RAN, RAN], "succeeded 2 times"),
        (a_then({"succeeded": 2, "running": 1}, numbers=2), [LET_GO, RAN], "early"),
        (a_then({"succeeded": 2}, numbers=2), [LET_GO, RAN], "found 2 of 3"),
        (a_then({"succeeded": 3}, numbers=2), [LET_GO, RAN], "results are missing"),
        (a_then({}, numbers=0, state=State.DEAD, error_message="odd"), [LET_GO], "dead: odd"),
    ],
)
def test_what_is_wrong_with_a_join_is_said(
    then: JobRecord, changes: list[Change], said: str
) -> None:
    assert said in "; ".join(faults_of(then, changes, 3))

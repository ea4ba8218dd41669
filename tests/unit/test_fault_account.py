"""The account of a fault run finds every kind of fault; otherwise an empty one proves nothing."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.dead.dead_letter_headers import examine
from switchyard.broker.dead.scan import QueuedDeadLetter
from switchyard.broker.message import JobMessage, Metadata
from tests.support.chaos import Effect
from tests.support.fault_run.account import Account, Run, deaths_in, judge, overlaps, runs_of
from tests.support.fault_run.chronicle import Chronicle
from tests.support.fault_run.report import describe_faults, format_table


def effects_of(*steps: tuple[str, str, float]) -> list[Effect]:
    """Return the effects of one job's first attempt, from (step, worker, time)."""
    return [Effect("job", step, 1, worker, at) for step, worker, at in steps]


def test_effects_on_two_workers_become_one_run_each() -> None:
    traces = effects_of(
        ("started", "a", 1), ("started", "b", 2), ("done", "b", 3), ("done", "a", 4)
    )
    assert runs_of(traces) == {"job": [Run("a", 1, 1, 4, "done"), Run("b", 1, 2, 3, "done")]}


@pytest.mark.parametrize(
    ("steps", "count"),
    [
        ([("started", "a", 1), ("done", "a", 2), ("started", "b", 3), ("done", "b", 4)], 0),
        ([("started", "a", 1), ("started", "b", 2), ("done", "a", 3), ("done", "b", 4)], 1),
        # The first was killed, at an unknown time.
        ([("started", "a", 1), ("started", "b", 2), ("done", "b", 4)], 0),
        # On one worker, as after a connection that was cut.
        ([("started", "a", 1), ("started", "a", 2), ("done", "a", 3), ("done", "a", 4)], 1),
    ],
    ids=["one-after-the-other", "at-once", "first-killed", "twice-on-one-worker"],
)
def test_a_run_that_begins_before_an_earlier_one_ended_is_an_overlap(
    steps: list[tuple[str, str, float]], count: int
) -> None:
    assert len(overlaps(runs_of(effects_of(*steps))["job"])) == count


SUCCEEDED_ROW: dict[str, Any] = {"state": "succeeded", "payload": "{}", "job_type": "fault_task"}
NORMAL_CHANGES = [("queued", "running"), ("running", "succeeded")]
ONE_RUN = [("started", "a", 1), ("done", "a", 2)]
OVERLAPPING_RUNS = [("started", "a", 1), ("started", "b", 2), ("done", "a", 3), ("done", "b", 4)]


@pytest.mark.parametrize(
    ("row", "changes", "letters", "steps", "taken_at", "expected_fault"),
    [
        ({}, NORMAL_CHANGES, 0, ONE_RUN, None, None),
        (None, NORMAL_CHANGES, 0, ONE_RUN, None, "lost"),
        ({"state": "queued"}, [], 0, ONE_RUN, None, "not ended"),
        ({"state": "cancelled"}, [("queued", "cancelled")], 0, ONE_RUN, None, "not ended"),
        ({"state": "dead"}, [("running", "dead")], 1, ONE_RUN, None, "wrongly dead"),
        ({"payload": '{"dies": "permanent"}'}, NORMAL_CHANGES, 0, ONE_RUN, None, "wrongly alive"),
        (
            {},
            [*NORMAL_CHANGES, ("succeeded", "running"), *NORMAL_CHANGES[1:]],
            0,
            ONE_RUN,
            None,
            "ended twice",
        ),
        ({}, NORMAL_CHANGES, 0, ONE_RUN[:1], None, "never run"),
        ({}, NORMAL_CHANGES, 1, ONE_RUN, None, "letters"),
        ({}, NORMAL_CHANGES, 0, OVERLAPPING_RUNS, None, "overlap"),
        ({}, NORMAL_CHANGES, 0, OVERLAPPING_RUNS, 2.0, None),
        (
            {},
            NORMAL_CHANGES,
            0,
            OVERLAPPING_RUNS,
            3.0,
            "overlap",
        ),  # taken over only after the second run ended: an overlap
    ],
)
def test_the_account_of_one_job_names_its_fault(
    row: dict[str, str] | None,
    changes: list[tuple[str, str]],
    letters: int,
    steps: list[tuple[str, str, float]],
    taken_at: float | None,
    expected_fault: str | None,
) -> None:
    chronicle = Chronicle(began=0.0, began_at=0.0)
    account = Account(runs=runs_of(effects_of(*steps)))
    if row is not None:
        columns = SUCCEEDED_ROW | {"id": "job", "reason": None, "error_message": None} | row
        account.rows["job"] = SimpleNamespace(**columns)
    if taken_at is not None:
        attempt = SimpleNamespace(outcome="crashed", worker_id="a", finished_at=taken_at)
        account.timelines["job"].append(attempt)
    judge(account, "http", "job", changes, letters, chronicle)
    assert [text.partition(" (")[0] for text in account.faulty_jobs["job"]] == (
        [expected_fault] if expected_fault else []
    )


def test_letters_of_one_death_count_once_and_those_of_two_twice() -> None:
    def make_letter(job_id: str, attempts: int, **headers: str) -> QueuedDeadLetter:
        metadata = Metadata(attempts=attempts)
        message = JobMessage(job_id=job_id, job_type="noop", payload={}, metadata=metadata)
        delivery = cast("Delivery", SimpleNamespace(body=message.encode()))
        return QueuedDeadLetter(delivery, *examine(headers, "hot.noop", message.encode()))

    # The two letters of "other" have different attempts: two deaths.
    letters = [
        make_letter("job", 3),
        make_letter("job", 3),
        make_letter("other", 3),
        make_letter("other", 2),
    ]
    assert deaths_in(letters) == {"job": 1, "other": 2}


def test_the_report_counts_faults_by_door_and_tells_the_story_of_the_job() -> None:
    chronicle = Chronicle(began=0.0)
    chronicle.events = [(1.5, "fault kill begins"), (60.0, "fault pause begins")]
    account = Account(runs=runs_of(effects_of(("started", "a", 1), ("done", "a", 2))))
    account.doors["http"]["accepted"] = 3
    account.blame("http", "job", "lost", "the ledger does not know it")

    assert not account.is_good
    assert format_table(account).splitlines()[-1].split()[:5] == ["all", "3", "·", "·", "1"]
    text = "\n".join(describe_faults(account, chronicle, []))
    assert "WRONG job job: lost (the ledger does not know it)" in text
    assert text.index("attempt 1 begins on a") < text.index("fault kill") < text.index(": done")
    assert "pause" not in text

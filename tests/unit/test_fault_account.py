"""The account of a fault run finds what is wrong: else its silence would say nothing."""

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
from tests.support.fault_run.report import story, table


def effects_of(*steps: tuple[str, str, float]) -> list[Effect]:
    """Of one job's first attempt: what, where, when."""
    return [Effect("job", what, 1, worker, at) for what, worker, at in steps]


def test_traces_of_two_workers_become_a_run_each_with_its_own_end() -> None:
    traces = effects_of(
        ("started", "a", 1), ("started", "b", 2), ("done", "b", 3), ("done", "a", 4)
    )
    assert runs_of(traces) == {"job": [Run("a", 1, 1, 4, "done"), Run("b", 1, 2, 3, "done")]}


@pytest.mark.parametrize(
    ("steps", "count"),
    [
        ([("started", "a", 1), ("done", "a", 2), ("started", "b", 3), ("done", "b", 4)], 0),
        ([("started", "a", 1), ("started", "b", 2), ("done", "a", 3), ("done", "b", 4)], 1),
        # The first was killed: who knows when.
        ([("started", "a", 1), ("started", "b", 2), ("done", "b", 4)], 0),
        # On one worker, as after a connection that was cut.
        ([("started", "a", 1), ("started", "a", 2), ("done", "a", 3), ("done", "a", 4)], 1),
    ],
    ids=["one-after-the-other", "at-once", "first-killed", "twice-on-one-worker"],
)
def test_overlap_is_a_run_that_begins_before_an_earlier_one_has_ended(
    steps: list[tuple[str, str, float]], count: int
) -> None:
    assert len(overlaps(runs_of(effects_of(*steps))["job"])) == count


GOOD: dict[str, Any] = {"state": "succeeded", "payload": "{}", "job_type": "fault_task"}
ENDED = [("queued", "running"), ("running", "succeeded")]
RAN = [("started", "a", 1), ("done", "a", 2)]
TWICE = [("started", "a", 1), ("started", "b", 2), ("done", "a", 3), ("done", "b", 4)]


@pytest.mark.parametrize(
    ("row", "changes", "letters", "steps", "taken_at", "wrong"),
    [
        ({}, ENDED, 0, RAN, None, None),
        (None, ENDED, 0, RAN, None, "lost"),
        ({"state": "queued"}, [], 0, RAN, None, "not ended"),
        ({"state": "cancelled"}, [("queued", "cancelled")], 0, RAN, None, "not ended"),
        ({"state": "dead"}, [("running", "dead")], 1, RAN, None, "wrongly dead"),
        ({"payload": '{"dies": "permanent"}'}, ENDED, 0, RAN, None, "wrongly alive"),
        ({}, [*ENDED, ("succeeded", "running"), *ENDED[1:]], 0, RAN, None, "ended twice"),
        ({}, ENDED, 0, RAN[:1], None, "never run"),
        ({}, ENDED, 1, RAN, None, "letters"),
        ({}, ENDED, 0, TWICE, None, "overlap"),
        ({}, ENDED, 0, TWICE, 2.0, None),
        ({}, ENDED, 0, TWICE, 3.0, "overlap"),  # too late: both ran, and nobody knew
    ],
)
def test_account_of_one_job_names_what_is_wrong(
    row: dict[str, str] | None,
    changes: list[tuple[str, str]],
    letters: int,
    steps: list[tuple[str, str, float]],
    taken_at: float | None,
    wrong: str | None,
) -> None:
    told = Chronicle(began=0.0, began_at=0.0)
    account = Account(runs=runs_of(effects_of(*steps)))
    if row is not None:
        whole = GOOD | {"id": "job", "reason": None, "error_message": None} | row
        account.rows["job"] = SimpleNamespace(**whole)
    if taken_at is not None:
        line = SimpleNamespace(outcome="crashed", worker_id="a", finished_at=taken_at)
        account.lines["job"].append(line)
    judge(account, "http", "job", changes, letters, told)
    assert [text.partition(" (")[0] for text in account.faulty["job"]] == ([wrong] if wrong else [])


def test_letters_of_one_death_count_once_and_those_of_two_twice() -> None:
    def letter(job_id: str, attempts: int, **headers: str) -> QueuedDeadLetter:
        metadata = Metadata(attempts=attempts)
        message = JobMessage(job_id=job_id, job_type="noop", payload={}, metadata=metadata)
        delivery = cast("Delivery", SimpleNamespace(body=message.encode()))
        return QueuedDeadLetter(delivery, *examine(headers, "hot.noop", message.encode()))

    # The second of "other" died once more: nothing excuses that.
    letters = [letter("job", 3), letter("job", 3), letter("other", 3), letter("other", 2)]
    assert deaths_in(letters) == {"job": 1, "other": 2}


def test_report_counts_what_is_wrong_by_door_and_tells_what_happened_around_the_job() -> None:
    told = Chronicle(began=0.0)
    told.events = [(1.5, "fault kill begins"), (60.0, "fault pause begins")]
    account = Account(runs=runs_of(effects_of(("started", "a", 1), ("done", "a", 2))))
    account.doors["http"]["accepted"] = 3
    account.blame("http", "job", "lost", "the ledger does not know it")

    assert not account.is_good
    assert table(account).splitlines()[-1].split()[:5] == ["all", "3", "·", "·", "1"]
    text = "\n".join(story(account, told, []))
    assert "WRONG job job: lost (the ledger does not know it)" in text
    assert text.index("attempt 1 begins on a") < text.index("fault kill") < text.index(": done")
    assert "pause" not in text

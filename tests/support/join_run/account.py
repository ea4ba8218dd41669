"""Whether what waited for the joined jobs ran once, and after all of them."""

from collections import Counter
from collections.abc import Iterable

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import State

Change = tuple[str, str, str]
"""A job, its old state, its new one."""


def was_spent(record: JobRecord) -> bool:
    """Tell whether a job was there at too many deaths of workers, and was given up for that."""
    return record.state is State.DEAD and record.reason == Reason.CRASHED


def faults_of(then: JobRecord, changes: Iterable[Change], leaves: int) -> list[str]:
    """Return what is wrong with the job that waited for so many; nothing where all is as it must
    be.

    It says itself what it found at its start: a job that had not ended then, or that it did not
    know of, means that it was early. Joined jobs may have been spent: that is an end, too.
    """
    moves = Counter((old, new) for job_id, old, new in changes if job_id == then.id)
    released = sum(number for (old, _), number in moves.items() if old == State.JOINING)
    ended = sum(number for (_, new), number in moves.items() if new == State.SUCCEEDED)
    wrong = []
    if released != 1:
        wrong.append(f"it was let go {released} times")
    if was_spent(then):
        return wrong
    if then.state is not State.SUCCEEDED:
        return [*wrong, f"it is {then.state}: {then.error_message}"]
    if ended != 1:
        wrong.append(f"it succeeded {ended} times")
    result = then.result or {}
    states: dict[str, int] = result.get("states", {})
    early = {state: number for state, number in states.items() if state not in _ENDS}
    if early:
        wrong.append(f"it was early: {early}")
    if (found := sum(states.values())) != leaves:
        wrong.append(f"it found {found} of {leaves} jobs")
    if len(set(result.get("numbers", ()))) != states.get(State.SUCCEEDED, 0):
        wrong.append("results are missing of jobs that succeeded")
    return wrong


_ENDS = frozenset({State.SUCCEEDED.value, State.DEAD.value})

"""Checks that the job that waited for the joined jobs ran once, and after all of them."""

from collections import Counter
from collections.abc import Iterable

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import State

Change = tuple[str, str, str]
"""A job's id, its old state, and its new one."""


def was_given_up(record: JobRecord) -> bool:
    """Return whether a job was given up because it ran at too many deaths of workers."""
    return record.state is State.DEAD and record.reason == Reason.CRASHED


def find_faults(then: JobRecord, changes: Iterable[Change], leaves: int) -> list[str]:
    """Return what is wrong with the job that waited for that many leaves, if anything.

    Its result has the states that it found at its start: a job that had not ended, or was missing,
    means that it began too early. Joined jobs may have been given up: that is an end, too.
    """
    transitions = Counter((old, new) for job_id, old, new in changes if job_id == then.id)
    released = sum(number for (old, _), number in transitions.items() if old == State.JOINING)
    ended = sum(number for (_, new), number in transitions.items() if new == State.SUCCEEDED)
    faults = []
    if released != 1:
        faults.append(f"it was let go {released} times")
    if was_given_up(then):
        return faults
    if then.state is not State.SUCCEEDED:
        return [*faults, f"it is {then.state}: {then.error_message}"]
    if ended != 1:
        faults.append(f"it succeeded {ended} times")
    result = then.result or {}
    states: dict[str, int] = result.get("states", {})
    early = {state: number for state, number in states.items() if state not in _ENDED_STATES}
    if early:
        faults.append(f"it was early: {early}")
    if (found_count := sum(states.values())) != leaves:
        faults.append(f"it found {found_count} of {leaves} jobs")
    if len(set(result.get("numbers", ()))) != states.get(State.SUCCEEDED, 0):
        faults.append("results are missing of jobs that succeeded")
    return faults


_ENDED_STATES = frozenset({State.SUCCEEDED.value, State.DEAD.value})

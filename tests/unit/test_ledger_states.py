from switchyard.services.engine.records.states import ENDINGS, FINISHED, TRANSITIONS, WAITING, State


def test_every_state_has_its_transitions() -> None:
    assert set(TRANSITIONS) == set(State)


def test_every_state_is_waiting_running_joining_or_finished() -> None:
    assert WAITING | FINISHED | {State.RUNNING, State.JOINING} == set(State)
    assert not WAITING & FINISHED


def test_nothing_follows_success_or_cancellation() -> None:
    assert not TRANSITIONS[State.SUCCEEDED]
    assert not TRANSITIONS[State.CANCELLED]


def test_a_joining_job_can_be_released_or_cancelled() -> None:
    assert TRANSITIONS[State.JOINING] == {State.PENDING, State.CANCELLED}


def test_a_waiting_job_can_be_run_cancelled_or_dead() -> None:
    for state in WAITING:
        assert TRANSITIONS[state] >= {State.RUNNING, State.CANCELLED, State.DEAD}


def test_an_attempt_ends_in_a_state_that_may_follow_running() -> None:
    takeovers = {State.RUNNING, State.PAUSED}
    assert TRANSITIONS[State.RUNNING] - takeovers == ENDINGS

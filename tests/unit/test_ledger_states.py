from switchyard.services.engine.records.states import ENDINGS, FINISHED, TRANSITIONS, WAITING, State


def test_every_state_says_what_may_follow() -> None:
    assert set(TRANSITIONS) == set(State)


def test_every_state_waits_runs_or_has_finished() -> None:
    assert WAITING | FINISHED | {State.RUNNING, State.JOINING} == set(State)
    assert not WAITING & FINISHED


def test_nothing_follows_success_or_cancellation() -> None:
    assert not TRANSITIONS[State.SUCCEEDED]
    assert not TRANSITIONS[State.CANCELLED]


def test_a_job_that_joins_others_is_let_go_or_called_off() -> None:
    assert TRANSITIONS[State.JOINING] == {State.PENDING, State.CANCELLED}


def test_every_waiting_state_may_be_run_cancelled_and_given_up() -> None:
    for state in WAITING:
        assert TRANSITIONS[state] >= {State.RUNNING, State.CANCELLED, State.DEAD}


def test_an_attempt_ends_in_a_state_that_may_follow_running() -> None:
    takeovers = {State.RUNNING, State.PAUSED}
    assert TRANSITIONS[State.RUNNING] - takeovers == ENDINGS

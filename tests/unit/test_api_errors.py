"""Problems with which the API answers errors of the broker."""

import pytest

from switchyard.api.http.errors import problem_of
from switchyard.broker.errors import BrokerUnavailable, LaneFull


@pytest.mark.parametrize(
    ("error", "kind", "expected_text"),
    [
        (LaneFull("hot.x", dead_lettered=True), "lane-full", "waits in the dead letters"),
        (LaneFull("hot.x", dead_lettered=False), "lane-full", "nothing was done"),
        (LaneFull("hot.x", dead_lettered=True), "lane-full", "the lane hot is full"),
        (LaneFull("llm.x", dead_lettered=False), "lane-full", "the lane llm is full"),
        (BrokerUnavailable("gone", maybe_accepted=True), "broker-away", "may be done nevertheless"),
        (BrokerUnavailable("gone", maybe_accepted=False), "broker-away", "nothing was done"),
    ],
)
def test_a_problem_says_what_happened_to_the_job(
    error: Exception, kind: str, expected_text: str
) -> None:
    problem = problem_of(error)
    assert problem.kind.name == kind
    assert expected_text in str(problem.text)
    assert int((problem.headers or {})["Retry-After"]) >= 1

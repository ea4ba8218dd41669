"""What the errors of the layers beneath are answered with."""

import pytest

from switchyard.api.http.errors import problem_of
from switchyard.broker.errors import BrokerUnavailable, LaneFull


@pytest.mark.parametrize(
    ("error", "name", "says"),
    [
        (LaneFull("hot.x", dead_lettered=True), "lane-full", "waits in the dead letters"),
        (LaneFull("hot.x", dead_lettered=False), "lane-full", "nothing was done"),
        (LaneFull("hot.x", dead_lettered=True), "lane-full", "the lane hot is full"),
        (LaneFull("llm.x", dead_lettered=False), "lane-full", "the lane llm is full"),
        (BrokerUnavailable("gone", maybe_accepted=True), "broker-away", "may be done nevertheless"),
        (BrokerUnavailable("gone", maybe_accepted=False), "broker-away", "nothing was done"),
    ],
)
def test_what_became_of_the_job_is_told(error: Exception, name: str, says: str) -> None:
    problem = problem_of(error)
    assert problem.kind.name == name
    assert says in str(problem.text)
    assert int((problem.headers or {})["Retry-After"]) >= 1

"""Fairness between sources: who steps back, and by how much."""

from __future__ import annotations

from switchyard.services.engine.publishing.fairness import FairSources
from switchyard.services.engine.records.requests import NewJob
from tests.support.made import message, new_job


class Gauges:
    """Knows what each source has open."""

    def __init__(self, **open_jobs: int) -> None:
        self.open_jobs = open_jobs
        self.looks = 0

    async def open_by_source(self, lane: str, *, sample: int) -> dict[str, int]:
        self.looks += 1
        return dict(self.open_jobs)


def job(source: str, number: int, priority: int = 5) -> NewJob:
    made = message(f"{source}-{number}", source=source)
    return new_job(made.model_copy(update={"priority": priority}), lane="backfill")


async def priorities(fair: FairSources, jobs: list[NewJob]) -> list[int]:
    return [each.message.priority for each in await fair.lower_priorities(jobs)]


async def test_a_source_with_much_in_flight_steps_back_and_others_do_not() -> None:
    fair = FairSources(Gauges(big=10, small=2), 10)  # type: ignore[arg-type]
    jobs = [job("big", 1), job("small", 1), job("new", 1), job("big", 2, priority=10)]
    assert await priorities(fair, jobs) == [0, 5, 5, 5]


async def test_what_is_published_from_here_counts_at_once() -> None:
    gauges = Gauges()
    fair = FairSources(gauges, 3)  # type: ignore[arg-type]
    assert await priorities(fair, [job("big", n) for n in range(5)]) == [5, 5, 5, 0, 0]
    assert await priorities(fair, [job("big", 9, priority=1)]) == [0], "no lower than that"
    assert gauges.looks == 1

"""Fairness between sources: whose jobs get a lower priority, and how low."""

from __future__ import annotations

from switchyard.services.engine.publishing.fairness import FairSources
from switchyard.services.engine.records.requests import NewJob
from tests.support.made import message, new_job


class FakeLedger:
    """Returns the number of open jobs of each source, as the test sets it."""

    def __init__(self, **open_jobs: int) -> None:
        self.open_jobs = open_jobs
        self.queries = 0

    async def open_by_source(self, lane: str, *, sample: int) -> dict[str, int]:
        self.queries += 1
        return dict(self.open_jobs)


def make_job(source: str, number: int, priority: int = 5) -> NewJob:
    job_message = message(f"{source}-{number}", source=source)
    return new_job(job_message.model_copy(update={"priority": priority}), lane="backfill")


async def lowered_priorities(fair: FairSources, jobs: list[NewJob]) -> list[int]:
    return [each.message.priority for each in await fair.lower_priorities(jobs)]


async def test_only_a_source_with_many_open_jobs_gets_a_lower_priority() -> None:
    fair = FairSources(FakeLedger(big=10, small=2), 10)  # type: ignore[arg-type]
    jobs = [
        make_job("big", 1),
        make_job("small", 1),
        make_job("new", 1),
        make_job("big", 2, priority=10),
    ]
    assert await lowered_priorities(fair, jobs) == [0, 5, 5, 5]


async def test_jobs_published_by_this_process_count_at_once() -> None:
    ledger = FakeLedger()
    fair = FairSources(ledger, 3)  # type: ignore[arg-type]
    assert await lowered_priorities(fair, [make_job("big", n) for n in range(5)]) == [5, 5, 5, 0, 0]
    assert await lowered_priorities(fair, [make_job("big", 9, priority=1)]) == [0], (
        "the priority is not lowered further"
    )
    assert ledger.queries == 1

"""Counts in the record of a backfill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

MAX_NOTES = 50
"""Reasons for skipped items that are kept."""
MAX_SAMPLES = 60
"""Samples of the progress that are kept."""


class ProgressPoint(BaseModel):
    """Progress of a backfill at one moment."""

    at: float
    """Seconds since the epoch."""
    published: int
    finished: int


class Counts(BaseModel):
    """Counts of a backfill. They are saved with the cursor, so a crash counts nothing twice."""

    total: int | None = None
    """Items in all; None where the source does not know."""
    read: int = 0
    """Items behind the cursor."""
    published: int = 0
    skipped: int = 0
    """Items that could not be made into a job."""
    repeated: int = 0
    """Items with the key of an earlier item, which share its job. Known once all is published."""
    exhausted: bool = False
    """Whether all its jobs are published."""
    notes: list[str] = []
    """Reasons for which items were skipped; the first 50."""
    samples: list[ProgressPoint] = []
    """Progress from its start to the latest sample."""

    @classmethod
    def from_json(cls, counts: Mapping[str, Any]) -> Counts:
        return cls.model_validate(counts)

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def conclude(self, jobs: int) -> None:
        """Record that all jobs are published, and their number."""
        self.repeated = max(0, self.published - jobs)
        self.published = jobs
        self.exhausted = True

    def add_sample(self, finished: int, now: float) -> None:
        """Add a sample. Beyond MAX_SAMPLES, every second one of the older half is dropped. `now`:
        by the ledger's clock, as another host may add the next one."""
        self.samples.append(ProgressPoint(at=now, published=self.published, finished=finished))
        if len(self.samples) > MAX_SAMPLES:
            half = len(self.samples) // 2
            self.samples = self.samples[:half:2] + self.samples[half:]

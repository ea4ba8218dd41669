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
    """Counted with the cursor, in one write: a crash counts nothing twice."""

    total: int | None = None
    """Items in all; None where the source does not know."""
    read: int = 0
    """Items behind the cursor."""
    published: int = 0
    skipped: int = 0
    """Items that could not be made into a job."""
    repeated: int = 0
    """Items whose key another item had before: they have one job. Known once all is published."""
    exhausted: bool = False
    """Whether all its jobs are published."""
    notes: list[str] = []
    """Reasons for which items were skipped; the first 50."""
    samples: list[ProgressPoint] = []
    """Moments of its course, the last one now, the first at its start."""

    @classmethod
    def from_json(cls, counts: Mapping[str, Any]) -> Counts:
        return cls.model_validate(counts)

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def conclude(self, jobs: int) -> None:
        """Note that all jobs are published that will be, and how many they are."""
        self.repeated = max(0, self.published - jobs)
        self.published = jobs
        self.exhausted = True

    def add_sample(self, finished: int, now: float) -> None:
        """Keep a sample of now, by the ledger's clock: the next one may be another host's. The
        older ones get thinner, so that there are never many."""
        self.samples.append(ProgressPoint(at=now, published=self.published, finished=finished))
        if len(self.samples) > MAX_SAMPLES:
            half = len(self.samples) // 2
            self.samples = self.samples[:half:2] + self.samples[half:]

"""Stop a bulk operation when its first jobs, the canary, fail, or too many of all its jobs."""

from __future__ import annotations

from dataclasses import dataclass

MIN_SAMPLE = 10
"""Fewest ended jobs that the fraction of failures is counted over: one failure of the first three
is no sign."""


class Halted(Exception):
    """Raised where an operation stops itself; the text says why."""


@dataclass(frozen=True, slots=True)
class HaltRule:
    """The rule that stops an operation. Its jobs are counted since it began, or was resumed after
    the last halt: `done` have ended, `failed` of these badly, `unfinished` have not ended."""

    canary: int | None = None
    """Jobs that are published first; the others follow once all of these have succeeded."""
    halt_on: float | None = None
    """The fraction of ended jobs that may fail."""

    @property
    def depends_on_outcomes(self) -> bool:
        """Whether it matters what becomes of the jobs."""
        return self.canary is not None or self.halt_on is not None

    def check(self, done: int, failed: int, what_happened: str) -> None:
        """Raise Halted where the operation is to stop."""
        if self.canary is not None and failed and done <= self.canary:
            raise Halted(f"canary: {failed} of {done} {what_happened}")
        if self.halt_on is not None and failed and failed >= self.halt_on * max(done, MIN_SAMPLE):
            raise Halted(f"{failed} of {done} {what_happened} ({failed / done:.0%})")

    def canary_left(self, done: int, failed: int, unfinished: int) -> int | None:
        """Return how many jobs of the canary may still go; None once it has succeeded, or where
        there is none."""
        if self.canary is None or done - failed >= self.canary:
            return None
        return max(0, self.canary - done - unfinished)

    def canary_note(self, done: int, failed: int) -> str:
        """Say how far the canary is."""
        return f"canary: {done - failed} of {self.canary} have succeeded"

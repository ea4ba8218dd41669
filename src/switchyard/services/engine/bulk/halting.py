"""When an operation stops itself: its first jobs, the canary, or too many of them fail."""

from __future__ import annotations

from dataclasses import dataclass

MIN_SAMPLE = 10
"""As if so many jobs had ended, where fewer have: one failure of the first three is no sign."""


class Halted(Exception):
    """Raised where an operation stops itself; the text says why."""


@dataclass(frozen=True, slots=True)
class HaltRule:
    """By what an operation is stopped. Its jobs are counted since it began, or was resumed after
    the last halt: `done` have ended, `failed` of these badly, `unfinished` have not ended."""

    canary: int | None = None
    """So many go first, the others once all of these have succeeded."""
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

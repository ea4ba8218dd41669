"""What happened in a fault run, and when: faults, starts and ends of processes, and errors."""

import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Chronicle:
    """Events of a run. Times are seconds on the monotonic clock, as in the handlers' traces."""

    began: float = field(default_factory=time.monotonic)
    began_at: float = field(default_factory=time.time)
    """The same moment in seconds since the epoch, which the ledger and the logs use."""
    events: list[tuple[float, str]] = field(default_factory=list)
    faults_found: list[str] = field(default_factory=list)
    """What must not happen in any run, whatever is broken."""
    answers: Counter[str] = field(default_factory=Counter)
    """Numbers of HTTP answers by status; `none` is a lost connection."""
    faults: Counter[str] = field(default_factory=Counter)
    """How often each fault was caused, by name."""

    def note(self, text: str) -> None:
        self.events.append((time.monotonic(), text))

    def blame(self, text: str) -> None:
        """Note an error that no caused fault explains."""
        self.note(f"WRONG: {text}")
        self.faults_found.append(f"{self.at(time.monotonic())} {text}")

    def at(self, moment: float) -> str:
        """Format a moment of the monotonic clock as seconds since the begin."""
        return f"{moment - self.began:7.2f}s"

    def from_epoch(self, moment: float) -> float:
        """Convert a time since the epoch to the monotonic clock."""
        return moment - self.began_at + self.began

    def between(self, start: float, stop: float) -> list[tuple[float, str]]:
        return [event for event in self.events if start <= event[0] <= stop]

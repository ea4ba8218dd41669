"""What happened in a fault run, and when: faults, processes, and what must not have been."""

import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Chronicle:
    """Times are seconds on the monotonic clock, as those of the handlers' traces."""

    began: float = field(default_factory=time.monotonic)
    began_at: float = field(default_factory=time.time)
    """The same moment, since the epoch: what the ledger and the logs go by."""
    events: list[tuple[float, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """What must not happen in any run, whatever is broken."""
    answers: Counter[str] = field(default_factory=Counter)
    """HTTP answers by status; `none` where the connection was cut."""
    faults: Counter[str] = field(default_factory=Counter)

    def note(self, text: str) -> None:
        self.events.append((time.monotonic(), text))

    def blame(self, text: str) -> None:
        """Note something wrong that no fault excuses."""
        self.note(f"WRONG: {text}")
        self.wrong.append(f"{self.at(time.monotonic())} {text}")

    def at(self, moment: float) -> str:
        """Write a moment of the monotonic clock for people."""
        return f"{moment - self.began:7.2f}s"

    def from_epoch(self, moment: float) -> float:
        """Convert a time since the epoch to the monotonic clock."""
        return moment - self.began_at + self.began

    def between(self, start: float, stop: float) -> list[tuple[float, str]]:
        return [event for event in self.events if start <= event[0] <= stop]

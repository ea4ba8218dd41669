"""How busy others keep the machine while something is measured. Linux alone tells it (proc(5))."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path

DISTURBED = 0.1
"""Of all cores: what others may use at most, or a figure says more of them than of us."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _TIMES = 1, slice(11, 15)
"""Fields of `/proc/PID/stat` behind the name: parent; time in user and system mode, and that of
children that have ended."""
_IDLE = slice(3, 5)
"""Fields of the first line of `/proc/stat`: idle, and waiting for a disk."""


class OtherLoad:
    """Processor time of others, since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy, self._own = _busy_seconds(), own_seconds()

    def seconds(self) -> float:
        """Return the processor time of all processes but this one and those that it has started,
        with their children."""
        return max(0.0, _busy_seconds() - self._busy - (own_seconds() - self._own))

    def share(self) -> float:
        """Return the part of all cores that others have used, 0 to 1."""
        cores = os.cpu_count() or 1
        return min(1.0, self.seconds() / ((time.monotonic() - self._began) * cores))


def own_seconds() -> float:
    """Return the processor time of this process and of its descendants, also of those that have
    ended and whose parent lives."""
    parts: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue  # it has ended meanwhile
            parts[int(entry.name)] = text.rpartition(")")[2].split()
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid, fields in parts.items():
        children[int(fields[_PARENT])].append(pid)
    ticks, family = 0, [os.getpid()]
    while family:
        pid = family.pop()
        ticks += sum(map(int, parts[pid][_TIMES]))
        family += children[pid]
    return ticks / _TICKS


def _busy_seconds() -> float:
    """Return the processor time of everything on this machine since it was started."""
    first, _, _ = Path("/proc/stat").read_text().partition("\n")
    # The last two, time of guests, are in the first two already.
    fields = [int(each) for each in first.split()[1:9]]
    return (sum(fields) - sum(fields[_IDLE])) / _TICKS

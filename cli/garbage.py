"""How often a long-running process looks for cycles of dead objects."""

from __future__ import annotations

import gc

ALLOCATIONS = 50_000
"""Objects that are made before Python looks. Its own 700 suits small programs: a worker makes as
many for a few jobs, all of which go by themselves, and spends a fifth of its time in looking."""


def collect_rarely() -> None:
    """Call once everything is imported: what is there then is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS, 20, 50)

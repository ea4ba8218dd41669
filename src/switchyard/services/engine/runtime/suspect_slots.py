"""Bound how many of a worker's slots suspects hold: jobs whose worker has died while they ran."""

from __future__ import annotations

from collections.abc import Sequence

from switchyard.services.engine.runtime.execution import MAX_SUSPECTS

MAX_SUSPECT_SLOTS = 2 * MAX_SUSPECTS
"""Slots that suspects of one lane hold at most: half of them run in their processes, half wait for
one."""


class SuspectSlots:
    """The slots of one kind of worker that suspects may hold, by lane.

    A suspect waits until its worker counts as dead, and then for a process that loads its libraries
    anew. After the death of a worker with many jobs, suspects would hold every slot for many
    seconds; so one slot at least is left to other jobs, and no lane's suspects hold up another's.
    """

    def __init__(self, lanes: Sequence[str], slots: int) -> None:
        """`lanes`: the most urgent first."""
        free = slots - 1
        other_share = free // len(lanes)
        shares = [free - other_share * (len(lanes) - 1)] + [other_share] * (len(lanes) - 1)
        self._max_by_lane = {
            lane: max(1, min(share, MAX_SUSPECT_SLOTS))
            for lane, share in zip(lanes, shares, strict=True)
        }
        self._held: dict[str, str] = {}
        """The lane of each suspect that holds a slot, by its claim's id."""

    def take(self, lane: str, claim_id: str) -> bool:
        """Let a suspect hold the slot that its delivery has; False where it has to wait elsewhere.
        True for one that holds a slot already."""
        if claim_id in self._held:
            return True
        if sum(each == lane for each in self._held.values()) >= self._max_by_lane[lane]:
            return False
        self._held[claim_id] = lane
        return True

    def holds(self, claim_id: str) -> bool:
        """Tell whether a suspect holds a slot."""
        return claim_id in self._held

    def give_back(self, claim_id: str) -> None:
        """End a suspect's hold on its slot, if it has one."""
        self._held.pop(claim_id, None)

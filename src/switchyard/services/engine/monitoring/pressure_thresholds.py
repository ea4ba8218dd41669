"""Compute the numbers of waiting jobs from which a queue is slow or full."""

from __future__ import annotations

import math
from dataclasses import dataclass

from switchyard.broker.lanes import lane_of, queue_name
from switchyard.services.common.settings import Settings
from switchyard.services.engine.records.states import Pressure

LLM_WORKER = "llm"
"""The kind of worker that calls language models."""


@dataclass(frozen=True, slots=True)
class PressureThresholds:
    """Numbers of waiting jobs at which a queue counts as slow and as full."""

    ok_below: float
    """A queue that was slow or full stays slow until fewer wait."""
    slow_at: float
    full_at: float

    @classmethod
    def from_settings(cls, settings: Settings, queue: str, max_length: int) -> PressureThresholds:
        """Return the thresholds of a queue that takes at most `max_length` messages."""
        slow, full = max_length * settings.pressure_slow_at, max_length * settings.pressure_full_at
        if queue != queue_name(lane_of(queue), LLM_WORKER):
            return cls(ok_below=slow, slow_at=slow, full_at=full)
        # Model servers take few requests at once: the wait is hours long before the broker's limit.
        return cls(
            ok_below=min(slow, settings.llm_ok_below),
            slow_at=min(slow, settings.llm_slow_at),
            full_at=min(full, settings.llm_full_at),
        )

    @property
    def limit(self) -> int:
        """The number of waiting jobs at which further ones are refused."""
        return math.ceil(self.full_at)

    def pressure(self, waiting: int, before: Pressure) -> Pressure:
        """Return the pressure of a queue with that many waiting jobs; `before`: its last
        pressure."""
        if waiting >= self.full_at:
            return Pressure.FULL
        if waiting >= self.slow_at:
            return Pressure.SLOW
        stays_slow = before is not Pressure.OK and waiting >= self.ok_below
        return Pressure.SLOW if stays_slow else Pressure.OK

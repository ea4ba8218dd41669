"""Tell how late schedules are and how their last firings ended, for the doctor and the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from switchyard.services.engine.monitoring import metric_names as names
from switchyard.services.engine.monitoring.metric_names import OTHER, Metric, Samples
from switchyard.services.engine.records.schedules import Firing, FiringOutcome, ScheduleRecord

MAX_SHOWN = 100
"""Schedules that have a label of their own, at most."""


def lateness(
    entries: Iterable[ScheduleRecord], waiting: Mapping[str, Firing], now: float
) -> dict[str, float]:
    """Return the seconds for which each schedule has been due without its job being published; 0
    where nothing is due. `waiting`: each schedule's firing that has been open for the longest."""
    late: dict[str, float] = {}
    for entry in entries:
        firing = waiting.get(entry.name)
        since = [now] if entry.paused_at is not None else [now, entry.fire_at]
        if firing is not None:
            since.append(firing.noted_at)
        late[entry.name] = now - min(since)
    return late


def schedule_samples(
    entries: Iterable[ScheduleRecord],
    waiting: Mapping[str, Firing],
    last: Mapping[str, Firing],
    now: float,
) -> list[tuple[Metric, Samples]]:
    """Return lateness, time since the last firing and number of refused schedules as metrics:
    MAX_SHOWN schedules have a label of their own, the others share OTHER. `last`: each schedule's
    latest firing whose end is known."""
    late = lateness(entries, waiting, now)
    fired = {
        name: max(0.0, now - firing.noted_at)
        for name, firing in last.items()
        if firing.outcome is FiringOutcome.FIRED and name in late
    }
    own = frozenset(sorted(late)[:MAX_SHOWN])
    refused = sum(each.outcome is FiringOutcome.REFUSED for each in last.values())
    return [
        (names.SCHEDULE_LATE, _label_seconds(late, own)),
        (names.SCHEDULE_FIRED, _label_seconds(fired, own)),
        (names.SCHEDULES_REFUSED, {(): float(refused)}),
    ]


def _label_seconds(
    numbers: Mapping[str, float], own: frozenset[str]
) -> dict[tuple[str, ...], float]:
    samples: dict[tuple[str, ...], float] = {}
    for name, seconds in numbers.items():
        label = (name if name in own else OTHER,)
        samples[label] = max(seconds, samples.get(label, 0.0))
    return samples

"""How full a queue is, as plain values."""

import pytest

from switchyard.services.engine.monitoring.pressure_thresholds import PressureThresholds
from switchyard.services.engine.records.states import Pressure

MARKS = PressureThresholds(ok_below=250, slow_at=500, full_at=1000)


@pytest.mark.parametrize(
    ("waiting", "before", "now"),
    [
        (249, Pressure.OK, Pressure.OK),
        (499, Pressure.OK, Pressure.OK),
        (500, Pressure.OK, Pressure.SLOW),
        (999, Pressure.OK, Pressure.SLOW),
        (1000, Pressure.OK, Pressure.FULL),
        (999, Pressure.FULL, Pressure.SLOW),
        (250, Pressure.SLOW, Pressure.SLOW),
        (250, Pressure.FULL, Pressure.SLOW),
        (249, Pressure.SLOW, Pressure.OK),
        (249, Pressure.FULL, Pressure.OK),
    ],
)
def test_a_slow_queue_is_ok_again_only_when_it_is_well_below(
    waiting: int, before: Pressure, now: Pressure
) -> None:
    assert MARKS.pressure(waiting, before) is now

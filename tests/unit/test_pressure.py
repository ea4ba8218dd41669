"""The pressure of a queue by its waiting jobs and its former pressure."""

import pytest

from switchyard.services.engine.monitoring.pressure_thresholds import PressureThresholds
from switchyard.services.engine.records.states import Pressure

THRESHOLDS = PressureThresholds(ok_below=250, slow_at=500, full_at=1000)


@pytest.mark.parametrize(
    ("waiting", "before", "expected"),
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
def test_a_slow_queue_is_ok_again_only_well_below_the_threshold(
    waiting: int, before: Pressure, expected: Pressure
) -> None:
    assert THRESHOLDS.pressure(waiting, before) is expected

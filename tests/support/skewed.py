"""`jobctl` on a host whose clock is wrong: `python -m tests.support.skewed SECONDS COMMAND…`.

Only Python's time of day is wrong; the database's time and measured durations are right.
"""

import datetime as dt
import sys
import time

_right_time = time.time
_RightDatetime = dt.datetime


def set_clock(ahead: float) -> None:
    """Set this process's clock ahead by so many seconds; call it before the product is imported."""
    offset = dt.timedelta(seconds=ahead)

    class Skewed(_RightDatetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> _RightDatetime:  # type: ignore[override]
            return _RightDatetime.now(tz) + offset

    time.time = lambda: _right_time() + ahead
    dt.datetime = Skewed  # type: ignore[misc]


if __name__ == "__main__":
    set_clock(float(sys.argv[1]))
    sys.argv = ["jobctl", *sys.argv[2:]]
    from switchyard.cli.main import main

    main()

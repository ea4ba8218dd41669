"""Which processor time benchmarks count as their own, and which as other load."""

import subprocess
import sys

from benchmarks.measurements import Row
from benchmarks.other_load import OtherLoad, own_seconds

BUSY_PROGRAM = "import time\nwhile time.process_time() < 0.4: pass"
ORPHANING_PROGRAM = (
    f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BUSY_PROGRAM!r}])"
)
"""Starts a busy process and ends, so that the process has no parent any more."""


def test_the_time_of_an_ended_child_is_our_own() -> None:
    before = own_seconds()
    subprocess.run([sys.executable, "-c", BUSY_PROGRAM], check=True)
    assert own_seconds() - before >= 0.35


def test_the_time_of_an_unrelated_process_is_other_load() -> None:
    load = OtherLoad()
    # This returns when the orphan has ended, because it inherits the output.
    subprocess.run([sys.executable, "-c", ORPHANING_PROGRAM], check=True, capture_output=True)
    assert load.seconds() >= 0.3
    assert 0 < load.share() <= 1


def test_the_spread_is_a_fraction_of_the_median() -> None:
    assert Row("a", "ms", [90, 100, 120]).spread == 0.3
    assert Row("a", "ms", [5]).spread is None
    assert Row("a", "", [0, 0]).spread is None

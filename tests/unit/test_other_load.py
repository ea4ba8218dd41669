"""What benchmarks count as theirs, and what as others'."""

import subprocess
import sys

from benchmarks.measurements import Row
from benchmarks.other_load import OtherLoad, own_seconds

BURN = "import time\nwhile time.process_time() < 0.4: pass"
ORPHAN = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURN!r}])"
"""Starts a process that is not its parent's any more when it works."""


def test_time_of_a_child_is_ours_also_when_it_has_ended() -> None:
    before = own_seconds()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert own_seconds() - before >= 0.35


def test_time_of_a_process_that_we_have_not_is_others() -> None:
    load = OtherLoad()
    # Its output is closed when the orphan has ended.
    subprocess.run([sys.executable, "-c", ORPHAN], check=True, capture_output=True)
    assert load.seconds() >= 0.3
    assert 0 < load.share() <= 1


def test_spread_is_a_part_of_the_median() -> None:
    assert Row("a", "ms", [90, 100, 120]).spread == 0.3
    assert Row("a", "ms", [5]).spread is None
    assert Row("a", "", [0, 0]).spread is None

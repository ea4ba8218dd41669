"""A process that works until it is told to stop ends without a word, whenever a signal comes."""

import signal
import subprocess
import sys

import pytest

SIGNALLED = """
import asyncio, os, signal
from switchyard.cli.base import stopping

class Signalled(stopping.OrderlyLoop):
    def _close_self_pipe(self):
        super()._close_self_pipe()
        os.kill(os.getpid(), signal.SIGTERM)

async def work():
    stopping.stop_on_signals(lambda: None)

stopping.OrderlyLoop = Signalled
stopping.{run}(work())
"""


@pytest.mark.parametrize("run", ["run", "run_enduring"])
def test_a_signal_while_the_event_loop_closes_is_no_error_to_show(run: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SIGNALLED.format(run=run)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGTERM, "")

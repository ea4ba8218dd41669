"""A signal ends a process without an error message, whenever it comes."""

import signal
import subprocess
import sys

import pytest

SIGNALLED_PROGRAM = """
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
def test_a_signal_while_the_event_loop_closes_shows_no_error(run: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SIGNALLED_PROGRAM.format(run=run)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (-signal.SIGTERM, "")

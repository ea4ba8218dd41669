"""`jobctl lanes` as it is drawn for a terminal."""

import io

from rich.console import Console

from switchyard.cli.engine.inspect.lanes import lanes_table
from switchyard.services.engine.monitoring.lane_report import LaneReport, LanesReport
from switchyard.services.engine.records.states import State


def test_jobs_are_counted_in_every_state() -> None:
    jobs = {state.value: number for number, state in enumerate(State, 1)}
    drawn = Console(file=io.StringIO(), width=200)
    drawn.print(lanes_table(LanesReport((LaneReport("hot", 5, (), jobs),), None)))
    assert isinstance(drawn.file, io.StringIO)
    shown = drawn.file.getvalue()
    assert all(f"{number} {state}" in shown for state, number in jobs.items())

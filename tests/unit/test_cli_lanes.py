"""`jobctl lanes` as it is drawn for a terminal."""

import io

from rich.console import Console

from switchyard.cli.engine.inspect.lanes import lanes_table
from switchyard.services.engine.monitoring.lane_report import LaneReport, LanesReport
from switchyard.services.engine.records.states import State


def test_the_number_of_jobs_in_each_state_is_shown() -> None:
    jobs = {state.value: number for number, state in enumerate(State, 1)}
    console = Console(file=io.StringIO(), width=200)
    console.print(lanes_table(LanesReport((LaneReport("hot", 5, (), jobs),), None)))
    assert isinstance(console.file, io.StringIO)
    output = console.file.getvalue()
    assert all(f"{number} {state}" in output for state, number in jobs.items())

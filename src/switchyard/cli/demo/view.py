"""What one sees while `jobctl demo` works: lanes that fill and empty, and documents done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from switchyard.cli.base.output import console, echo

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from switchyard.cli.demo.story import DemoRun
    from switchyard.cli.system.local_system import System
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.monitoring.lane_report import Report

LINE_SECONDS = 1.0
"""Where there is no terminal, a line at most so often."""


class View:
    """A table that is drawn again and again on a terminal; elsewhere, a line now and then."""

    def __init__(self, system: System, ledger: Ledger, story: DemoRun, live: Live | None) -> None:
        self._system = system
        self._ledger = ledger
        self._story = story
        self._live = live
        self._started = time.monotonic()
        self._last_line = ""
        self._line_at = 0.0

    def tell(self, text: str) -> None:
        """Say something that stays."""
        if self._live is not None:
            self._live.console.print(text, markup=False)
        else:
            echo(text)

    async def show(self) -> None:
        """Show how things stand."""
        from switchyard.services.engine.monitoring.lane_report import lane_report

        report = await lane_report(
            self._system.settings,
            self._system.registry,
            self._ledger,
            clock=self._ledger.clock.time,
        )
        if self._live is not None:
            self._live.update(_picture(report, self._progress(report)), refresh=True)
            return
        line = self._progress(report)
        now = time.monotonic()
        if line != self._last_line and now - self._line_at >= LINE_SECONDS:
            self._last_line, self._line_at = line, now
            echo(f"[{now - self._started:3.0f} s] {line}")

    def _progress(self, report: Report) -> str:
        documents = self._story.documents
        over = sum(1 for document in documents if document.is_over)
        states: dict[str, int] = {}
        for lane in report.lanes:
            for state, number in lane.jobs.items():
                states[state] = states.get(state, 0) + number
        jobs = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
        return f"documents done: {over} of {len(documents)}; jobs: {jobs}"


@contextmanager
def demo_view(system: System, ledger: Ledger, story: DemoRun) -> Iterator[View]:
    """A view on stdout, whatever that is."""
    screen = console()
    if not screen.is_terminal:
        yield View(system, ledger, story, None)
        return
    from rich.live import Live

    with Live(console=screen, auto_refresh=False, transient=True) as live:
        yield View(system, ledger, story, live)


def _picture(report: Report, progress: str) -> Table:
    from rich.table import Table

    from switchyard.cli.engine.inspect.lanes import lanes_table

    frame = Table.grid()
    frame.add_row(lanes_table(report))
    frame.add_row("")
    frame.add_row(progress)
    return frame

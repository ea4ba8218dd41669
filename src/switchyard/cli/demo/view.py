"""The output of `jobctl demo` while it runs: what has happened, line by line, and on a terminal a
table of the lanes that fill and empty."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from switchyard.cli.base.output import console, echo

if TYPE_CHECKING:
    from rich.live import Live

    from switchyard.cli.system.local_system import System
    from switchyard.services.engine.ledger import Ledger

DRAWING_INTERVAL = 0.5
"""Seconds between two drawings of the lanes."""


class DemoView:
    """Lines that stay; on a terminal, below them a table that is drawn again and again."""

    def __init__(self, system: System, ledger: Ledger, live: Live | None) -> None:
        self._system = system
        self._ledger = ledger
        self._live = live
        self._started = time.monotonic()
        self._drawn_at = float("-inf")

    def print_line(self, text: str) -> None:
        """Print a line that stays, with the seconds since the start."""
        line = f"[{time.monotonic() - self._started:3.0f} s] {text}"
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            echo(line)

    async def draw(self) -> None:
        """Draw the lanes, where there is a terminal."""
        if self._live is None or time.monotonic() - self._drawn_at < DRAWING_INTERVAL:
            return
        from switchyard.cli.engine.inspect.lanes import lanes_table
        from switchyard.services.engine.monitoring.lane_report import make_lane_report

        report = await make_lane_report(
            self._system.settings,
            self._system.registry,
            self._ledger,
            clock=self._ledger.clock.time,
        )
        self._live.update(lanes_table(report), refresh=True)
        self._drawn_at = time.monotonic()


@contextmanager
def demo_view(system: System, ledger: Ledger) -> Iterator[DemoView]:
    """Open a view on stdout, with the table if that is a terminal."""
    screen = console()
    if not screen.is_terminal:
        yield DemoView(system, ledger, None)
        return
    from rich.live import Live

    with Live(console=screen, auto_refresh=False, transient=True) as live:
        yield DemoView(system, ledger, live)

"""The processor time of a run: `make test ARGS=--costs` ends with the most expensive tests.

Tests that run side by side wait for each other, so the cost of a test is not its duration but the
processor time that its process and all processes started by it used meanwhile. The servers that the
whole run shares are listed apart.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import commands

COST = "processor_seconds"
MAX_LINES = 25
_TICKS = os.sysconf("SC_CLK_TCK")


def tasks_of(pid: int) -> list[str]:
    """Return the threads of a process; none once it has ended."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def descendants(pid: int) -> Iterator[int]:
    """Yield the running children of a process, their children, and so on."""
    for task in tasks_of(pid):
        try:
            started = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        except OSError:  # it has ended meanwhile
            continue
        for child in map(int, started):
            yield child
            yield from descendants(child)


def used_by(pid: int) -> float:
    """Return processor seconds of a process, and of those of its children that have ended."""
    try:
        fields_after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields_after_name[11:15])) / _TICKS


def used() -> float:
    """Return the processor seconds of this process, its descendants and the commands that it
    ran."""
    roots = [os.getpid()]
    if commands.cache_info().currsize:
        roots.append(commands().pid)
    return sum(used_by(pid) + sum(map(used_by, descendants(pid))) for pid in roots)


class Costs:
    """A plugin that records the cost of each test, and lists the highest at the end of a run."""

    def __init__(self) -> None:
        self._before = used()

    def pytest_forked(self) -> None:
        self._before = used()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = used()
        report.user_properties.append((COST, now - self._before))
        self._before = now
        return report

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        tests: defaultdict[str, float] = defaultdict(float)
        for reports in terminalreporter.stats.values():
            for report in reports:
                spent = dict(getattr(report, "user_properties", ())).get(COST, 0.0)
                tests[getattr(report, "nodeid", "")] += spent
        files: defaultdict[str, float] = defaultdict(float)
        for name, spent in tests.items():
            files[name.partition("::")[0]] += spent
        terminalreporter.section(f"processor time: {sum(tests.values()):.0f} s")
        for costs in (files, tests, servers()):
            for name in sorted(costs, key=costs.__getitem__, reverse=True)[:MAX_LINES]:
                terminalreporter.write_line(f"{costs[name]:8.2f} s  {name}")
            terminalreporter.write_line("")


def servers() -> dict[str, float]:
    """Return the processor seconds of the processes that this one has started, by the program's
    name."""
    seconds_by_program: defaultdict[str, float] = defaultdict(float)
    for pid in descendants(os.getpid()):
        try:
            program = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        seconds_by_program[program] += used_by(pid)
    return seconds_by_program

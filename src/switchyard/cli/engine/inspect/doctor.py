"""`jobctl doctor`: check the system, and print remedies."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from switchyard.cli.base.common import (
    IncludeOption,
    load_settings,
    quiet_logs,
    require_broker,
    run,
)
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.base.output import JsonOption, cell, console, echo, print_json

if TYPE_CHECKING:
    from switchyard.services.engine.monitoring.check import Diagnostic

MARKS = {"ok": "[green]✓[/]", "warning": "[yellow]![/]", "wrong": "[red]✗[/]"}


def doctor(include: IncludeOption = None, as_json: JsonOption = False) -> None:
    """Check broker, lanes, ledger, workers and this host, and print remedies.

    Exit code 1: there are errors. docs/doctor.md lists all findings.
    """
    from switchyard.services.engine.monitoring.doctor import diagnose

    quiet_logs("error")
    settings = load_settings()
    require_broker(settings)
    diagnostics: list[Diagnostic] = []

    async def check() -> None:
        async for each in diagnose(settings, include or (), on_demand=True):
            diagnostics.append(each)
            if not as_json:
                _print_diagnostic(each)

    run(check())
    if as_json:
        print_json([asdict(each) for each in diagnostics])
    wrong = [each for each in diagnostics if each.status == "wrong"]
    if wrong:
        names = ", ".join(each.name for each in wrong)
        raise CommandFailed(f"{len(wrong)} of {len(diagnostics)} checks failed: {names}")
    if as_json:
        return
    if warnings := [each.name for each in diagnostics if each.status == "warning"]:
        echo(f"Nothing is wrong; worth a look: {', '.join(warnings)}.")
    else:
        echo("Everything is as it must be.")


def _print_diagnostic(check: Diagnostic) -> None:
    screen = console()
    screen.print(f"{MARKS[check.status]} [bold]{check.name}[/]: {cell(check.detail)}")
    if check.remedy:
        screen.print(f"    → {cell(check.remedy)}")

"""What the document pipeline adds to the doctor's checks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from switchyard.services.engine.monitoring.check import Diagnostic, Finding, warning
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.doctor import DoctorStep
from switchyard.services.pipeline.classes.checking import classes
from switchyard.services.pipeline.index.checking import index

LONG_SOURCE_PAUSE = 120.0
"""Seconds left of a pause from which it is told of."""
_DOCUMENT_SERVERS = ("arxiv", "github", "huggingface")
_KEY_SETTINGS = {
    "openalex": "JOBS_OPENALEX_API_KEY",
    "github": "JOBS_GITHUB_TOKEN",
    "huggingface": "JOBS_HF_TOKEN",
}
"""Settings with which servers answer more requests."""


def doctor_steps() -> Iterable[DoctorStep]:
    """Return the checks of the index, of the classes' file and of servers that pause."""
    return [
        DoctorStep(lambda system: index(system.settings), on_demand=True),
        DoctorStep(lambda system: classes(system.settings), on_demand=True),
        DoctorStep(sources, ledger=True),
    ]


async def sources(system: DoctorContext) -> list[Diagnostic]:
    """Return a warning for each server of documents and catalogue that has asked to be left alone
    for long."""
    ledger = system.need_ledger()
    checks = []
    for name in (*system.settings.link_catalogues, *_DOCUMENT_SERVERS):
        left = await ledger.leases.source_pause(name)
        if left < LONG_SOURCE_PAUSE:
            continue
        until = datetime.fromtimestamp(ledger.clock.time() + left, UTC)
        is_catalogue = name in system.settings.link_catalogues
        key = f"; with {_KEY_SETTINGS[name]} it answers more" if name in _KEY_SETTINGS else ""
        checks.append(
            warning(
                "sources",
                Finding.SOURCE_PAUSED,
                f"{name} has asked to be left alone, and is until {until:%Y-%m-%d %H:%M:%S} UTC; "
                + (
                    "references are linked by the other catalogues meanwhile"
                    if is_catalogue
                    else "its jobs wait, and go on then"
                ),
                "nothing, if that may wait"
                + ("; then publish `link_citations` again" if is_catalogue else "")
                + key,
            )
        )
    return checks

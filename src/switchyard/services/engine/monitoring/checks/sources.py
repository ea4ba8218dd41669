"""Whether a server of documents or a catalogue has asked to be left alone for long."""

from __future__ import annotations

from datetime import UTC, datetime

from switchyard.services.engine.monitoring.check import Check, Finding, warning
from switchyard.services.engine.monitoring.checks.examined import Examined

LONG_PAUSE = 120.0
"""Seconds left of a pause from which it is told of."""
_DOCUMENTS = ("arxiv", "github", "huggingface")
_KEYS = {
    "openalex": "JOBS_OPENALEX_API_KEY",
    "github": "JOBS_GITHUB_TOKEN",
    "huggingface": "JOBS_HF_TOKEN",
}
"""Settings with which servers answer more requests."""


async def sources(system: Examined) -> list[Check]:
    """Those that pause, and until when; nothing where none does."""
    ledger = system.need_ledger()
    checks = []
    for name in (*system.settings.link_catalogues, *_DOCUMENTS):
        left = await ledger.source_pause(name)
        if left < LONG_PAUSE:
            continue
        until = datetime.fromtimestamp(ledger.clock.time() + left, UTC)
        is_catalogue = name in system.settings.link_catalogues
        key = f"; with {_KEYS[name]} it answers more" if name in _KEYS else ""
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

"""Text of an alert, and the formats in which it is sent."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal

from switchyard.services.engine.monitoring.check import Diagnostic
from switchyard.services.engine.records.bulk import BulkOperation

AlertFormat = Literal["json", "slack"]
MAX_DETAIL = 3_000
"""Characters: chat services refuse longer texts."""


@dataclass(frozen=True, slots=True)
class Alert:
    """An event to report: a finding that begins or ends, or an operation that ended."""

    key: str
    """Identifies the finding or operation; the same when it begins and when it ends."""
    status: Literal["firing", "resolved", "ended"]
    title: str
    detail: str
    remedy: str
    system: str
    """Name and id of the system."""
    at: float
    """Seconds since the epoch."""

    @property
    def text(self) -> str:
        """Return the text for people."""
        marks = {"firing": "🔴", "resolved": "🟢", "ended": "🔵"}
        lines = [f"{marks[self.status]} {self.system}: {self.title} ({self.status})", self.detail]
        if self.remedy and self.status != "resolved":
            lines.append(f"→ {self.remedy}")
        return "\n".join(line for line in lines if line)

    def body(self, alert_format: AlertFormat) -> bytes:
        """Return the body to send: for Slack, and services with its format, the text alone."""
        if alert_format == "slack":
            content: dict[str, object] = {"text": _escape_for_slack(self.text)}
        else:
            moment = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds")
            content = {**asdict(self), "at": moment, "text": self.text}
        return json.dumps(content, ensure_ascii=False).encode()


def _escape_for_slack(text: str) -> str:
    """Escape the three characters with a meaning in Slack: a payload in the text must not be able
    to notify everybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def finding_alert(check: Diagnostic, *, firing: bool, system: str, at: float) -> Alert:
    """Return the alert for a finding of the doctor that begins (`firing`) or has ended."""
    return Alert(
        key=str(check.finding),
        status="firing" if firing else "resolved",
        title=f"{check.name}: {check.finding}",
        detail=check.detail[:MAX_DETAIL],
        remedy=check.remedy,
        system=system,
        at=at,
    )


def operation_alert(operation: BulkOperation, *, system: str, at: float) -> Alert:
    """Return the alert for a bulk operation that has ended, or waits for an operator."""
    note = f": {operation.note}" if operation.note else ""
    command = "backfill" if operation.kind == "backfill" else "dead redrives"
    return Alert(
        key=operation_key(operation),
        status="ended",
        title=f"{operation.kind} {operation.state}",
        detail=f"{operation.title}{note}"[:MAX_DETAIL],
        remedy=f"`jobctl {command} show {operation.id}`",
        system=system,
        at=at,
    )


def operation_key(operation: BulkOperation) -> str:
    """Return the key of an operation's end: another one where it was resumed and ended
    otherwise."""
    return f"{operation.id}.{operation.state}"

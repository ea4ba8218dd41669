"""Diagnostics of the doctor, and all findings that it can report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Status = Literal["ok", "warning", "wrong"]
"""`warning`: to be looked at, but not urgent; `wrong`: a problem that needs somebody now."""


class Finding(StrEnum):
    """Findings of the doctor. docs/doctor.md has a line for each: its cause, and the remedy."""

    SETTING_UNKNOWN = "setting-unknown"
    MODULE_MISSING = "module-missing"
    BROKER_AWAY = "broker-away"
    BROKER_REFUSES = "broker-refuses"
    BROKER_LIMIT = "broker-limit"
    BROKER_TOO_OLD = "broker-too-old"
    PROFILE_WRONG = "profile-wrong"
    MANAGEMENT_AWAY = "management-away"
    MANAGEMENT_FORBIDS = "management-forbids"
    TOPOLOGY_MISSING = "topology-missing"
    TOPOLOGY_OTHER = "topology-other"
    """A queue has a type or arguments that can't be changed in place."""
    MIGRATION_UNFINISHED = "migration-unfinished"
    POLICY_OVERRIDDEN = "policy-overridden"
    TYPES_UNKNOWN = "types-unknown"
    """Jobs wait in a queue that belongs to no loaded job type."""
    LEFTOVER = "leftover"
    ALARM_MEMORY = "alarm-memory"
    ALARM_DISK = "alarm-disk"
    MEMORY_HIGH = "memory-high"
    BROKER_DISK_LOW = "broker-disk-low"
    NODE_DOWN = "node-down"
    CONSUMER_TIMEOUT = "consumer-timeout"
    FLAGS_DISABLED = "flags-disabled"
    DEPRECATED_USED = "deprecated-used"
    LEDGER_AWAY = "ledger-away"
    LEDGER_REFUSES = "ledger-refuses"
    LEDGER_CROWDED = "ledger-crowded"
    LEDGER_LOCKED = "ledger-locked"
    LEDGER_READ_ONLY = "ledger-read-only"
    LEDGER_TABLES = "ledger-tables"
    LEDGER_ADDRESS = "ledger-address"
    SYSTEM_OTHER = "system-other"
    """The broker belongs to another system, or the ledger is an old copy."""
    SYSTEM_UNKNOWN = "system-unknown"
    SYSTEM_UNMARKED = "system-unmarked"
    CLOCK_LEDGER = "clock-ledger"
    CLOCK_BROKER = "clock-broker"
    DISK_FULL = "disk-full"
    DISK_LOW = "disk-low"
    STORAGE_AWAY = "storage-away"
    QUOTA_FULL = "quota-full"
    QUOTA_NEAR = "quota-near"
    FILES_READABLE = "files-readable"
    KEY_WEAK = "key-weak"
    INDEX_AWAY = "index-away"
    INDEX_UNUSABLE = "index-unusable"
    INDEX_EMBEDDER = "index-embedder"
    INDEX_WORDS = "index-words"
    INDEX_VECTORS = "index-vectors"
    EMBEDDER_AWAY = "embedder-away"
    CLASSES_INVALID = "classes-invalid"
    """The file of JOBS_CLASSES is missing or invalid."""
    MODEL_SERVER_FAILS = "model-server-fails"
    MODEL_SERVER_PAUSED = "model-server-paused"
    BUDGET_SPENT = "budget-spent"
    SOURCE_PAUSED = "source-paused"
    PAUSED = "paused"
    RETENTION_BEHIND = "retention-behind"
    ARCHIVE_DAMAGED = "archive-damaged"
    ARCHIVE_LEFTOVER = "archive-leftover"
    LANE_FULL = "lane-full"
    LANE_FILLING = "lane-filling"
    QUEUE_UNWORKED = "queue-unworked"
    QUEUE_FROZEN = "queue-frozen"
    QUEUE_STALLED = "queue-stalled"
    JOBS_MISSING = "jobs-missing"
    SCHEDULER_NONE = "scheduler-none"
    SCHEDULE_OVERDUE = "schedule-overdue"
    SCHEDULE_REFUSED = "schedule-refused"
    WORKERS_NONE = "workers-none"
    WORKERS_SILENT = "workers-silent"
    WORKERS_KILLED = "workers-killed"
    LOOP_BLOCKED = "loop-blocked"
    CONSUMER_LOST = "consumer-lost"
    TYPES_LACKING = "types-lacking"
    """A worker gets jobs of a type that it does not know."""
    TYPES_UNWORKED = "types-unworked"
    """Jobs wait of a type that no living worker of its kind knows."""
    VERSIONS_LACKING = "versions-lacking"
    """A worker gets payloads of a newer version than it knows."""
    TYPE_TIMES_OUT = "type-times-out"
    JOB_OVERDUE = "job-overdue"
    CANCEL_UNHEEDED = "cancel-unheeded"
    JOIN_STUCK = "join-stuck"
    JOBS_PENDING = "jobs-pending"
    JOBS_REFUSED = "jobs-refused"
    DISPLACED = "displaced"
    """The broker dropped confirmed jobs, or had no queue for them."""
    OPERATION_STOPPED = "operation-stopped"
    DEAD_GROWING = "dead-growing"
    DEAD_UNLISTED = "dead-unlisted"
    DEAD_WAITING = "dead-waiting"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """Result of one check."""

    name: str
    status: Status
    detail: str
    remedy: str = ""
    """What the operator should do; empty where nothing."""
    finding: Finding | None = None
    """The problem that was found; None where there is none."""


def ok(name: str, detail: str) -> Diagnostic:
    """Return the result of a check that found no problem."""
    return Diagnostic(name, "ok", detail)


def warning(name: str, finding: Finding, detail: str, remedy: str) -> Diagnostic:
    """Return the result of a check with a problem that is not urgent."""
    return Diagnostic(name, "warning", detail, remedy, finding)


def failure(name: str, finding: Finding, detail: str, remedy: str) -> Diagnostic:
    """Return the result of a check with a problem that needs somebody now."""
    return Diagnostic(name, "wrong", detail, remedy, finding)


_STANDSTILLS = (
    Finding.BROKER_AWAY,
    Finding.BROKER_REFUSES,
    Finding.PROFILE_WRONG,
    Finding.TOPOLOGY_MISSING,
    Finding.ALARM_MEMORY,
    Finding.ALARM_DISK,
    Finding.LEDGER_AWAY,
    Finding.LEDGER_REFUSES,
    Finding.LEDGER_LOCKED,
    Finding.LEDGER_READ_ONLY,
    Finding.LEDGER_TABLES,
    Finding.SYSTEM_OTHER,
    Finding.DISK_FULL,
    Finding.STORAGE_AWAY,
    Finding.JOBS_MISSING,
)
"""Findings because of which nothing is accepted, nothing runs, or accepted jobs are in danger."""
_STOPPAGES = (
    Finding.LANE_FULL,
    Finding.QUEUE_UNWORKED,
    Finding.QUEUE_FROZEN,
    Finding.QUEUE_STALLED,
    Finding.WORKERS_NONE,
    Finding.SCHEDULER_NONE,
    Finding.CONSUMER_LOST,
    Finding.TYPES_LACKING,
    Finding.TYPES_UNWORKED,
    Finding.VERSIONS_LACKING,
    Finding.MODEL_SERVER_FAILS,
    Finding.MODEL_SERVER_PAUSED,
    Finding.EMBEDDER_AWAY,
    Finding.INDEX_AWAY,
    Finding.QUOTA_FULL,
    Finding.JOBS_PENDING,
    Finding.DEAD_GROWING,
)
"""Findings because of which jobs of a lane, worker kind or type stand still, or die one by one."""
_HOUSEKEEPING = (
    Finding.SETTING_UNKNOWN,
    Finding.MANAGEMENT_AWAY,
    Finding.MANAGEMENT_FORBIDS,
    Finding.TOPOLOGY_OTHER,
    Finding.TYPES_UNKNOWN,
    Finding.LEFTOVER,
    Finding.CONSUMER_TIMEOUT,
    Finding.FLAGS_DISABLED,
    Finding.DEPRECATED_USED,
    Finding.SYSTEM_UNKNOWN,
    Finding.SYSTEM_UNMARKED,
    Finding.CLOCK_LEDGER,
    Finding.CLOCK_BROKER,
    Finding.FILES_READABLE,
    Finding.KEY_WEAK,
    Finding.RETENTION_BEHIND,
    Finding.ARCHIVE_LEFTOVER,
)
"""Findings because of which no job fails or waits today."""
_RANKS = {  # all others: 2
    **dict.fromkeys(_STANDSTILLS, 0),
    **dict.fromkeys(_STOPPAGES, 1),
    **dict.fromkeys(_HOUSEKEEPING, 3),
}


def worst_first(
    diagnostics: Iterable[Diagnostic], new_at: Callable[[Diagnostic], float] = lambda _: 0.0
) -> list[Diagnostic]:
    """Return the diagnostics with a problem: failures, then warnings, each sorted by how much
    stands still because of it. Equals keep the order of the checks, in which causes come before
    effects. `new_at` returns when a new finding was found, and 0 for others: the latest come first,
    after those because of which nothing runs at all."""

    def rank(diagnostic: Diagnostic) -> tuple[bool, float, bool, int]:
        severity = 2 if diagnostic.finding is None else _RANKS.get(diagnostic.finding, 2)
        is_warning = diagnostic.status != "wrong"
        return is_warning or severity > 0, -new_at(diagnostic), is_warning, severity

    return sorted((each for each in diagnostics if each.status != "ok"), key=rank)


MAX_LISTED = 3
"""Items of a kind that a diagnostic names, at most."""


def first_few(texts: list[str]) -> str:
    """Join the first MAX_LISTED texts, and add how many more there are."""
    more = f"; and {len(texts) - MAX_LISTED} more" if len(texts) > MAX_LISTED else ""
    return "; ".join(texts[:MAX_LISTED]) + more


CERTIFICATE_REFUSED = "CERTIFICATE_VERIFY_FAILED"
"""Part of OpenSSL's message for a certificate that has expired, is another host's, or is signed by
an unknown authority."""


def certificate_remedy(error: Exception, setting: str) -> str | None:
    """Return the remedy where the certificate of the server in `setting` is the cause; else
    None."""
    if CERTIFICATE_REFUSED not in str(error):
        return None
    return (
        "renew the server's certificate where it has expired, and have the server load it; else "
        "see whether this host's clock is right (`date`), and the authority and the host in "
        f"{setting}: docs/deploy.md#tls"
    )

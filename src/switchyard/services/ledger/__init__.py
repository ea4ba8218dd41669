"""The ledger: the SQL record of every job, worker, dead letter and document."""

from switchyard.services.ledger.api_keys import ApiKeyRecord
from switchyard.services.ledger.bulk_jobs import BulkDeaths
from switchyard.services.ledger.bulk_operations import BulkOperation, BulkState
from switchyard.services.ledger.codec import to_message
from switchyard.services.ledger.dead_letters import DeadLetterState
from switchyard.services.ledger.errors import (
    IdempotencyConflict,
    LedgerError,
    LedgerUnavailable,
    RowRejected,
    SchemaOutdated,
)
from switchyard.services.ledger.ledger import Ledger
from switchyard.services.ledger.paging import InvalidCursor
from switchyard.services.ledger.redrives import RedriveOutcome
from switchyard.services.ledger.requests import (
    ClaimRequest,
    DeadLetterFilter,
    DeadLetterRecord,
    Edge,
    FinishRequest,
    JobFilter,
    LetterEdit,
    NewJob,
    RedrivenCopy,
)
from switchyard.services.ledger.results import (
    AlreadyFinished,
    AttemptRecord,
    Cancelled,
    CancelResult,
    Claimed,
    ClaimResult,
    Created,
    DeadGroup,
    DeadLetter,
    Document,
    EdgeRecord,
    Existing,
    Finished,
    HeldBy,
    JobRecord,
    JobSummary,
    NotFound,
    Page,
    Recorded,
    Running,
    Superseded,
    WorkerRecord,
)
from switchyard.services.ledger.states import AttemptOutcome, State
from switchyard.services.ledger.upgrade import upgrade

__all__ = [
    "AlreadyFinished",
    "ApiKeyRecord",
    "AttemptOutcome",
    "AttemptRecord",
    "BulkDeaths",
    "BulkOperation",
    "BulkState",
    "CancelResult",
    "Cancelled",
    "ClaimRequest",
    "ClaimResult",
    "Claimed",
    "Created",
    "DeadGroup",
    "DeadLetter",
    "DeadLetterFilter",
    "DeadLetterRecord",
    "DeadLetterState",
    "Document",
    "Edge",
    "EdgeRecord",
    "Existing",
    "FinishRequest",
    "Finished",
    "HeldBy",
    "IdempotencyConflict",
    "InvalidCursor",
    "JobFilter",
    "JobRecord",
    "JobSummary",
    "Ledger",
    "LedgerError",
    "LedgerUnavailable",
    "LetterEdit",
    "NewJob",
    "NotFound",
    "Page",
    "Recorded",
    "RedriveOutcome",
    "RedrivenCopy",
    "RowRejected",
    "Running",
    "SchemaOutdated",
    "State",
    "Superseded",
    "WorkerRecord",
    "to_message",
    "upgrade",
]

"""What a command says when it can't do what it was asked: one line, and an exit code.

0 done · 1 tried and failed · 2 the command line itself is wrong · 130 interrupted
"""

from __future__ import annotations

FAILED, USAGE, INTERRUPTED = 1, 2, 130


class CommandFailed(Exception):
    """The command was tried and failed. The text says what is wrong and what to do."""

    exit_code = FAILED


class WrongUsage(CommandFailed):
    """What was typed can't be right, whatever the state of broker and ledger."""

    exit_code = USAGE


def explain(error: BaseException) -> str | None:
    """The one line for an error that a user can do something about; None for a bug of ours.

    Called when a command has failed already, so what it imports costs nothing that matters.
    """
    if isinstance(error, CommandFailed):
        return one_line(str(error))
    from switchyard.broker.errors import BrokerError
    from switchyard.cli.system.node import LocalNodeError
    from switchyard.services.backfill.sources import InvalidBackfill, SourceAway
    from switchyard.services.bulk.control import BulkConflict, UnknownBulkOperation
    from switchyard.services.dead.changes import InvalidRedrive
    from switchyard.services.dead.edits import NothingToUndo
    from switchyard.services.jobs.registry import (
        InvalidPayload,
        RegistryError,
        UnknownJobType,
    )
    from switchyard.services.publishing.publisher import InvalidJob
    from switchyard.services.records import LedgerError
    from switchyard.services.runtime.worker import UnknownWorker

    expected = (
        BrokerError,
        BulkConflict,
        InvalidBackfill,
        InvalidJob,
        InvalidPayload,
        InvalidRedrive,
        LedgerError,
        LocalNodeError,
        NothingToUndo,
        RegistryError,
        SourceAway,
        UnknownBulkOperation,
        UnknownJobType,
        UnknownWorker,
    )
    if isinstance(error, LocalNodeError):
        return str(error)  # ends with the node's last words, which are lines of their own
    return one_line(str(error) or type(error).__name__) if isinstance(error, expected) else None


def one_line(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())

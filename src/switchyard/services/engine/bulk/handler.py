"""The protocol of what runs the bulk operations of one kind, and the errors that it may raise."""

from __future__ import annotations

from typing import Protocol

from switchyard.services.common.errors import PermanentFailure, TemporarilyUnavailable
from switchyard.services.engine.bulk.session import BulkSession


class BulkFailed(PermanentFailure):
    """Raised by a handler: the operation can't go on, and the text says why."""


class TryLater(TemporarilyUnavailable):
    """Raised by a handler: something that it needs is away for the moment."""


class BulkHandler(Protocol):
    """Runs the operations of one kind."""

    @property
    def kind(self) -> str: ...

    async def run(self, session: BulkSession) -> None:
        """Go on from the session's cursor until all is done; then call `session.finish`.

        May be cut off at any `await`: what was done since the last checkpoint is done again, and
        must do no harm then. Raises BulkFailed, TryLater, PublishError, LedgerError.
        """
        ...

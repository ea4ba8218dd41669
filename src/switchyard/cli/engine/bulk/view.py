"""Read and show operations of one kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from switchyard.cli.base.durations import age
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.base.output import cell, echo, print_json, say, styled

if TYPE_CHECKING:
    from rich.console import RenderableType

    from switchyard.api.models.base import ApiModel
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkOperation

T = TypeVar("T")
"""An operation with its progress."""


class BulkListing(ABC, Generic[T]):
    """Listing of one kind of operation."""

    empty_text: str
    """Text for an empty listing."""
    columns: Sequence[str]
    """Titles of the columns."""
    right: Sequence[str]
    """Titles of the columns with numbers."""

    @property
    @abstractmethod
    def kinds(self) -> tuple[str, ...]:
        """The kinds in the ledger."""

    @abstractmethod
    async def read(self, ledger: Ledger, operation: BulkOperation) -> T:
        """Read an operation's progress. Raises LedgerUnavailable."""

    @abstractmethod
    def to_model(self, operation: T) -> ApiModel:
        """Return an operation as `--json` prints it."""

    @abstractmethod
    def row(self, operation: T) -> Sequence[str]:
        """Return its line in a listing, in rich markup, one text for each column."""


class BulkDisplay(BulkListing[T]):
    """Display of one kind of operation, for the commands that all kinds share."""

    noun: str
    """Name of an operation of this kind, such as `backfill`."""
    command: str
    """Beginning of the commands of this kind, such as `jobctl backfill`."""

    @abstractmethod
    def report(self, operation: T) -> None:
        """Print all that is known of it."""

    @abstractmethod
    def one_line(self, operation: T) -> str:
        """Describe how far it is in one line, for a log file."""

    def picture(self, operation: T) -> RenderableType:
        """Draw the progress of an operation, for a live view."""
        return self.one_line(operation)

    @abstractmethod
    def is_over(self, operation: T) -> bool:
        """Tell whether an operation is over, so that there is nothing more to watch."""

    @abstractmethod
    def succeeded(self, operation: T) -> bool:
        """Tell whether an operation has done all that it was to do."""


class RecordDisplay(BulkDisplay["BulkOperation"]):
    """Display of a kind of operation whose record has all that is shown."""

    counted: str
    """Name of the count that shows the progress."""
    other_counts: Sequence[str]
    """Names of further counts, which are shown where they are not 0."""

    def participle(self, operation: BulkOperation) -> str:
        """Return the participle for what the main count counts, such as `sent`."""
        return self.counted

    def facts(self, operation: BulkOperation) -> list[tuple[str, str]]:
        """Return names and values of the facts that are shown first."""
        return [
            ("state", str(operation.state)),
            ("note", operation.note or ""),
            ("why", operation.reason or ""),
            ("started by", f"{operation.created_by}, {age(operation.created_at)} ago"),
            ("rate", f"{operation.rate:g}/s" if operation.rate else ""),
        ]

    def one_line(self, operation: BulkOperation) -> str:
        """Describe how far it is in one line, for a log file."""
        counts = operation.counts
        number = f"{counts.get(self.counted, 0):,}"
        parts = [f"{styled(operation.state)} {number} {self.participle(operation)}"]
        parts += [f"{counts[name]:,} {name}" for name in self.other_counts if counts.get(name)]
        if operation.note:
            parts.append(cell(operation.note))
        return " · ".join(parts)

    def is_over(self, operation: BulkOperation) -> bool:
        from switchyard.services.engine.records.bulk import ACTIVE

        return operation.state not in ACTIVE

    def succeeded(self, operation: BulkOperation) -> bool:
        from switchyard.services.engine.records.bulk import BulkState

        return operation.state is BulkState.COMPLETED

    def report_start(self, operation: BulkOperation, *, as_json: bool) -> None:
        """Print how to follow an operation that a scheduler runs."""
        if as_json:
            print_json(self.to_model(operation))
            return
        say(f"watch it with `{self.command} watch {operation.id}`; a scheduler runs it")
        echo(operation.id)

    def require_success(self, operation: BulkOperation) -> None:
        """Raise CommandFailed, with how to go on, for an operation that has not done all that it
        was to do."""
        if not self.succeeded(operation):
            raise CommandFailed(
                f"{operation.id} is {operation.state}: {operation.note or 'by somebody'}; go on "
                f"with `{self.command} resume {operation.id}`"
            )

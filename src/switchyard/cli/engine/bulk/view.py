"""How operations of one kind are read and shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from rich.console import RenderableType

    from switchyard.api.models.base import ApiModel
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkOperation

T = TypeVar("T")
"""An operation with how far it is."""


class BulkListing(ABC, Generic[T]):
    """One kind of operation, as a listing shows it."""

    none: str
    """What is said where there is none."""
    columns: Sequence[str]
    """Of its listing."""
    right: Sequence[str]
    """Those that are numbers."""

    @property
    @abstractmethod
    def kinds(self) -> tuple[str, ...]:
        """The kinds in the ledger."""

    @abstractmethod
    async def read(self, ledger: Ledger, operation: BulkOperation) -> T:
        """Read how far an operation is. Raises LedgerUnavailable."""

    @abstractmethod
    def public(self, operation: T) -> ApiModel:
        """Return an operation as `--json` prints it."""

    @abstractmethod
    def row(self, operation: T) -> Sequence[str]:
        """Return its line in a listing, in rich markup, one text for each column."""


class BulkDisplay(BulkListing[T]):
    """One kind of operation, as the commands that all kinds have see it."""

    noun: str
    """What one is called, such as `backfill`."""
    command: str
    """What its commands begin with, such as `jobctl backfill`."""

    @abstractmethod
    def report(self, operation: T) -> None:
        """Print all that is known of it."""

    @abstractmethod
    def one_line(self, operation: T) -> str:
        """Describe how far it is in one line, for a log file."""

    def picture(self, operation: T) -> RenderableType:
        """Draw how far it is, for a live view."""
        return self.one_line(operation)

    @abstractmethod
    def is_over(self, operation: T) -> bool:
        """Tell whether there is nothing more to watch."""

    @abstractmethod
    def succeeded(self, operation: T) -> bool:
        """Tell whether it has done all that it was asked to."""

"""Backfills from servers that list their items in pages; and the errors of a backfill's source."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar

from switchyard.services.common.errors import PermanentError, RetryableError
from switchyard.services.engine.backfill.sources import (
    Cursor,
    Item,
    Source,
    SourceContext,
    SourceFailed,
    SourceUnreachable,
    Unusable,
)
from switchyard.services.pipeline.sources.source_client import SourceClient, SourceServer
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse


class PagedSource(Source):
    """Base of the sources that go through the pages of a server's list. The cursor is a page and a
    place in it."""

    first_page: ClassVar[Any] = None

    @property
    @abstractmethod
    def server(self) -> SourceServer:
        """Return the server that has the list."""

    @abstractmethod
    def pages(self, client: SourceClient, page: Any) -> AsyncIterator[tuple[Any, object]]:
        """Yield this page and all later ones, each with its entries as the server gives them.
        Raises what `SourceClient.get` raises."""

    @abstractmethod
    def item_of(self, entry: Any, cursor: Cursor) -> Item | Unusable:
        """Return the item of an entry. Raises ValueError, KeyError, TypeError or AttributeError for
        an entry without a name."""

    async def items(self, cursor: Cursor | None) -> AsyncIterator[Item | Unusable]:
        first_page, entries_done = (
            (cursor["page"], cursor["done"]) if cursor else (self.first_page, 0)
        )
        async with backfill_client(self.server, self.context) as client:
            async for page, entries in self.pages(client, first_page):
                if not isinstance(entries, list):
                    raise InvalidSourceResponse(
                        f"{self.server.label} returned something other than a list"
                    )
                for number, entry in enumerate(entries[entries_done:], start=entries_done + 1):
                    position = {"page": page, "done": number}
                    try:
                        item = self.item_of(entry, position)
                    except (ValueError, KeyError, TypeError, AttributeError):
                        item = Unusable(
                            f"page {page}, {number}", "an entry without a name", position
                        )
                    yield item
                entries_done = 0


@contextmanager
def backfill_errors() -> Iterator[None]:
    """Raise errors as those of a backfill's source: SourceUnreachable for a request that can be
    repeated later, SourceFailed for any other."""
    try:
        yield
    except PermanentError as error:
        raise SourceFailed(str(error)) from error
    except RetryableError as error:
        raise SourceUnreachable(str(error)) from error


@asynccontextmanager
async def backfill_client(
    server: SourceServer, context: SourceContext
) -> AsyncIterator[SourceClient]:
    """Open a client for a backfill's source, with its errors (`backfill_errors`)."""
    with backfill_errors():
        async with SourceClient.connect(
            server, context.settings, context.ledger, max_wait=context.max_wait
        ) as client:
            yield client

"""Models and data sets of the Hugging Face hub as a source: of a search, or of an author."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from switchyard.broker import patterns
from switchyard.services.engine.backfill.sources import Cursor, Item
from switchyard.services.pipeline.records.strict_model import StrictModel
from switchyard.services.pipeline.sources.huggingface import Kind, hub_name, hub_server
from switchyard.services.pipeline.sources.paged_backfill import PagedSource
from switchyard.services.pipeline.sources.source_client import SourceClient, SourceServer
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse

PAGE_SIZE = 100
_NEXT_LINK = re.compile(r'<([^>]{1,4000})>\s*;\s*rel="next"')


class HuggingfaceOptions(StrictModel):
    """Options of the source `huggingface`: `search`, `author`, or both."""

    search: str | None = Field(default=None, min_length=1, max_length=200)
    author: str | None = Field(default=None, pattern=patterns.HUB_AUTHOR)
    kind: Kind = "model"

    @model_validator(mode="after")
    def _check_search_or_author(self) -> Self:
        if self.search is None and self.author is None:
            raise ValueError("give search or author: the whole hub has millions of models")
        return self


class HuggingfaceBackfill(PagedSource):
    """Models or data sets by creation, oldest first. The cursor's page is an address, as the
    hub's pages have no numbers."""

    name: ClassVar[str] = "huggingface"
    Options = HuggingfaceOptions
    options: HuggingfaceOptions
    job_type: ClassVar[str | None] = "ingest_huggingface"

    @property
    def server(self) -> SourceServer:
        return hub_server(self.context.settings)

    async def pages(
        self, client: SourceClient, page: str | None
    ) -> AsyncIterator[tuple[str | None, object]]:
        options = self.options.model_dump(include={"search", "author"}, exclude_none=True)
        params = {"limit": str(PAGE_SIZE), "sort": "createdAt", "direction": "1", **options}
        while True:
            try:
                response = await client.get(
                    page or f"/api/{self.options.kind}s", None if page else params
                )
            except ValueError as error:
                raise InvalidSourceResponse(
                    "Hugging Face's next page is on another server"
                ) from error
            entries = response.json()
            yield page, entries
            next_link = _NEXT_LINK.search(response.headers.get("link", ""))
            if next_link is None or not entries:
                return
            if next_link[1] == page:
                raise InvalidSourceResponse("Hugging Face names a page as its own next page")
            page = next_link[1]

    def item_of(self, entry: Any, cursor: Cursor) -> Item:
        kind, name = self.options.kind, hub_name(entry["id"])
        return Item(f"{kind}/{name}", {"id": name, "kind": kind}, cursor)

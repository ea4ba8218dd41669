"""Models and data sets of the Hugging Face hub as a source: of a search, or of an author."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from switchyard.broker import patterns
from switchyard.services.engine.backfill.sources import Cursor, Item, Source, Unusable
from switchyard.services.pipeline.sources.huggingface import Kind, hub_name, hub_server
from switchyard.services.pipeline.sources.source_client import backfill_client
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse

PAGE_SIZE = 100
_NEXT = re.compile(r'<([^>]{1,4000})>\s*;\s*rel="next"')


class HuggingfaceOptions(BaseModel):
    """Options of the source `huggingface`: `search`, `author`, or both."""

    model_config = ConfigDict(extra="forbid")

    search: str | None = Field(default=None, min_length=1, max_length=200)
    author: str | None = Field(default=None, pattern=patterns.HUB_AUTHOR)
    kind: Kind = "model"

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.search is None and self.author is None:
            raise ValueError("give search or author: the whole hub has millions of models")
        return self


class HuggingfaceBackfill(Source):
    """Models or data sets by creation, oldest first. The cursor is the address of a page and a
    place in it: the hub's pages have no numbers."""

    name: ClassVar[str] = "huggingface"
    Options = HuggingfaceOptions
    options: HuggingfaceOptions
    job_type: ClassVar[str | None] = "ingest_huggingface"

    async def items(self, cursor: Cursor | None) -> AsyncIterator[Item | Unusable]:
        place, done = (cursor["page"], cursor["done"]) if cursor else (None, 0)
        kind = self.options.kind
        params = {"limit": str(PAGE_SIZE), "sort": "createdAt", "direction": "1"}
        params |= {
            name: value
            for name in ("search", "author")
            if (value := getattr(self.options, name)) is not None
        }
        async with backfill_client(hub_server(self.context.settings), self.context) as client:
            while True:
                try:
                    answer = await client.get(place or f"/api/{kind}s", None if place else params)
                except ValueError as error:
                    raise InvalidSourceResponse(
                        "Hugging Face names a next page elsewhere"
                    ) from error
                listed = answer.json()
                if not isinstance(listed, list):
                    raise InvalidSourceResponse(
                        f"Hugging Face returned something other than a list of {kind}s"
                    )
                for number, each in enumerate(listed[done:], start=done + 1):
                    at = {"page": place, "done": number}
                    try:
                        name = hub_name(each["id"])
                    except (ValueError, KeyError, TypeError, AttributeError):
                        yield Unusable(f"{place}, {number}", f"a {kind} without name", at)
                        continue
                    yield Item(f"{kind}/{name}", {"id": name, "kind": kind}, at)
                following = _NEXT.search(answer.headers.get("link", ""))
                if following is None or not listed:
                    return
                place, done = following[1], 0

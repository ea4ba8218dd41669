"""The documents that are stored already, as a source for reindexing and new stages."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from switchyard.broker import patterns
from switchyard.broker.message import Moment
from switchyard.services.engine.backfill.sources import Cursor, Item, Source, Unusable
from switchyard.services.engine.records.requests import DocumentFilter
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.documents import checked_class

PAGE_SIZE = 500


class DocumentOptions(BaseModel):
    """Options of the source `documents`, which gives the documents that fit all of them."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    state: str | None = Field(default=None, pattern=patterns.WORD)
    """queued, extracting, …, completed or failed."""
    source: str | None = Field(default=None, max_length=2000, pattern=patterns.NO_NUL)
    """The beginning of their source, such as `arxiv:`."""
    label: Annotated[str | None, BeforeValidator(checked_class)] = Field(
        default=None, alias="class", pattern=patterns.CLASS
    )
    """Their class, such as `privacy:public`."""
    media_type: str | None = Field(default=None, max_length=200, pattern=patterns.NO_NUL)
    since: Moment | None = None
    """Documents that were taken in at this time or later."""
    until: Moment | None = None
    """Documents that were taken in before this time. A day stands for its beginning, in UTC."""

    @field_validator("since", "until", mode="before")
    @classmethod
    def _start_of(cls, value: Any) -> Any:
        is_day = isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value)
        return f"{value}T00:00:00Z" if is_day else value


class StoredDocuments(Source):
    """Documents of the ledger, oldest first: those that were there when the backfill began."""

    name: ClassVar[str] = "documents"
    shows_records = True
    Options = DocumentOptions
    options: DocumentOptions

    @property
    def _filter(self) -> DocumentFilter:
        since, until = self.options.since, self.options.until
        began = self.context.started_at
        return DocumentFilter(
            state=self.options.state,
            source_prefix=self.options.source,
            classes=(self.options.label,) if self.options.label else (),
            media_type=self.options.media_type,
            since=since.timestamp() if since else None,
            until=min(until.timestamp(), began) if until else began,
        )

    async def total(self) -> int | None:
        return await PipelineLedger(self.context.ledger).documents.count_documents(self._filter)

    async def items(self, cursor: Cursor | None) -> AsyncIterator[Item | Unusable]:
        last_position = (cursor["created_at"], cursor["id"]) if cursor else None
        while True:
            page = await PipelineLedger(self.context.ledger).documents.documents_after(
                self._filter, last_position, PAGE_SIZE
            )
            for each in page:
                last_position = (each.created_at, each.id)
                values = {
                    "document_id": each.id,
                    "source": each.source,
                    "filename": each.filename,
                    "title": each.title,
                    "media_type": each.media_type,
                }
                yield Item(each.id, values, {"created_at": each.created_at, "id": each.id})
            if len(page) < PAGE_SIZE:
                return

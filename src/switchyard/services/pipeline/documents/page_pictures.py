"""Draw pictures of pages when they are looked at.

The file is a stranger's: a process of its own opens it, within the limits of ingest, one page at a
time. The last pictures are kept in memory, and so are the errors of pages that can't be drawn.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from switchyard.services.common.errors import NotFoundError, PermanentError, TemporarilyUnavailable
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.context import ProcessCrashed
from switchyard.services.engine.runtime.execution import Executor
from switchyard.services.pipeline.text.figures import (
    FIGURES_VERSION,
    MEDIA_TYPES,
    MEMORY_MB,
    Picture,
    page_picture,
)
from switchyard.services.pipeline.text.ocr import SourceFile
from switchyard.services.pipeline.workers.stage_outputs import DocumentFiles, MissingOutput
from switchyard.services.pipeline.workers.stages import INGEST

PAGE_TIMEOUT = 20.0
"""Time limit for drawing a page, in seconds; a page usually takes some tenths, and
`pdf_pages.Limits` allows 10 s of processor time."""
MAX_WAITING_PAGES = 8
"""Pages that wait at most while another one is drawn."""
MAX_KEPT_BYTES = 16 * 1024 * 1024
MAX_KEPT_PAGES = 500
"""Pages that are kept at most; a page that can't be drawn counts, but has no bytes."""


class NoPagePicture(NotFoundError):
    """The page can't be drawn; the text says why."""


class TooManyPictures(TemporarilyUnavailable):
    """Too many other pages wait to be drawn."""


@dataclass(frozen=True, slots=True)
class StoredPage:
    """A page of a stored file."""

    original: SourceFile
    number: int
    """From 1."""
    etag: str
    """Differs for another content, page or version of drawing: 64 hexadecimal digits."""


class PagePictures:
    """Draws pages of documents, one at a time."""

    def __init__(self, settings: Settings, executor: Executor) -> None:
        self._settings = settings
        self._executor = executor
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._kept: OrderedDict[str, Picture | NoPagePicture] = OrderedDict()
        self._kept_bytes = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings) -> AsyncIterator[PagePictures]:
        """Draw pages until the end of the block."""
        executor = Executor(1)
        try:
            yield cls(settings, executor)
        finally:
            await executor.close()

    async def find(self, document_id: str, number: int) -> StoredPage:
        """Return the file and number of a page. Raises NoPagePicture, StorageUnavailable."""
        files = DocumentFiles(Storage(self._settings.files_url), document_id)
        try:
            stored = await files.output_of_async(INGEST)
        except MissingOutput as error:
            raise NoPagePicture(f"there is no file of document {document_id} here") from error
        original = files.source_file(stored.result, stored.content, self._settings)
        etag_parts = [document_id, stored.content, number, original.extractor, FIGURES_VERSION]
        return StoredPage(original, number, content_hash(etag_parts))

    async def draw(self, page: StoredPage) -> tuple[bytes, str]:
        """Return the picture of a page, and its media type, which is one of our own encodings.

        Raises NoPagePicture, TooManyPictures where MAX_WAITING_PAGES pages wait already, and what
        reading the file raises (StorageUnavailable).
        """
        if page.etag not in self._kept:
            if self._waiting > MAX_WAITING_PAGES:
                raise TooManyPictures(f"{self._waiting} pages wait to be drawn: try again later")
            self._waiting += 1
            try:
                async with self._turn:
                    if page.etag not in self._kept:  # it may have been drawn meanwhile
                        self._keep(page.etag, await self._draw_in_process(page))
            finally:
                self._waiting -= 1
        self._kept.move_to_end(page.etag)
        picture = self._kept[page.etag]
        if isinstance(picture, NoPagePicture):
            raise NoPagePicture(
                str(picture)
            )  # anew: raising the kept error would lengthen its traceback
        return picture.content, MEDIA_TYPES[picture.suffix]

    async def _draw_in_process(self, page: StoredPage) -> Picture | NoPagePicture:
        try:
            picture: Picture = await self._executor.in_process(
                page_picture,
                page.original,
                page.number,
                timeout=PAGE_TIMEOUT,
                memory_limit_mb=MEMORY_MB,
            )
        except TimeoutError:
            return NoPagePicture(f"page {page.number:,} takes more than {PAGE_TIMEOUT:g} s to draw")
        except (PermanentError, MemoryError, ProcessCrashed) as error:
            return NoPagePicture(f"page {page.number:,} can't be drawn: {error}"[:500])
        return picture

    def _keep(self, etag: str, picture: Picture | NoPagePicture) -> None:
        """Keep a new picture, and drop the oldest ones that exceed the limits."""
        self._kept[etag] = picture
        self._kept_bytes += _size(picture)
        while len(self._kept) > 1 and (
            self._kept_bytes > MAX_KEPT_BYTES or len(self._kept) > MAX_KEPT_PAGES
        ):
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= _size(oldest)


def _size(picture: Picture | NoPagePicture) -> int:
    return 0 if isinstance(picture, NoPagePicture) else len(picture.content)

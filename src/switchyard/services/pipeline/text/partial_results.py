"""Keep drafts of a long document, one for each range of pages: a process that takes over from one
that died goes on behind the last draft.

Drafts are kept in the storage, as each is larger than a job's checkpoint may be, and so that a
redrive or another worker finds them as well. They are by-products: the storage's cleanup removes
those that no job needs (`services/common/files/storage_cleanup.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from switchyard.services.common.files.errors import NotStored
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import content_hash, page_key
from switchyard.services.pipeline.text.layout import Line
from switchyard.services.pipeline.text.markdown import PageLines

PAGES_PER_DRAFT = 100
"""Pages of one draft; a document with no more pages is read as a whole, in about a second."""
DRAFTS_VERSION = 7
"""Version of the drafts' form and of how lines are read: drafts of another version are not used."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The result of reading PAGES_PER_DRAFT pages, or fewer at a document's end."""

    pages: Sequence[PageLines | str]
    """The lines of each page; for a page that can't be read, the reason."""
    repaired: bool
    """Whether damage of the file had been repaired by then."""


class Drafts:
    """The drafts of one document, as one stage reads it."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        stage: str,
        input_hash: str,
        *,
        min_pages: int = PAGES_PER_DRAFT + 1,
    ) -> None:
        """Keep the drafts below `folder`, such as the document's id. Drafts of another input hash
        are not used. Pages of a document with fewer than `min_pages` pages are not kept."""
        self.min_pages = min_pages
        self._storage = storage
        self._folder = folder
        self._stage = stage
        self._hash = content_hash([input_hash, DRAFTS_VERSION, PAGES_PER_DRAFT])
        self._keys: list[str] = []
        self.reused_pages = 0
        """Pages that did not have to be read again."""

    def get(self, first: int, last: int) -> Draft | None:
        """Return these pages, from 1; None where they have to be read."""
        try:
            stored = json.loads(self._storage.get(self._key(first)))
            if stored["input_hash"] != self._hash or len(stored["pages"]) != last - first + 1:
                return None
            draft = Draft([_page(page) for page in stored["pages"]], bool(stored["repaired"]))
        except NotStored:
            return None
        except (ValueError, KeyError, TypeError):  # changed by hand: the pages are read again
            return None
        self._keys.append(self._key(first))
        self.reused_pages += len(draft.pages)
        return draft

    def put(self, first: int, draft: Draft) -> None:
        """Keep the draft of the pages that begin at `first`. Raises what the storage raises."""
        stored = {
            "input_hash": self._hash,
            "repaired": draft.repaired,
            "pages": [_as_json(page) for page in draft.pages],
        }
        encoded = json.dumps(stored, ensure_ascii=False, separators=(",", ":")).encode()
        self._storage.put(self._key(first), encoded)
        self._keys.append(self._key(first))

    def delete(self) -> None:
        """Remove the drafts, as the whole document is stored now."""
        while self._keys:
            self._storage.delete(self._keys.pop())

    def _key(self, first: int) -> str:
        return page_key(self._folder, self._stage, first)


def _as_json(page: PageLines | str) -> Any:
    if isinstance(page, str):
        return page
    return {
        "size": [page.width, page.height],
        "pictures": page.picture_share,
        "lines": [astuple(line) for line in page.lines],
    }


def _page(stored: Any) -> PageLines | str:
    if isinstance(stored, str):
        return stored
    width, height = stored["size"]
    lines = [Line(*line) for line in stored["lines"]]
    return PageLines(width, height, lines, float(stored["pictures"]))

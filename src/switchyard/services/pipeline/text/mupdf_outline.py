"""The outline of a PDF, read with PyMuPDF's low functions, step by step.

MuPDF's own reading calls itself for each level and each branch of a tree of names: a hundred
thousand levels, which fit into a megabyte, overflow its stack, or take minutes.
"""

from __future__ import annotations

from typing import Any

from switchyard.services.pipeline.text.markdown import Heading

MAX_HEADINGS = 5_000
_MAX_LEVELS = 32
"""Deeper levels are not read."""
_MAX_NODES = 100_000
"""Most nodes of a tree of names that are read, and about as many names."""


def read_outline(library: Any, document: Any) -> list[Heading]:
    """Return the entries in their order, at most MAX_HEADINGS; of a damaged outline, the entries
    before the damage, as the text can be read nevertheless."""
    headings: list[Heading] = []
    try:
        reader = _Reader(library.mupdf, document)
        reader.read(headings)
    except (RuntimeError, ValueError, LookupError, library.mupdf.FzErrorBase):
        pass
    return headings


class _Reader:
    """Reads the outline of one document. MuPDF's objects, `Any` here, say whether they exist."""

    def __init__(self, low: Any, document: Any) -> None:
        self._low = low
        self._document = document
        self._root = low.pdf_dict_gets(low.pdf_trailer(low.PdfDocument(document.this)), "Root")
        self._pages: dict[int, int] | None = None
        self._names: dict[bytes, Any] | None = None

    def read(self, headings: list[Heading]) -> None:
        """Append the outline's entries to `headings` one by one, so that they survive an error."""
        get = self._low.pdf_dict_gets
        to_visit = [(get(get(self._root, "Outlines"), "First"), 1)]
        seen: set[int] = set()
        while to_visit and len(headings) < MAX_HEADINGS:
            entry, level = to_visit.pop()
            number = self._low.pdf_to_num(entry)
            if number in seen or not self._low.pdf_is_dict(entry):
                continue
            if number:
                seen.add(number)
            title = self._low.pdf_dict_get_text_string(entry, self._low.pdf_new_name("Title"))
            headings.append(Heading(level, title, self._page_of(entry)))
            to_visit.append((get(entry, "Next"), level))
            if level < _MAX_LEVELS:
                to_visit.append((get(entry, "First"), level + 1))

    def _page_of(self, entry: Any) -> int:
        """Return the page that an entry leads to, from 1; 0 where it leads to none of this
        document."""
        low = self._low
        target = low.pdf_dict_gets(entry, "Dest")
        if not target.m_internal:
            action = low.pdf_dict_gets(entry, "A")
            if low.pdf_to_name(low.pdf_dict_gets(action, "S")) != "GoTo":
                return 0
            target = low.pdf_dict_gets(action, "D")
        if low.pdf_is_string(target) or low.pdf_is_name(target):
            target = self._named_target(target)
        if low.pdf_is_dict(target):
            target = low.pdf_dict_gets(target, "D")
        page = low.pdf_array_get(target, 0)
        if low.pdf_is_int(page):
            return max(int(low.pdf_to_int(page)), -1) + 1
        return self._page_of_xref(low.pdf_to_num(page))

    def _page_of_xref(self, xref: int) -> int:
        if self._pages is None:
            count = self._document.page_count
            self._pages = {
                self._document.page_xref(index): index + 1 for index in reversed(range(count))
            }
        return self._pages.get(xref, 0)

    def _named_target(self, name: Any) -> Any:
        """Return the target of that name; a null object of the PDF where there is none."""
        low = self._low
        if low.pdf_is_name(name):
            return low.pdf_dict_get(low.pdf_dict_gets(self._root, "Dests"), name)
        if self._names is None:
            self._names = self._all_names()
        return self._names.get(_bytes(low, name), low.PdfObj())

    def _all_names(self) -> dict[bytes, Any]:
        low = self._low
        all_names: dict[bytes, Any] = {}
        to_visit = [low.pdf_dict_gets(low.pdf_dict_gets(self._root, "Names"), "Dests")]
        seen: set[int] = set()
        for _ in range(_MAX_NODES):
            if not to_visit or len(all_names) >= _MAX_NODES:
                break
            node = to_visit.pop()
            number = low.pdf_to_num(node)
            if number in seen:
                continue
            if number:  # without a number, it is part of its parent
                seen.add(number)
            names, kids = low.pdf_dict_gets(node, "Names"), low.pdf_dict_gets(node, "Kids")
            for index in range(0, min(low.pdf_array_len(names), 2 * _MAX_NODES) - 1, 2):
                key = _bytes(low, low.pdf_array_get(names, index))
                all_names.setdefault(key, low.pdf_array_get(names, index + 1))
            room_left = _MAX_NODES - len(to_visit)
            to_visit.extend(
                low.pdf_array_get(kids, index)
                for index in range(min(low.pdf_array_len(kids), room_left))
            )
        return all_names


def _bytes(low: Any, text: Any) -> bytes:
    return bytes(low.pdf_to_string(text)[0].encode("utf-8", "surrogateescape"))

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

    def __init__(self, bindings: Any, document: Any) -> None:
        self._bindings = bindings
        self._document = document
        self._root = bindings.pdf_dict_gets(
            bindings.pdf_trailer(bindings.PdfDocument(document.this)), "Root"
        )
        self._pages: dict[int, int] | None = None
        self._names: dict[bytes, Any] | None = None

    def read(self, headings: list[Heading]) -> None:
        """Append the outline's entries to `headings` one by one, so that they survive an error."""
        get = self._bindings.pdf_dict_gets
        to_visit = [(get(get(self._root, "Outlines"), "First"), 1)]
        visited: set[int] = set()
        while to_visit and len(headings) < MAX_HEADINGS:
            entry, level = to_visit.pop()
            number = self._bindings.pdf_to_num(entry)
            if number in visited or not self._bindings.pdf_is_dict(entry):
                continue
            if number:
                visited.add(number)
            title = self._bindings.pdf_dict_get_text_string(
                entry, self._bindings.pdf_new_name("Title")
            )
            headings.append(Heading(level, title, self._page_of(entry)))
            to_visit.append((get(entry, "Next"), level))
            if level < _MAX_LEVELS:
                to_visit.append((get(entry, "First"), level + 1))

    def _page_of(self, entry: Any) -> int:
        """Return the page that an entry leads to, from 1; 0 where it leads to none of this
        document."""
        bindings = self._bindings
        target = bindings.pdf_dict_gets(entry, "Dest")
        if not target.m_internal:
            action = bindings.pdf_dict_gets(entry, "A")
            if bindings.pdf_to_name(bindings.pdf_dict_gets(action, "S")) != "GoTo":
                return 0
            target = bindings.pdf_dict_gets(action, "D")
        if bindings.pdf_is_string(target) or bindings.pdf_is_name(target):
            target = self._named_target(target)
        if bindings.pdf_is_dict(target):
            target = bindings.pdf_dict_gets(target, "D")
        page = bindings.pdf_array_get(target, 0)
        if bindings.pdf_is_int(page):
            return max(int(bindings.pdf_to_int(page)), -1) + 1
        return self._page_of_xref(bindings.pdf_to_num(page))

    def _page_of_xref(self, xref: int) -> int:
        if self._pages is None:
            count = self._document.page_count
            self._pages = {
                self._document.page_xref(index): index + 1 for index in reversed(range(count))
            }
        return self._pages.get(xref, 0)

    def _named_target(self, name: Any) -> Any:
        """Return the target of that name; a null object of the PDF where there is none."""
        bindings = self._bindings
        if bindings.pdf_is_name(name):
            return bindings.pdf_dict_get(bindings.pdf_dict_gets(self._root, "Dests"), name)
        if self._names is None:
            self._names = self._all_names()
        return self._names.get(_bytes(bindings, name), bindings.PdfObj())

    def _all_names(self) -> dict[bytes, Any]:
        bindings = self._bindings
        all_names: dict[bytes, Any] = {}
        to_visit = [bindings.pdf_dict_gets(bindings.pdf_dict_gets(self._root, "Names"), "Dests")]
        visited: set[int] = set()
        for _ in range(_MAX_NODES):
            if not to_visit or len(all_names) >= _MAX_NODES:
                break
            node = to_visit.pop()
            number = bindings.pdf_to_num(node)
            if number in visited:
                continue
            if number:  # without a number, it is part of its parent
                visited.add(number)
            name_array, child_array = (
                bindings.pdf_dict_gets(node, "Names"),
                bindings.pdf_dict_gets(node, "Kids"),
            )
            for index in range(0, min(bindings.pdf_array_len(name_array), 2 * _MAX_NODES) - 1, 2):
                key = _bytes(bindings, bindings.pdf_array_get(name_array, index))
                all_names.setdefault(key, bindings.pdf_array_get(name_array, index + 1))
            nodes_left = _MAX_NODES - len(to_visit)
            to_visit.extend(
                bindings.pdf_array_get(child_array, index)
                for index in range(min(bindings.pdf_array_len(child_array), nodes_left))
            )
        return all_names


def _bytes(bindings: Any, text: Any) -> bytes:
    return bytes(bindings.pdf_to_string(text)[0].encode("utf-8", "surrogateescape"))

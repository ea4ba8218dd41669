"""Read the text of an XFA form: a form in XML within a PDF, whose pages only say "Please wait".

Only Adobe's own programs draw such forms, which ISO 32000-2 no longer contains. What the form says
(its template) and what was entered (its data) is in XML all the same, and is read from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from xml.parsers import expat

from switchyard.services.common.files.errors import CorruptDocument, UnsupportedDocument
from switchyard.services.pipeline.text.plain_text import clean, has_words

MAX_PACKET_BYTES = 32 * 1024 * 1024
"""Largest part that is read, in bytes."""
_MAX_DEPTH = 200
_TEXT_ELEMENTS = frozenset(("text", "exData"))
"""Elements with the text of drawings and of the captions of fields."""
_SHOWN_ELEMENTS = frozenset(("draw", "caption"))
"""Elements whose text is shown, unless they are within _SILENT_ELEMENTS."""
_SILENT_ELEMENTS = frozenset(("extras", "items", "assist", "event", "desc"))
_HIDDEN_PRESENCES = frozenset(("hidden", "inactive", "invisible"))
"""Values of the attribute `presence` of an element that is not shown."""


def text_of_form(packets: Mapping[str, bytes]) -> str:
    """Return the text of a form (from its part `template`) and the values that were entered into it
    (from `datasets`), in Markdown. Raises UnsupportedDocument where neither can be read."""
    texts = list(_read(packets.get("template", b""), _Template()))
    entered_values = list(_read(packets.get("datasets", b""), _Data()))
    text = "\n\n".join(texts + entered_values)
    if not has_words(text):
        raise UnsupportedDocument(
            "the PDF is an XFA form, which only Adobe's programs show: print it to a PDF there, "
            "and send that"
        )
    return text


class _Reader:
    """Follows the elements of a part, and collects paragraphs."""

    def __init__(self) -> None:
        self.path: list[str] = []
        self.texts: list[str] = []
        self._text: list[str] = []
        self._hidden_from: int | None = None
        """Length of the path of the outermost element that is not shown."""

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if len(self.path) >= _MAX_DEPTH:
            raise CorruptDocument("its elements are nested too deep")
        self.path.append(name.rpartition(":")[2])
        if self._hidden_from is None and attributes.get("presence") in _HIDDEN_PRESENCES:
            self._hidden_from = len(self.path)
        self.handle_start()

    def end(self, _: str) -> None:
        self.handle_end()
        if self._hidden_from == len(self.path):
            self._hidden_from = None
        self.path.pop()

    def data(self, text: str) -> None:
        if self._hidden_from is None:
            self._text.append(text)

    def handle_start(self) -> None:
        """Handle the start of an element; called by `start`."""

    def handle_end(self) -> None:
        """Handle the end of an element; called by `end`."""

    def take_text(self) -> str:
        """Return the text since the last call, as one line."""
        text = " ".join(clean("".join(self._text)).split())
        self._text.clear()
        return text


class _Template(_Reader):
    def handle_start(self) -> None:
        if self.path[-1] in _TEXT_ELEMENTS:
            self.take_text()

    def handle_end(self) -> None:
        if self.path[-1] == "p":
            self.data(" ")
        is_shown = not _SHOWN_ELEMENTS.isdisjoint(self.path)
        is_silent = not _SILENT_ELEMENTS.isdisjoint(self.path)
        if self.path[-1] in _TEXT_ELEMENTS and is_shown and not is_silent:
            text = self.take_text()
            if text:
                self.texts.append(text)


class _Data(_Reader):
    def handle_start(self) -> None:
        self.take_text()

    def handle_end(self) -> None:
        text = self.take_text()
        if text and "data" in self.path[:-1]:
            self.texts.append(f"{self.path[-1]}: {text}")


def _read(content: bytes, reader: _Reader) -> Iterator[str]:
    """Yield the paragraphs of a part; of a damaged one, those before the damage."""
    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.data
    parser.StartDoctypeDeclHandler = (
        _refuse_doctype  # its entities could make the text grow without end
    )
    with suppress(expat.ExpatError, CorruptDocument):
        parser.Parse(content[:MAX_PACKET_BYTES], True)
    yield from reader.texts


def _refuse_doctype(*_: object) -> None:
    raise CorruptDocument("it declares a document type")

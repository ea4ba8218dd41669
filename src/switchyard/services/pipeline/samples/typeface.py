"""The fonts of a sample: measure words and wrap lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

from switchyard.services.common.extras import naming_extra
from switchyard.services.pipeline.samples.phrases import TextGenerator

_HYPHENATED = frozenset({"en", "de", "fr", "es"})
_VOWELS = frozenset("aeiouyäöüéèáíóú")
_SCRIPTS = {"ru": "CYRILLIC", "zh": "HAN"}


@dataclass(frozen=True, slots=True)
class Face:
    """A font: its name on the page, its measures, and its file if the PDF must contain it."""

    name: str
    measures: Any
    file: bytes | None = None


@dataclass(frozen=True, slots=True)
class Typeface:
    """The body's and the bold font of one document."""

    prose: TextGenerator
    faces: tuple[Face, Face]
    """The body's font and the bold one."""
    _lengths: dict[tuple[str, bool], float] = field(default_factory=dict)
    """Cache of the lengths of words, per point of their size, as measuring is slow."""

    @classmethod
    def choose(cls, random: Random, prose: TextGenerator) -> Self:
        """Choose fonts with or without serifs by chance; those of the script where these do not
        have it."""
        library = pymupdf()
        script = _SCRIPTS.get(prose.language)
        if script is not None:
            font = library.Font(script=getattr(library.mupdf, f"UCDN_SCRIPT_{script}"))
            face = Face(f"F{prose.language}", font, font.buffer)
            return cls(prose, (face, face))
        body, bold = ("tiro", "tibo") if random.random() < 0.5 else ("helv", "hebo")
        return cls(prose, (Face(body, library.Font(body)), Face(bold, library.Font(bold))))

    def face(self, bold: bool) -> Face:
        return self.faces[bold]

    def join_lines(self, lines: Sequence[str]) -> str:
        """Return the text that was wrapped into these lines."""
        if not self.prose.is_spaced:
            return "".join(lines)
        text = ""
        for line in lines:
            text = text[:-1] + line if text.endswith("\u00ad") else f"{text} {line}".lstrip()
        return text.replace("\u00ad", "-")

    def wrap(self, text: str, width: float, size: float, *, bold: bool = False) -> list[str]:
        """Wrap a text into lines that fit. A line that ends within a word ends with a soft
        hyphen."""
        if not self.prose.is_spaced:
            return self._wrap_by_letters(text, width, size, bold)
        lines, line, width_left = [], "", width
        space = self.length(" ", size, bold)
        for word in text.split():
            length = self.length(word, size, bold)
            if not line or space + length <= width_left:
                line = f"{line} {word}" if line else word
                width_left -= space + length if width_left < width else length
                continue
            break_index = self._break_point(word, width_left - space, size, bold)
            if break_index:
                line, word = f"{line} {word[:break_index]}\u00ad", word[break_index:]
            lines.append(line)
            line, width_left = word, width - self.length(word, size, bold)
        return [*lines, line]

    def _wrap_by_letters(self, text: str, width: float, size: float, bold: bool) -> list[str]:
        lines, line, width_left = [], "", width
        for letter in text:
            length = self.length(letter, size, bold)
            # A line does not begin with a mark.
            if length > width_left and letter not in "，。、：）":
                lines.append(line)
                line, width_left = "", width
            line += letter
            width_left -= length
        return [*lines, line]

    def _break_point(self, word: str, width_left: float, size: float, bold: bool) -> int:
        """Return after how many letters a long word can be broken; 0 for none."""
        if self.prose.language not in _HYPHENATED or len(word) < 9 or not word[:-1].isalpha():
            return 0
        for break_index in range(len(word) - 4, 3, -1):
            is_break = word[break_index - 1] in _VOWELS and word[break_index] not in _VOWELS
            if is_break and self.length(f"{word[:break_index]}-", size, bold) <= width_left:
                return break_index
        return 0

    def length(self, text: str, size: float, bold: bool) -> float:
        """Measure a text in one line, in points."""
        length = self._lengths.get((text, bold))
        if length is None:
            length = self._lengths[text, bold] = float(
                self.face(bold).measures.text_length(text, 1)
            )
        return length * size


def pymupdf() -> Any:
    """Import PyMuPDF, which draws the samples. Raises ExtraNotInstalled."""
    with naming_extra():
        import pymupdf as library
    return library

"""Works that references are linked to, and the links. Both are stored as JSON."""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

from switchyard.services.pipeline.citations.reference import Person, Reference


@dataclass(frozen=True)
class CitedWork:
    """A work as a catalogue knows it; a field that the catalogue does not have is empty."""

    id: str
    """`doi:10.1145/359545.359563`, else `arxiv:1706.03762`, else `openalex:W…`, else
    `wikidata:Q…`: the first of these that the work has, so that it has the same id in all
    catalogues."""
    title: str = ""
    authors: Sequence[Person] = ()
    year: int | None = None
    container: str = ""
    doi: str = ""
    arxiv_id: str = ""
    openalex: str = ""
    wikidata: str = ""

    @classmethod
    def from_fields(cls, **fields: Any) -> Self:
        """Make a work, with an id made of its identifiers. Raises ValueError if it has no
        identifier."""
        for scheme, name in _SCHEMES:
            if fields.get(name):
                return cls(id=f"{scheme}:{fields[name]}", **fields)
        raise ValueError("a work needs a DOI, an arXiv id, or a catalogue's id")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `as_json` returned."""
        authors = tuple(Person(**each) for each in values.get("authors", ()))
        # Earlier versions stored catalogues' answers with their markup.
        texts = {
            name: without_markup(values[name]) for name in ("title", "container") if name in values
        }
        return cls(**{**values, **texts, "authors": authors})

    def as_json(self) -> dict[str, Any]:
        """Return the fields that are not empty, as plain values."""
        values = {name: value for name, value in asdict(self).items() if value}
        return values | ({"authors": list(values["authors"])} if "authors" in values else {})


_SCHEMES = (
    ("doi", "doi"),
    ("arxiv", "arxiv_id"),
    ("openalex", "openalex"),
    ("wikidata", "wikidata"),
)


_MAX_TITLE = 20_000
"""Longest title with its markup, in characters; formulae in a title may have some thousands."""
_TAG = re.compile(r"<(/?)(\w{1,10}:)?([A-Za-z][\w-]{0,30})(?:\s[^<>]*|/)?(?:>|\Z)")
_TYPE_FACES = frozenset([
    "i", "b", "u", "em", "strong", "italic", "bold", "sc", "scp", "tt", "span", "roman",
    "underline",
])  # fmt: skip
_BREAKS = frozenset(["br", "p", "div", "title", "sec", "list-item"])
_SOURCES = frozenset(["annotation", "annotation-xml", "tex-math"])
"""Elements that repeat a formula in the form of its source."""
_MARKUP = _TYPE_FACES | _BREAKS | _SOURCES | frozenset([
    "sub", "sup", "inf", "font", "small", "a", "xref", "ext-link", "math", "mrow", "mi", "mn",
    "mo", "ms", "mtext", "mspace", "msub", "msup", "msubsup", "mfrac", "msqrt", "mroot", "mover",
    "munder", "munderover", "mstyle", "mfenced", "mpadded", "mphantom", "menclose", "mtable",
    "mtr", "mtd", "mmultiscripts", "mprescripts", "none", "semantics", "inline-formula",
    "disp-formula", "alternatives", "named-content", "styled-content", "inline-graphic",
])  # fmt: skip
_MIN_WORD_LETTERS = 4
"""Fewest letters of a stretch in another type face that is a word of its own."""


def without_markup(text: str) -> str:
    """Return a catalogue's title or name without markup, in linear time.

    HTML, JATS and MathML are removed, and HTML entities, also doubly escaped ones, resolved;
    formulae lose the spaces between their elements. Text that only looks like a tag (`p < 0.05`)
    stays.
    """
    text = text[:_MAX_TITLE]
    if "<" not in text and "&" not in text:
        return " ".join(text.split())
    text = html.unescape(html.unescape(text))
    kept_parts: list[str] = []
    skipped_parts: list[str] = []  # put back if the element is never closed
    position, source_element, is_formula = 0, "", False
    for tag in _TAG.finditer(text):
        is_closing, prefix, name = bool(tag[1]), tag[2], tag[3].lower()
        if name not in _MARKUP and not prefix:
            continue
        piece, position = text[position : tag.start()], tag.end()
        (skipped_parts if source_element else kept_parts).append(
            piece.strip() if is_formula else piece
        )
        if name in _SOURCES:
            if is_closing:
                skipped_parts.clear()
            source_element = "" if is_closing else name
        elif name == "math":
            is_formula = not is_closing
        elif name in _BREAKS or (
            name in _TYPE_FACES
            and _separates_words(
                piece, text[position : position + _MIN_WORD_LETTERS], is_closing=is_closing
            )
        ):
            kept_parts.append(" ")
    return " ".join("".join([*kept_parts, *skipped_parts, text[position:]]).split())


def _separates_words(before: str, after: str, *, is_closing: bool) -> bool:
    """Return whether a type face begins or ends between two words that a catalogue has run
    together."""
    word, neighbour = (
        (before[-_MIN_WORD_LETTERS:], after[:1]) if is_closing else (after, before[-1:])
    )
    return len(word) == _MIN_WORD_LETTERS and word.isalpha() and neighbour.isalnum()


class LinkStatus(StrEnum):
    """The result of linking a reference."""

    LINKED = "linked"
    AMBIGUOUS = "ambiguous"
    """Several works fit about as well: see the candidates."""
    NOT_FOUND = "not_found"


@dataclass(frozen=True)
class Candidate:
    """A work that a reference may mean, and how well it fits: 0 to 1."""

    score: float
    work: CitedWork

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `as_json` returned."""
        return cls(values["score"], CitedWork.from_json(values["work"]))

    def as_json(self) -> dict[str, Any]:
        """Return the candidate as plain values."""
        return {"score": self.score, "work": self.work.as_json()}


@dataclass(frozen=True)
class WorkLink:
    """The result of linking one reference, with its work if one was found."""

    status: LinkStatus
    by: str = ""
    """The method that found the work: `doi`, `arxiv` or `search`."""
    provider: str = ""
    """The catalogue that has the work: `openalex`, `crossref` or `wikidata`."""
    score: float = 0.0
    work: CitedWork | None = None
    """Only if `status` is LINKED."""
    candidates: Sequence[Candidate] = ()
    """Only if `status` is AMBIGUOUS, the best first."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `as_json` returned."""
        work = values.get("work")
        return cls(
            LinkStatus(values["status"]),
            values.get("by", ""),
            values.get("provider", ""),
            values.get("score", 0.0),
            None if work is None else CitedWork.from_json(work),
            tuple(Candidate.from_json(each) for each in values.get("candidates", ())),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the fields that are not empty, as plain values."""
        values: dict[str, Any] = {"status": self.status.value}
        if self.by:
            values |= {"by": self.by, "provider": self.provider, "score": self.score}
        if self.work is not None:
            values["work"] = self.work.as_json()
        if self.candidates:
            values["candidates"] = [each.as_json() for each in self.candidates]
        return values


def with_work(reference: Reference, work: CitedWork) -> Reference:
    """Add to a reference those identifiers of its work that it lacks."""
    return replace(
        reference,
        doi=reference.doi or work.doi,
        arxiv_id=reference.arxiv_id or work.arxiv_id,
    )

"""Find a paper's lists of references, split them into references, and find where the text cites
them."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from switchyard.services.pipeline.citations.reference import Reference
from switchyard.services.pipeline.citations.superscript_citations import (
    is_numbered,
    sentences_with_markers,
)
from switchyard.services.pipeline.citations.tokens import MAX_REFERENCE_CHARS
from switchyard.services.pipeline.text.plain_text import sentences
from switchyard.services.pipeline.text.superscripts import SIGNS, lowered

MAX_REFERENCES = 5_000
"""More references than any book has; further ones are left out."""
MAX_CITATIONS = 20_000
_MAX_LINES = 400_000
"""Lines of a paper that are read."""
_MAX_HEADING_LENGTH = 120

_LIST_HEADINGS = (
    "references|references and notes|references cited|list of references|notes and references|"
    "bibliography|works cited|literature|literature cited|cited literature|reference list|"
    "literatur|literaturverzeichnis|quellen|quellenverzeichnis|bibliographie|"
    "références|références bibliographiques|referencias|referencias bibliográficas|bibliografía|"
    "riferimenti|riferimenti bibliografici|bibliografia|referências|referências bibliográficas|"
    "literatuur|litteratur|referenser|список литературы|литература|参考文献"
)
_HEADING_NUMBER = r"(?:#{1,6} )?\*{0,2}(?:(?:\d\d?|[A-Z]|[IVX]{1,5})(?:\.\d\d?){0,3}[.):]? +)?"
_HEADING = re.compile(rf"{_HEADING_NUMBER}(?:{_LIST_HEADINGS})\*{{0,2}}[ .:]{{0,3}}", re.IGNORECASE)
# The list's heading and its first entry in one line, which a whole block of a PDF may be.
_HEADING_AND_ENTRY = re.compile(
    rf"({_HEADING_NUMBER}(?:{_LIST_HEADINGS})[.:]?) (?=\[[^\]]{{1,16}}\] |1[.)] )", re.IGNORECASE
)
_FOLLOWING_HEADINGS = (
    r"(?:appendi(?:x|ces)|anhang|annexe?s?|apéndice|supplement\w*|supporting information)\b.{0,80}|"
    r"acknowledge?ments?|danksagung|remerciements|agradecimientos|about the authors?|"
    r"(?:author (?:contributions|biograph)|conflicts? of interest).{0,40}|"
    r"figure captions|list of (?:figures|tables)|index|"
    r"(?:chapter|kapitel|chapitre|capítulo|capitolo) (?:\d{1,3}|[IVXL]{1,6}|[a-z]{3,9})\b.{0,80}"
)
_LIST_END = re.compile(
    rf"{_HEADING_NUMBER}(?:{_FOLLOWING_HEADINGS})\*{{0,2}}[ .:]{{0,3}}", re.IGNORECASE
)
_BRACKET = re.compile(r"\[([0-9]{1,4}[a-z]?|[A-Za-z+*]{1,12}[0-9]{2,4}[a-z]?)\] {0,4}")
_NUMBER = re.compile(r"\(?([0-9]{1,4})[.):]? {1,4}(?=\S)|([0-9]{1,4})\. ?(?=[^\W\d_])")
_STARTS_LIKE_AUTHORS = re.compile(
    r"(?:[^\W\d_][\w’'`-]+(?: [^\W\d_][\w’'`-]+){0,3}, ?[^\W\d_])"  # Smith, J.   van der Pol, B.
    r"|(?:(?:[^\W\d_]\.[ -]?){1,4} ?(?:\w{2,4} ){0,2}[^\W\d_][\w’'-]+)"  # J. A. Smith
    r"|(?:[^\W\d_][\w’'-]+ [^\W\d_]{1,3}[,.:])"  # Smith JA,
    r"|(?:[^\W\d_][\w’'-]+(?: [^\W\d_]\.)? [^\W\d_][\w’'-]+(?:,| and | & |\. ))"  # John Smith,
    r"|(?:—{2,}|_{3,}|-{3,})"  # the same author once more
)
# Where an entry may begin within a line: before a number, or before a name with initials.
_ENTRY_START = re.compile(
    r" (?=\[[0-9]{1,4}\] |[0-9]{1,3}\. [^\W\d_a-z])"
    r"|(?<=[.)\]\d]) (?=[^\W\d_a-z][\w’'-]+, [^\W\d_a-z]\.)"
)
_RAISED_LABEL = re.compile(rf"(?:^|(?<=[.)\]\d]) )([{SIGNS}]{{1,4}})[.):]? ?(?=[^\W\d_])")
_YEAR = re.compile(r"(?<!\d)(?:1[5-9]|20)\d\d(?!\d)")
_LINE_ENDS = (".", ")", "]", "”", '"', "»", "/")


@dataclass(frozen=True)
class RawReference:
    """A reference as it is in the paper, with its label there and its page (from 1)."""

    text: str
    label: str
    page: int


@dataclass(frozen=True)
class Citation:
    """A place in the text that cites references: the marker, the sentence around it, and the
    references.

    `references` are indices in the list of references, from 0.
    """

    marker: str
    sentence: str
    page: int
    references: tuple[int, ...]


@dataclass(frozen=True)
class _Line:
    text: str
    page: int


@dataclass(frozen=True)
class SplitPaper:
    """A paper's references, and the text of each page without the lists of them."""

    references: list[RawReference]
    body: list[str]


def split_references(pages: Sequence[str]) -> SplitPaper:
    """Find and split the lists of references in the text of a paper's pages.

    A list has a heading of its own, in any of a dozen languages, or entries that are numbered from
    [1] at the end of the paper. There may be several, one at the end of each chapter.
    """
    lines = _split_lines(pages)
    references: list[RawReference] = []
    list_lines: set[int] = set()  # indices
    for section in _find_sections(lines):
        entries = _split_entries(lines[section.start : section.stop])
        references += entries
        if entries:
            list_lines.update(section)
    body: list[list[str]] = [[] for _ in pages]
    for index, line in enumerate(lines):
        if index not in list_lines:
            body[line.page - 1].append(line.text)
    return SplitPaper(references[:MAX_REFERENCES], ["\n".join(page) for page in body])


def _split_lines(pages: Sequence[str]) -> list[_Line]:
    lines = (
        _Line(part.strip(), page_number)
        for page_number, page in enumerate(pages, start=1)
        for line in page.splitlines()
        for part in _HEADING_AND_ENTRY.sub(r"\1\n", line.strip(), count=1).split("\n")
    )
    return list(itertools.islice((line for line in lines if line.text), _MAX_LINES))


def _find_sections(lines: Sequence[_Line]) -> Iterator[range]:
    start: int | None = None
    headings = 0
    for index, line in enumerate(lines):
        if len(line.text) > _MAX_HEADING_LENGTH:
            continue
        if _HEADING.fullmatch(line.text):
            if start is not None:
                yield range(start, index)
            start, headings = index + 1, headings + 1
        elif start is not None and _LIST_END.fullmatch(line.text):
            yield range(start, index)
            start = None
    if start is not None:
        yield range(start, len(lines))
    if not headings:
        yield _numbered_end(lines)


def _numbered_end(lines: Sequence[_Line]) -> range:
    """Return the lines from the last one that begins with [1], if [2] and [3] follow it in
    order."""
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].text.startswith("[1]"):
            labels = [
                match.group(1) for line in lines[index:] if (match := _BRACKET.match(line.text))
            ]
            return range(index, len(lines) if labels[:3] == ["1", "2", "3"] else index)
    return range(0)


def _split_entries(section: Sequence[_Line]) -> list[RawReference]:
    """Split a list into its entries. A line may hold several, as a block of a PDF is one line."""
    lines = [
        _Line(part, line.page)
        for line in section
        for part in _ENTRY_START.split(_RAISED_LABEL.sub(_lower_label, line.text))
    ]
    starts = _bracketed_starts(lines) or _numbered_starts(lines) or _author_starts(lines)
    entries: list[RawReference] = []
    for entry, (index, label, label_length) in enumerate(starts):
        end = starts[entry + 1][0] if entry + 1 < len(starts) else len(lines)
        first, *others = [line.text for line in lines[index:end]]
        text = "\n".join([first[label_length:], *others])[:MAX_REFERENCE_CHARS].strip()
        if _is_reference(text):
            entries.append(RawReference(text, label, lines[index].page))
    return entries


def _is_reference(text: str) -> bool:
    """Return whether a text can be a reference. A text without a digit, or with only one or two
    words, is a page's header or similar."""
    return len(text) >= 12 and any(char.isdigit() for char in text)


def _lower_label(match: re.Match[str]) -> str:
    return f"{lowered(match[1])} "


# Where a reference begins: its line's index, its label, and the label's length in that line.
_EntryStart = tuple[int, str, int]


def _bracketed_starts(lines: Sequence[_Line]) -> list[_EntryStart]:
    starts = [
        (index, match.group(1), match.end())
        for index, line in enumerate(lines)
        if (match := _BRACKET.match(line.text))
    ]
    return starts if starts and starts[0][0] <= 2 and len(starts) >= 2 else []


def _numbered_starts(lines: Sequence[_Line]) -> list[_EntryStart]:
    """Find the lines that begin with the next expected number; a volume or page at a line's start
    is another number."""
    starts: list[_EntryStart] = []
    expected = 0
    for index, line in enumerate(lines):
        match = _NUMBER.match(line.text)
        number = int(match.group(1) or match.group(2)) if match else -1
        if match and (number == expected or (not starts and index <= 2)):
            starts.append((index, str(number), match.end()))
            expected = number + 1
    return starts if len(starts) >= 2 else []


def _author_starts(lines: Sequence[_Line]) -> list[_EntryStart]:
    """Find the lines that begin as references do, each after a line that ends as references do."""
    starts: list[_EntryStart] = []
    has_year = False
    for index, line in enumerate(lines):
        before = lines[index - 1].text
        is_line_before_complete = index == 0 or before.endswith(_LINE_ENDS) or before[-1:].isdigit()
        if (
            _STARTS_LIKE_AUTHORS.match(line.text)
            and is_line_before_complete
            and (has_year or not starts)
        ):
            starts.append((index, "", 0))
            has_year = False
        has_year = has_year or bool(_YEAR.search(line.text))
    return starts


_NUMERIC_MARKER = re.compile(r"\[(\d{1,4}(?:\s?[,;–-]\s?\d{1,4}){0,30})\]")
_AUTHOR_MARKER = re.compile(r"\(([^()\n]{3,300}?(?:1[5-9]|20)\d\d[a-z]?(?:[,;][^()\n]{0,200})?)\)")
_NARRATIVE_CITATION = re.compile(
    r"\b([^\W\d_][\w’'-]{1,40})(?: et al\.?,?| (?:and|&|und|et|y) [^\W\d_][\w’'-]{1,40})?"
    r" \(((?:1[5-9]|20)\d\d)[a-z]?\)"
)
_SINGLE_CITATION = re.compile(r"([A-ZÀ-ÖØ-ÞĀ-Ž][\w’'-]{1,40})\D{0,120}?((?:1[5-9]|20)\d\d)[a-z]?")


def find_citations(
    body: Sequence[str], raw: Sequence[RawReference], parsed: Sequence[Reference]
) -> list[Citation]:
    """Find where a paper's text cites its references: [12], [3, 5–7], (Smith, 2020), Smith (2020),
    and raised numbers where it has none in brackets (`superscript_citations` has the rule).

    `body` is the text of each page without the lists of references. Returns at most MAX_CITATIONS.
    """
    labels = {reference.label: index for index, reference in enumerate(raw) if reference.label}
    by_author = _group_by_author_and_year(parsed)
    citations: Iterator[Citation] = (
        Citation(marker, sentence, page_number, cited)
        for page_number, page in enumerate(body, start=1)
        for sentence in sentences(" ".join(page.split()))
        for marker, cited in _cited_references(sentence, labels, by_author)
    )
    if is_numbered(list(labels)) and not cites_by_number(body):
        citations = itertools.chain(citations, _raised_citations(body, labels))
    return list(itertools.islice(citations, MAX_CITATIONS))


def _raised_citations(body: Sequence[str], labels: Mapping[str, int]) -> Iterator[Citation]:
    for page_number, page in enumerate(body, start=1):
        for sentence, markers in sentences_with_markers(page):
            for marker in markers:
                cited = [labels.get(label) for label in _expand_marker(lowered(marker))]
                listed = tuple(index for index in cited if index is not None)
                if len(listed) == len(cited):
                    yield Citation(marker, sentence, page_number, listed)


def cites_by_number(body: Sequence[str]) -> bool:
    """Return whether a text has markers such as [12]."""
    return any(_NUMERIC_MARKER.search(page) for page in body)


def _group_by_author_and_year(
    parsed: Sequence[Reference],
) -> Mapping[tuple[str, int], tuple[int, ...]]:
    """Return the references' indices by first author and year. A marker without a letter means all
    references of that author and year."""
    by_author: dict[tuple[str, int], tuple[int, ...]] = {}
    for index, reference in enumerate(parsed):
        if reference.authors and reference.year:
            key = (reference.authors[0].family.split()[-1].casefold(), reference.year)
            by_author[key] = (*by_author.get(key, ()), index)
    return by_author


def _cited_references(
    sentence: str, labels: Mapping[str, int], by_author: Mapping[tuple[str, int], tuple[int, ...]]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    for match in _NUMERIC_MARKER.finditer(sentence):
        cited = tuple(labels[label] for label in _expand_marker(match.group(1)) if label in labels)
        if cited:
            yield match.group(), cited
    for match in _AUTHOR_MARKER.finditer(sentence):
        names_and_years = _SINGLE_CITATION.findall(match.group(1))
        cited = tuple(
            index
            for name, year in names_and_years
            for index in _find_by_name(by_author, name, year)
        )
        if cited:
            yield match.group(), cited
    for match in _NARRATIVE_CITATION.finditer(sentence):
        cited = _find_by_name(by_author, match.group(1), match.group(2))
        if cited:
            yield match.group(), cited


def _find_by_name(
    by_author: Mapping[tuple[str, int], tuple[int, ...]], name: str, year: str
) -> tuple[int, ...]:
    return by_author.get((name.casefold(), int(year)), ())


def _expand_marker(marker: str) -> Iterator[str]:
    """Yield the labels that a marker stands for: 3, 5, 6, 7 for "3, 5–7". An implausibly long range
    counts as two numbers."""
    for part in re.split(r"[,;]", marker):
        first, *last = re.split(r"[–-]", part)
        low, high = int(first), int(last[-1]) if last else int(first)
        yield from map(str, range(low, high + 1) if 0 <= high - low <= 50 else (low, high))

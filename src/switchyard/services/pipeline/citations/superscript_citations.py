"""Find citations by raised numbers, and tell them from exponents, footnotes and the marks of
authors' addresses.

The rule is strict: it misses citations rather than accepting wrong ones. A raised number is a
citation if

- the list of references is numbered, the text has no markers in brackets, and every number of the
  marker is in the list,
- it follows a word of three letters or more, a punctuation mark, or a bracket around words; not a
  digit, a symbol, a unit behind a number, or the name of a function; and no letter follows it,
- its paragraph is prose: it has three words in lower case, which lines of authors lack,
- nothing on the page begins with the same number, as a footnote would. Numbers that are also in a
  line of authors are exempt: the line that begins with one is an author's address.
"""

import re
from collections.abc import Iterator, Sequence

from switchyard.services.pipeline.text.plain_text import sentences
from switchyard.services.pipeline.text.superscripts import SIGNS, lowered

_RAISED_NUMBER = rf"[{SIGNS}]{{1,4}}"
_NUMBERS = rf"{_RAISED_NUMBER}(?:\s?[,;–⁻]\s?{_RAISED_NUMBER}){{0,30}}"
_MARKER = re.compile(rf"(?<=.)(?<![\s\d{SIGNS}⁻⁺]){_NUMBERS}(?![\w⁺⁻⁼])")
_FOOTNOTE_START = re.compile(rf"(?:^|(?<=\s))({_RAISED_NUMBER})[ .)]?\s?[^\W\d_]")
_SENTENCE_END = re.compile(rf"(?<=[.!?])([”\"’)]?{_NUMBERS}) +(?=[“\"(‘]?[^\W\d_a-z])")
_WORD = re.compile(r"[^\W\d_]+(?:[-’'][^\W\d_]+)*$")
_UNIT = re.compile(r"\d[\s\u2009\u202f]?[^\W\d_]{1,4}$")
_BRACKETED_WORDS = re.compile(r"[(\[][^()\[\]]*[^\W\d_]{3}[^()\[\]]*[)\]]$")
_LOWER_CASE_WORD = re.compile(r"(?<![\w’'])[^\W\d_A-ZÀ-Þ]{3,}(?!\w)")
_FUNCTIONS = frozenset(
    ("sin", "cos", "tan", "cot", "log", "exp", "det", "max", "min", "sinh", "cosh")
)
_SENTENCE_SIGNS = '.,;:!?”"’»'
_MAX_CONTEXT = 60
"""Characters before a raised number that are looked at."""


def sentences_with_markers(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the sentences of a page's text (a paragraph to a line) with the markers in each."""
    paragraphs = [line.strip() for line in page.splitlines() if line.strip()]
    footnotes = {lowered(mark) for each in paragraphs for mark in _FOOTNOTE_START.findall(each)}
    for each in paragraphs:
        if not _is_prose(each):
            footnotes -= {number for mark in _MARKER.findall(each) for number in _digits(mark)}
    for paragraph in filter(_is_prose, paragraphs):
        for part in _SENTENCE_END.sub("\\1\n", paragraph).split("\n"):
            for sentence in sentences(part):
                yield (
                    sentence,
                    [mark for mark in _markers(sentence) if footnotes.isdisjoint(_digits(mark))],
                )


def _markers(sentence: str) -> Iterator[str]:
    for match in _MARKER.finditer(sentence):
        before = sentence[max(0, match.start() - _MAX_CONTEXT) : match.start()]
        if _may_precede_citation(before):
            yield match.group()


def _may_precede_citation(before: str) -> bool:
    """Return whether the text before a raised number can be a statement for which the number cites
    a source."""
    if not before:
        return False
    if before[-1] in _SENTENCE_SIGNS:
        return True
    if before[-1] in ")]":
        return _BRACKETED_WORDS.search(before) is not None
    word = _WORD.search(before)
    return (
        word is not None
        and len(word.group()) >= 3
        and word.group().casefold() not in _FUNCTIONS
        and _UNIT.search(before) is None
    )


def _is_prose(paragraph: str) -> bool:
    return len(_LOWER_CASE_WORD.findall(paragraph)) >= 3


def _digits(mark: str) -> set[str]:
    return set(re.findall(r"\d+", lowered(mark)))


def is_numbered(labels: Sequence[str]) -> bool:
    """Return whether a list of references has numbers that raised markers can cite."""
    return sum(label.isdecimal() for label in labels) >= 2

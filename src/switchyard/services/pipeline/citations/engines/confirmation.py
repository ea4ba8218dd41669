"""Check the fields that an engine returns for a reference against the reference's own text."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from switchyard.services.pipeline.citations.reference import Person, Reference
from switchyard.services.pipeline.citations.reference_assembly import identifiers_of
from switchyard.services.pipeline.citations.title_language import language_of
from switchyard.services.pipeline.citations.tokens import clean_reference, tokens_of
from switchyard.services.pipeline.text.plain_text import clean

_WORD = re.compile(r"\w+")
_TEXT_FIELDS = ("editors", "title", "container", "publisher", "place", "edition")
_NUMBER_FIELDS = ("volume", "issue", "pages")
_POSSIBLE_YEARS = range(1000, 2200)


def keep_confirmed(parsed: Reference, text: str, *, engine: str) -> Reference:
    """Return the reference with only the fields that its text confirms. Values that are not in the
    text are left out, and identifiers are those found in the text by their form. `confidence` is
    the share of the text's longer words and numbers that are in a field; 0 without a title."""
    text = clean_reference(text)
    words = _words(text)
    text_words = f" {' '.join(words)} "

    def is_in_text(value: str) -> bool:
        return bool(value) and f" {' '.join(_words(value))} " in text_words

    identifiers = identifiers_of(tokens_of(text))
    persons = tuple(
        Person(_join_lines(each.family), _join_lines(each.given) if is_in_text(each.given) else "")
        for each in parsed.authors
        if is_in_text(each.family)
    )
    values = {name: _join_lines(getattr(parsed, name)) for name in (*_TEXT_FIELDS, *_NUMBER_FIELDS)}
    fields: dict[str, Any] = {name: value for name, value in values.items() if is_in_text(value)}
    year = (
        parsed.year
        if parsed.year in _POSSIBLE_YEARS and re.search(rf"{parsed.year}", text)
        else None
    )
    confirmed = Reference(
        text=text,
        authors=persons,
        more_authors=parsed.more_authors and bool(persons),
        year=year,
        doi=identifiers.get("doi", ""),
        arxiv_id=identifiers.get("arxiv", ""),
        isbn=identifiers.get("isbn", ""),
        url=identifiers.get("url", ""),
        language=language_of(fields.get("title", "")),
        engine=engine,
        **fields,
    )
    return replace(confirmed, confidence=_coverage(confirmed, words))


def _coverage(reference: Reference, words: list[str]) -> float:
    """Return the share of a text's longer words and numbers that are in one of the fields."""
    names = [name for person in reference.authors for name in (person.family, person.given)]
    fields = [getattr(reference, name) for name in (*_TEXT_FIELDS, *_NUMBER_FIELDS)]
    identifiers = [reference.doi, reference.arxiv_id, reference.isbn, reference.url]
    field_words = set(_words_of([*names, *fields, *identifiers, str(reference.year or "")]))
    long_words = [word for word in words if len(word) > 2 or word.isdigit()]
    if not long_words or not reference.title:
        return 0.0
    return round(sum(word in field_words for word in long_words) / len(long_words), 3)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _words_of(texts: Iterable[str]) -> list[str]:
    return [word for text in texts for word in _words(text)]


def _join_lines(text: str) -> str:
    return " ".join(clean(text).split())

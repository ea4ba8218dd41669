"""What an engine that is not ours says of a reference, held against the reference's own text."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from switchyard.services.pipeline.citations.assembling import identifiers_of
from switchyard.services.pipeline.citations.language import language_of
from switchyard.services.pipeline.citations.reference import Person, Reference
from switchyard.services.pipeline.citations.tokens import cleaned, tokens_of
from switchyard.services.pipeline.text.plain import clean

_WORD = re.compile(r"\w+")
_TEXTS = ("editors", "title", "container", "publisher", "place", "edition")
_NUMBERS = ("volume", "issue", "pages")
_YEAR = range(1000, 2200)


def checked(said: Reference, text: str, *, engine: str) -> Reference:
    """Keep of a reference what its text confirms: values that do not stand there are left out, and
    identifiers are those found in the text by their form. `confidence` is the share of the text's
    longer words and numbers that are in one of the fields; 0 without a title."""
    text = cleaned(text)
    words = _words(text)
    there = f" {' '.join(words)} "

    def stands(value: str) -> bool:
        return bool(value) and f" {' '.join(_words(value))} " in there

    found = identifiers_of(tokens_of(text))
    persons = tuple(
        Person(_line(each.family), _line(each.given) if stands(each.given) else "")
        for each in said.authors
        if stands(each.family)
    )
    texts = {name: _line(getattr(said, name)) for name in _TEXTS}
    numbers = {name: _line(getattr(said, name)) for name in _NUMBERS}
    kept: dict[str, Any] = {
        name: value for name, value in (texts | numbers).items() if stands(value)
    }
    year = said.year if said.year in _YEAR and re.search(rf"{said.year}", text) else None
    made = Reference(
        text=text,
        authors=persons,
        more_authors=said.more_authors and bool(persons),
        year=year,
        doi=found.get("doi", ""),
        arxiv_id=found.get("arxiv", ""),
        isbn=found.get("isbn", ""),
        url=found.get("url", ""),
        language=language_of(kept.get("title", "")),
        engine=engine,
        **kept,
    )
    return replace(made, confidence=_covered(made, words))


def _covered(made: Reference, words: list[str]) -> float:
    names = [name for person in made.authors for name in (person.family, person.given)]
    fields = [getattr(made, name) for name in (*_TEXTS, *_NUMBERS)]
    identifiers = [made.doi, made.arxiv_id, made.isbn, made.url]
    told = set(_words_of([*names, *fields, *identifiers, str(made.year or "")]))
    telling = [word for word in words if len(word) > 2 or word.isdigit()]
    if not telling or not made.title:
        return 0.0
    return round(sum(word in told for word in telling) / len(telling), 3)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _words_of(texts: Iterable[str]) -> list[str]:
    return [word for text in texts for word in _words(text)]


def _line(text: str) -> str:
    return " ".join(clean(text).split())

"""From labelled tokens to a reference's fields."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from switchyard.services.pipeline.citations.language import language_of
from switchyard.services.pipeline.citations.reference import Person, Reference
from switchyard.services.pipeline.citations.tokens import Token, identifier

_OPENS = {")": "(", "]": "[", "}": "{"}
_EDGES = " .,:;–—-/()[]{}<>«»“”‘’\"'`´„"
_DASHES = re.compile(r"\s*(?:--+|[-–—‐‑−])\s*")


def assembled(
    text: str, tokens: Sequence[Token], labels: Sequence[str], *, confidence: float, engine: str
) -> Reference:
    """The reference that the labels make of a text."""
    spans = list(_spans(tokens, labels))

    def longest(label: str) -> str:
        found = [
            text[tokens[first].start : tokens[last].end]
            for name, first, last in spans
            if name == label
        ]
        return _trimmed(max(found, key=len, default=""))

    def first(label: str) -> str:
        return next(
            (
                _trimmed(text[tokens[begin].start : tokens[end].end])
                for name, begin, end in spans
                if name == label
            ),
            "",
        )

    identifiers = identifiers_of(tokens)
    title = longest("title")
    year = re.search(r"\d{4}", first("year"))
    persons, more = _persons(text, tokens, labels)
    also = [
        _trimmed(text[tokens[begin].start : tokens[end].end])
        for name, begin, end in spans
        if name in ("note", "type", "series")
    ]
    return Reference(
        text=text,
        authors=persons,
        more_authors=more,
        editors=longest("editor"),
        title=title,
        container=longest("container"),
        year=int(year.group()) if year else None,
        volume=first("volume"),
        issue=first("issue"),
        pages=_pages(first("pages")),
        publisher=longest("publisher"),
        place=longest("place"),
        edition=first("edition"),
        doi=identifiers.get("doi", ""),
        arxiv_id=identifiers.get("arxiv", ""),
        isbn=identifiers.get("isbn", ""),
        url=identifiers.get("url", ""),
        language=language_of(title),
        confidence=round(confidence, 3),
        engine=engine,
        also=tuple(part for part in also if part),
    )


def _spans(tokens: Sequence[Token], labels: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Runs of one label; one sign between two of them does not part them ("Title: subtitle")."""
    joined: list[tuple[str, int, int]] = []
    for run in _runs(labels):
        if (
            len(joined) > 1
            and run[0] not in ("o", "year", "volume", "issue")
            and joined[-2][0] == run[0]
            and joined[-1][0] == "o"
            and joined[-1][1] == joined[-1][2]
            and tokens[joined[-1][1]].kind == "sign"
        ):
            joined[-2:] = [(run[0], joined[-2][1], run[2])]
        else:
            joined.append(run)
    yield from (run for run in joined if run[0] != "o")


def _runs(labels: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Each run of one label, with its first and its last token."""
    first = 0
    for label, group in groupby(labels):
        size = len(list(group))
        yield label, first, first + size - 1
        first += size


def identifiers_of(tokens: Sequence[Token]) -> dict[str, str]:
    """The first identifier of each kind: `doi`, `arxiv`, `isbn`, `url`."""
    found: dict[str, str] = {}
    for token in tokens:
        if token.is_identifier:
            found.setdefault(token.kind, identifier(token))
    return found


def _trimmed(text: str) -> str:
    """Without a style's signs at the edges; a closing bracket stays if the field opens it."""
    trimmed = text.strip(_EDGES)
    end = text.find(trimmed) + len(trimmed)
    rest = text[end : end + 1]
    if rest in _OPENS and trimmed.count(_OPENS[rest]) > trimmed.count(rest):
        return trimmed + rest
    return trimmed


def _pages(text: str) -> str:
    return _DASHES.sub("–", text)


def _persons(
    text: str, tokens: Sequence[Token], labels: Sequence[str]
) -> tuple[tuple[Person, ...], bool]:
    """People out of runs of names; which name comes first may change (Smith, J. and A. Doe)."""
    runs: list[tuple[str, str]] = []
    for label, first, last in _runs(labels):
        if label in ("family", "given", "org", "etal"):
            name = text[tokens[first].start : tokens[last].end]
            runs.append((label, name.strip(" ,;:&/()[]")))
        elif label != "asep" and runs:
            break  # the authors are the first such stretch; a later one is somebody's mention
    return _paired([run for run in runs if run[1]]), any(label == "etal" for label, _ in runs)


def _paired(runs: Sequence[tuple[str, str]]) -> tuple[Person, ...]:
    persons: list[Person] = []
    place = 0
    family_first = (
        next((label for label, _ in runs if label in ("family", "given")), "family") == "family"
    )
    while place < len(runs):
        label, name = runs[place]
        following = runs[place + 1] if place + 1 < len(runs) else ("", "")
        after = runs[place + 2][0] if place + 2 < len(runs) else ""
        if label == "family" and following[0] == "given" and (family_first or after != "family"):
            persons.append(Person(name, following[1]))
            place += 2
        elif label == "given" and following[0] == "family":
            persons.append(Person(following[1], name))
            family_first = False
            place += 2
        else:
            if label in ("family", "org"):
                persons.append(Person(name))
            place += 1
    return tuple(persons)

"""Make a reference's fields from its labelled tokens."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from switchyard.services.pipeline.citations.reference import Person, Reference
from switchyard.services.pipeline.citations.title_language import language_of
from switchyard.services.pipeline.citations.tokens import Token, identifier_value

_OPENING_BRACKETS = {")": "(", "]": "[", "}": "{"}
_STYLE_SIGNS = " .,:;–—-/()[]{}<>«»“”‘’\"'`´„"
_DASHES = re.compile(r"\s*(?:--+|[-–—‐‑−_])\s*")
_PAGES_AND_YEAR = re.compile(r"(?:([^,]*\d[^,]*), ?)?((?:1[5-9]|20)\d\d)")
# "Who governs? Journal of Politics": a sentence before a name, not an abbreviation's full stop.
_TITLE_AND_CONTAINER = re.compile(r"(\S+(?: \S+)+(?:[?!]|(?<=[a-zà-ÿ]{4})\.)) (\w.*)")
# "On tides. Tides 3": a title, and a periodical with its volume; not a part of a work.
_TITLE_AND_VOLUME = re.compile(
    r"(\S+(?: \S+)*?[^\W\d_]{3}[.?!]) "
    r"(?!(?:Part|Volume|Vol|Book|Chapter|Section|No|Version|Band|Teil|Tome|Report)\b)"
    r"([A-ZÀ-Þ][^\W\d_]*\.?(?: [^\W\d_]+\.?){0,6}) (\d{1,4})"
)
_FAMILY_AND_INITIALS = re.compile(r"([^\W\d_][^\W\d_'’-]{2,}) ((?:[^\W\d_](?:\.|\b)[ -]?)+)")
_WHOLE_NAME = re.compile(r"[^\W\d_]{3}")
_ABBREVIATED = re.compile(r"[^\W\d_]{2}\. ")


def assemble_reference(
    text: str, tokens: Sequence[Token], labels: Sequence[str], *, confidence: float, engine: str
) -> Reference:
    """Build the reference whose fields the labels mark in a text."""
    labels = _correct_labels(tokens, labels)
    spans = list(_spans(tokens, labels))

    def texts_of(*field_labels: str) -> list[str]:
        return [
            _trim(text[tokens[span.first].start : tokens[span.last].end])
            for span in spans
            if span.label in field_labels
        ]

    def longest_text(label: str) -> str:
        return max(texts_of(label), key=len, default="")

    def first_text(label: str) -> str:
        return next(iter(texts_of(label)), "")

    identifiers = identifiers_of(tokens)
    title, container = longest_text("title"), longest_text("container")
    if not title and (parts := _TITLE_AND_CONTAINER.fullmatch(container)):
        title, container = _trim(parts.group(1)), _trim(parts.group(2))
    volume = first_text("volume")
    if not (container or volume) and (joined_title := _TITLE_AND_VOLUME.fullmatch(title)):
        title, container, volume = _trim(joined_title[1]), joined_title[2], joined_title[3]
    year, pages = re.search(r"\d{4}", first_text("year")), first_text("pages")
    if year is None and (pages_and_year := _PAGES_AND_YEAR.fullmatch(pages)):
        pages, year = pages_and_year.group(1) or "", re.match(r"\d{4}", pages_and_year.group(2))
    persons, has_more = _persons(text, tokens, labels)
    other_parts = texts_of("note", "type", "series")

    return Reference(
        text=text,
        authors=persons,
        more_authors=has_more,
        editors=longest_text("editor"),
        title=title,
        container=_with_full_stop(container, text),
        year=int(year.group()) if year else None,
        volume=volume,
        issue=first_text("issue"),
        pages=_normalize_dashes(pages),
        publisher=longest_text("publisher"),
        place=longest_text("place"),
        edition=first_text("edition"),
        doi=identifiers.get("doi", ""),
        arxiv_id=identifiers.get("arxiv", ""),
        isbn=identifiers.get("isbn", ""),
        url=identifiers.get("url", ""),
        language=language_of(title),
        confidence=round(confidence, 3),
        engine=engine,
        notes=tuple(part for part in other_parts if part),
    )


def _correct_labels(tokens: Sequence[Token], labels: Sequence[str]) -> Sequence[str]:
    """Correct labels that can't be right: fields of a second work, and a collaboration's name as a
    title."""
    corrected = list(labels)
    labels_so_far: set[str] = set()
    for index, token in enumerate(tokens):
        if token.text == ";" and {"volume", "year"} <= labels_so_far and "volume" in labels[index:]:
            corrected[index + 1 :] = [
                label if later.is_identifier else "note"
                for later, label in zip(tokens[index + 1 :], labels[index + 1 :], strict=True)
            ]
            break
        labels_so_far.add(labels[index])
        if token.text == "Collaboration" and labels[index] in ("title", "container"):
            first = index
            while first and labels[first - 1] == labels[index]:
                first -= 1
            if tokens[max(first - 1, 0)].text in "[(" or tokens[first].text in "[(":
                corrected[first : index + 1] = ["note"] * (index + 1 - first)
        if (
            labels[index] == "o"
            and token.kind == "number"
            and index
            and labels[index - 1] == "volume"
            and tokens[index - 1].end < token.start
            and "pages" not in labels
        ):
            corrected[index] = "pages"  # "Acta 48 581"
    return corrected


class _Run(NamedTuple):
    """A run of tokens with one label."""

    label: str
    first: int
    """Index of its first token."""
    last: int
    """Index of its last token."""


def _spans(tokens: Sequence[Token], labels: Sequence[str]) -> Iterator[_Run]:
    """Yield each field's runs of tokens. A sign between two runs of
    one label does not separate them ("Title: subtitle"), nor do two signs within a title ("The
    ‘first’: a subtitle")."""
    joined: list[_Run] = []
    for run in _runs(labels):
        before, between = joined[-2:] if len(joined) > 1 else (None, None)
        if (
            before is not None
            and between is not None
            and run.label not in ("o", "year", "volume", "issue")
            and before.label == run.label
            and between.label == "o"
            and between.last - between.first <= (run.label == "title")
            and all(token.kind == "sign" for token in tokens[between.first : between.last + 1])
        ):
            joined[-2:] = [_Run(run.label, before.first, run.last)]
        else:
            joined.append(run)
    yield from (run for run in joined if run.label != "o")


def _runs(labels: Sequence[str]) -> Iterator[_Run]:
    """Yield each run of one label."""
    first = 0
    for label, group in groupby(labels):
        size = len(list(group))
        yield _Run(label, first, first + size - 1)
        first += size


def identifiers_of(tokens: Sequence[Token]) -> dict[str, str]:
    """Return the first identifier of each kind: `doi`, `arxiv`, `isbn`, `url`."""
    identifiers: dict[str, str] = {}
    for token in tokens:
        if token.is_identifier:
            identifiers.setdefault(token.kind, identifier_value(token))
    return identifiers


def _trim(text: str) -> str:
    """Strip a citation style's signs from both ends; a closing bracket stays if the field opens
    it."""
    trimmed = text.strip(_STYLE_SIGNS)
    end = text.find(trimmed) + len(trimmed)
    next_sign = text[end : end + 1]
    if next_sign in _OPENING_BRACKETS and trimmed.count(
        _OPENING_BRACKETS[next_sign]
    ) > trimmed.count(next_sign):
        return trimmed + next_sign
    return trimmed


def _with_full_stop(name: str, text: str) -> str:
    """Add the last full stop to a periodical's abbreviated name, if its other words end with
    one."""
    with_full_stop = f"{name}."
    return with_full_stop if _ABBREVIATED.search(name) and with_full_stop in text else name


def _normalize_dashes(text: str) -> str:
    return _DASHES.sub("–", text)


def _persons(
    text: str, tokens: Sequence[Token], labels: Sequence[str]
) -> tuple[tuple[Person, ...], bool]:
    """Return the people named by runs of name labels, and whether "et al." stands for more. The
    order of names may change within a list (Smith, J. and A. Doe)."""
    runs: list[tuple[str, str]] = []
    for label, first, last in _runs(labels):
        if label in ("family", "given", "org", "etal"):
            name = text[tokens[first].start : tokens[last].end]
            runs.append((label, name.strip(" ,;:&/()[]")))
        elif label != "asep" and runs:
            break  # the authors are the first such stretch; a later one only mentions somebody
    return _pair_names([run for run in runs if run[1]]), any(label == "etal" for label, _ in runs)


def _pair_names(runs: Sequence[tuple[str, str]]) -> tuple[Person, ...]:
    persons: list[Person] = []
    index = 0
    family_first = (
        next((label for label, _ in runs if label in ("family", "given")), "family") == "family"
    )
    # In "Smith A., Jones B.", Jones is a family name, as all given names are initials.
    only_initials = not any(
        label == "given" and _WHOLE_NAME.search(name) and not _FAMILY_AND_INITIALS.fullmatch(name)
        for label, name in runs
    )
    while index < len(runs):
        label, name = runs[index]
        next_label, next_name = runs[index + 1] if index + 1 < len(runs) else ("", "")
        label_after_next = runs[index + 2][0] if index + 2 < len(runs) else ""
        if (
            label == "family"
            and next_label == "given"
            and (family_first or label_after_next != "family")
        ):
            persons.append(Person(name, next_name))
            index += 2
        elif (
            label == "given"
            and family_first
            and only_initials
            and (next_label != "family" or label_after_next == "given")
            and (match := _FAMILY_AND_INITIALS.fullmatch(name))
        ):
            persons.append(Person(match.group(1), match.group(2)))
            index += 1
        elif label == "given" and next_label == "family":
            persons.append(Person(next_name, name))
            family_first = False
            index += 2
        else:
            if label in ("family", "org"):
                persons.append(Person(name))
            index += 1
    return tuple(persons)

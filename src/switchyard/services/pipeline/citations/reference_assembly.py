"""Make a reference's fields from its labelled tokens."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from switchyard.services.pipeline.citations.reference import Person, Reference
from switchyard.services.pipeline.citations.title_language import language_of
from switchyard.services.pipeline.citations.tokens import Token, identifier_value

_OPENS = {")": "(", "]": "[", "}": "{"}
_EDGES = " .,:;–—-/()[]{}<>«»“”‘’\"'`´„"
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

    def longest(label: str) -> str:
        texts = [
            text[tokens[first].start : tokens[last].end]
            for name, first, last in spans
            if name == label
        ]
        return _trim(max(texts, key=len, default=""))

    def first(label: str) -> str:
        return next(
            (
                _trim(text[tokens[start].start : tokens[end].end])
                for name, start, end in spans
                if name == label
            ),
            "",
        )

    identifiers = identifiers_of(tokens)
    title, container = longest("title"), longest("container")
    if not title and (parts := _TITLE_AND_CONTAINER.fullmatch(container)):
        title, container = _trim(parts.group(1)), _trim(parts.group(2))
    volume = first("volume")
    if not (container or volume) and (joined_title := _TITLE_AND_VOLUME.fullmatch(title)):
        title, container, volume = _trim(joined_title[1]), joined_title[2], joined_title[3]
    year, pages = re.search(r"\d{4}", first("year")), first("pages")
    if year is None and (pages_and_year := _PAGES_AND_YEAR.fullmatch(pages)):
        pages, year = pages_and_year.group(1) or "", re.match(r"\d{4}", pages_and_year.group(2))
    persons, has_more = _persons(text, tokens, labels)
    other_parts = [
        _trim(text[tokens[start].start : tokens[end].end])
        for name, start, end in spans
        if name in ("note", "type", "series")
    ]
    return Reference(
        text=text,
        authors=persons,
        more_authors=has_more,
        editors=longest("editor"),
        title=title,
        container=_with_full_stop(container, text),
        year=int(year.group()) if year else None,
        volume=volume,
        issue=first("issue"),
        pages=_normalize_dashes(pages),
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
        notes=tuple(part for part in other_parts if part),
    )


def _correct_labels(tokens: Sequence[Token], labels: Sequence[str]) -> Sequence[str]:
    """Correct labels that can't be right: fields of a second work, and a collaboration's name as a
    title."""
    corrected = list(labels)
    seen: set[str] = set()
    for index, token in enumerate(tokens):
        if token.text == ";" and {"volume", "year"} <= seen and "volume" in labels[index:]:
            corrected[index + 1 :] = [
                label if later.is_identifier else "note"
                for later, label in zip(tokens[index + 1 :], labels[index + 1 :], strict=True)
            ]
            break
        seen.add(labels[index])
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


def _spans(tokens: Sequence[Token], labels: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield each field's runs of tokens as label, first and last token. A sign between two runs of
    one label does not separate them ("Title: subtitle"), nor do two signs within a title ("The
    ‘first’: a subtitle")."""
    joined: list[tuple[str, int, int]] = []
    for run in _runs(labels):
        if (
            len(joined) > 1
            and run[0] not in ("o", "year", "volume", "issue")
            and joined[-2][0] == run[0]
            and joined[-1][0] == "o"
            and joined[-1][2] - joined[-1][1] <= (run[0] == "title")
            and all(token.kind == "sign" for token in tokens[joined[-1][1] : joined[-1][2] + 1])
        ):
            joined[-2:] = [(run[0], joined[-2][1], run[2])]
        else:
            joined.append(run)
    yield from (run for run in joined if run[0] != "o")


def _runs(labels: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield each run of one label, with its first and its last token."""
    first = 0
    for label, group in groupby(labels):
        size = len(list(group))
        yield label, first, first + size - 1
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
    trimmed = text.strip(_EDGES)
    end = text.find(trimmed) + len(trimmed)
    rest = text[end : end + 1]
    if rest in _OPENS and trimmed.count(_OPENS[rest]) > trimmed.count(rest):
        return trimmed + rest
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
        following = runs[index + 1] if index + 1 < len(runs) else ("", "")
        after = runs[index + 2][0] if index + 2 < len(runs) else ""
        if label == "family" and following[0] == "given" and (family_first or after != "family"):
            persons.append(Person(name, following[1]))
            index += 2
        elif (
            label == "given"
            and family_first
            and only_initials
            and (following[0] != "family" or after == "given")
            and (match := _FAMILY_AND_INITIALS.fullmatch(name))
        ):
            persons.append(Person(match.group(1), match.group(2)))
            index += 1
        elif label == "given" and following[0] == "family":
            persons.append(Person(following[1], name))
            family_first = False
            index += 2
        else:
            if label in ("family", "org"):
                persons.append(Person(name))
            index += 1
    return tuple(persons)

"""References as BibTeX, for LaTeX and reference managers."""

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from switchyard.services.pipeline.citations.formats.citation_keys import citation_keys_of
from switchyard.services.pipeline.citations.formats.work_kinds import WorkKind, kind_of
from switchyard.services.pipeline.citations.reference import Person, Reference
from switchyard.services.pipeline.text.plain_text import clean

_ENTRY_TYPES = {
    WorkKind.ARTICLE: "article",
    WorkKind.PAPER: "inproceedings",
    WorkKind.CHAPTER: "incollection",
    WorkKind.BOOK: "book",
    WorkKind.THESIS: "phdthesis",
    WorkKind.REPORT: "techreport",
    WorkKind.PREPRINT: "misc",
    WorkKind.WEB: "misc",
    WorkKind.OTHER: "misc",
}
_CONTAINER_FIELDS = {
    WorkKind.ARTICLE: "journal",
    WorkKind.PAPER: "booktitle",
    WorkKind.CHAPTER: "booktitle",
}
_PUBLISHER_FIELDS = {WorkKind.THESIS: "school", WorkKind.REPORT: "institution"}
# BibTeX counts braces also behind a backslash, so braces of the text are written as commands.
_ESCAPES = {
    "\\": r"{\textbackslash}",
    "{": r"{\textbraceleft}",
    "}": r"{\textbraceright}",
    "~": r"{\textasciitilde}",
    "^": r"{\textasciicircum}",
} | {sign: f"\\{sign}" for sign in "$&#%_"}
_SPECIAL = re.compile("[" + re.escape("".join(_ESCAPES)) + "]")
_WORDS = re.compile(r"([^\W_]+)")
_AND = re.compile(r"(?<!\S)and(?!\S)", re.IGNORECASE)
_SAFE_IN_ADDRESS = "!#$%&'()*+,/:;=?@[]~"


def bibtex(references: Sequence[Reference]) -> str:
    """Return one BibTeX entry for each reference, in order. No text in a field can end its entry
    early."""
    entries = map(_entry, references, citation_keys_of(references))
    return "\n\n".join(entries) + ("\n" if references else "")


def _entry(reference: Reference, key: str) -> str:
    kind = kind_of(reference)
    fields = [f"  {name} = {{{value}}}" for name, value in _fields(reference, kind) if value]
    return ",\n".join([f"@{_ENTRY_TYPES[kind]}{{{key}", *fields]) + "\n}"


def _fields(reference: Reference, kind: WorkKind) -> Iterator[tuple[str, str]]:
    yield "author", _names(reference)
    yield "editor", _escape(reference.editors)
    yield "title", _title(reference.title or reference.text)
    yield _CONTAINER_FIELDS.get(kind, "howpublished"), _escape(reference.container)
    yield "year", str(reference.year or "")
    yield "volume", _escape(reference.volume)
    yield "number", _escape(reference.issue)
    yield "pages", _escape(reference.pages).replace("–", "--")
    yield _PUBLISHER_FIELDS.get(kind, "publisher"), _escape(reference.publisher)
    yield "address", _escape(reference.place)
    yield "edition", _escape(reference.edition)
    yield "isbn", _escape(reference.isbn)
    # These two are read literally: an escape would become a part of the address.
    yield "doi", quote(_join_lines(reference.doi), safe=_SAFE_IN_ADDRESS)
    yield "url", quote(_join_lines(reference.url), safe=_SAFE_IN_ADDRESS)
    if reference.arxiv_id:
        yield "eprint", _escape(reference.arxiv_id)
        yield "archiveprefix", "arXiv"
    yield "language", _escape(reference.language)
    yield "note", _escape("; ".join(reference.notes))


def _names(reference: Reference) -> str:
    others = ["others"] if reference.more_authors and reference.authors else []
    return " and ".join([*map(_name, reference.authors), *others])


def _name(person: Person) -> str:
    if not person.given:
        # An organisation: BibTeX reads no first name from braces.
        return f"{{{_escape(person.family)}}}"
    return f"{_protect_name_part(person.family)}, {_protect_name_part(person.given)}"


def _protect_name_part(name: str) -> str:
    """Return a part of a name, in braces where a comma or an "and" in it would divide it."""
    escaped = _escape(name)
    return f"{{{escaped}}}" if "," in name or _AND.search(name) else escaped


def _title(title: str) -> str:
    """Put words with inner capitals in braces, as styles change other words to lower case."""
    line = _join_lines(title)
    return "".join(
        f"{{{_escape_signs(part)}}}"
        if any(sign.isupper() for sign in part[1:])
        else _escape_signs(part)
        for part in _WORDS.split(line)
    )


def _escape(text: str) -> str:
    return _escape_signs(_join_lines(text))


def _escape_signs(text: str) -> str:
    return _SPECIAL.sub(lambda sign: _ESCAPES[sign.group()], text)


def _join_lines(text: str) -> str:
    return " ".join(clean(text).split())

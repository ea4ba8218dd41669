"""References as CSL-JSON, which citation processors (citeproc, pandoc, Zotero) read."""

from collections.abc import Sequence
from typing import Any

from switchyard.services.pipeline.citations.formats.citation_keys import citation_keys_of
from switchyard.services.pipeline.citations.formats.work_kinds import WorkKind, kind_of
from switchyard.services.pipeline.citations.reference import Person, Reference
from switchyard.services.pipeline.text.plain_text import clean

_TYPES = {
    WorkKind.ARTICLE: "article-journal",
    WorkKind.PAPER: "paper-conference",
    WorkKind.CHAPTER: "chapter",
    WorkKind.BOOK: "book",
    WorkKind.THESIS: "thesis",
    WorkKind.REPORT: "report",
    WorkKind.PREPRINT: "article",
    WorkKind.WEB: "webpage",
    WorkKind.OTHER: "document",
}


def csl(references: Sequence[Reference]) -> list[dict[str, Any]]:
    """Return one item of CSL 1.0.2 for each reference, in order."""
    return [
        {name: value for name, value in _item(reference, key).items() if value}
        for reference, key in zip(references, citation_keys_of(references), strict=True)
    ]


def _item(reference: Reference, key: str) -> dict[str, Any]:
    return {
        "id": key,
        "type": _TYPES[kind_of(reference)],
        "author": [_name(person) for person in reference.authors],
        "editor": [{"literal": clean(reference.editors)}] if reference.editors else [],
        "title": clean(reference.title or reference.text),
        "container-title": clean(reference.container),
        "issued": {"date-parts": [[reference.year]]} if reference.year else None,
        "volume": clean(reference.volume),
        "issue": clean(reference.issue),
        "page": clean(reference.pages).replace("–", "-"),
        "publisher": clean(reference.publisher),
        "publisher-place": clean(reference.place),
        "edition": clean(reference.edition),
        "DOI": clean(reference.doi),
        "ISBN": clean(reference.isbn),
        "URL": clean(reference.url),
        "archive": "arXiv" if reference.arxiv_id else "",
        "archive_location": clean(reference.arxiv_id),
        "language": clean(reference.language),
        "note": clean("; ".join(reference.notes)),
    }


def _name(person: Person) -> dict[str, str]:
    if not person.given:
        return {"literal": clean(person.family)}
    return {"family": clean(person.family), "given": clean(person.given)}

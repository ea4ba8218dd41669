"""Tell the kind of work that a reference names, as far as its fields say."""

import re
from enum import StrEnum

from switchyard.services.pipeline.citations.reference import Reference


class WorkKind(StrEnum):
    """Kinds of works that all formats distinguish."""

    ARTICLE = "article"
    PAPER = "paper"
    """A paper in proceedings."""
    CHAPTER = "chapter"
    BOOK = "book"
    THESIS = "thesis"
    REPORT = "report"
    PREPRINT = "preprint"
    WEB = "web"
    OTHER = "other"


_THESIS = re.compile(
    r"\b(?:ph\.? ?d\.?|doctoral|doctorate|master['’]?s?|m\.?sc\.?|bachelor['’]?s?|diploma)"
    r" {0,3}(?:thesis|dissertation)\b"
    r"|\b(?:dissertation|habilitation|diplomarbeit|thèse|tesis|tesi)\b",
    re.IGNORECASE,
)
_REPORT = re.compile(
    r"\b(?:technical|research|working) (?:report|paper|note)s?\b|\btech\. ?rep\b|\bwhite paper\b"
    r"|\bRFC ?\d",
    re.IGNORECASE,
)
_PROCEEDINGS = re.compile(
    r"\b(?:proceedings|proc\.|conference|conf\.|symposium|workshop|congress|meeting|annual meeting"
    r"|tagungsband|konferenz|actes|atti|actas)(?!\w)",
    re.IGNORECASE,
)
_PREPRINTS = re.compile(
    r"\b(?:arxiv|corr|biorxiv|medrxiv|ssrn|preprints?|e-?prints?)\b", re.IGNORECASE
)


def kind_of(reference: Reference) -> WorkKind:
    """Return the kind of work; OTHER where the fields don't tell."""
    notes = " ".join((*reference.notes, reference.container, reference.publisher))
    if _THESIS.search(notes) or (not reference.container and _THESIS.search(reference.text)):
        return WorkKind.THESIS
    if _REPORT.search(notes) or (not reference.container and _REPORT.search(reference.text)):
        return WorkKind.REPORT
    if reference.container:
        return _kind_of_part(reference)
    if reference.arxiv_id:
        return WorkKind.PREPRINT
    if reference.publisher or reference.isbn or reference.edition or reference.place:
        return WorkKind.BOOK
    return WorkKind.WEB if reference.url else WorkKind.OTHER


def _kind_of_part(reference: Reference) -> WorkKind:
    """Return the kind of a work that appeared in another."""
    if _PROCEEDINGS.search(reference.container):
        return WorkKind.PAPER
    if _PREPRINTS.search(reference.container):
        return WorkKind.PREPRINT
    is_in_book = reference.editors or reference.isbn or reference.publisher
    if is_in_book and not reference.issue:
        return WorkKind.CHAPTER
    return WorkKind.ARTICLE

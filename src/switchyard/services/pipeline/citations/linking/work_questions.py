"""Make the questions to catalogues for a reference. References to one work, in the same words, lead
to the same question."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.pipeline.citations.reference import Reference

_WORD = re.compile(r"\w+")
_ARXIV_DOI = re.compile(r"10\.48550/arxiv\.(.+)", re.IGNORECASE)
_VERSION = re.compile(r"v\d{1,4}$")
MAX_WORDS = 40
"""Most words of a title in a query."""

_MIN_TITLE_LETTERS = 8
"""Fewest letters and digits of a title that is searched for."""


class LookupMethod(StrEnum):
    """How a work is looked up."""

    DOI = "doi"
    ARXIV = "arxiv"
    SEARCH = "search"


@dataclass(frozen=True)
class WorkQuestion:
    """One question to catalogues."""

    method: LookupMethod
    value: str
    """The DOI, the arXiv id without its version, or the words of a title."""
    author: str = ""
    """Family name of the first author; only for a search."""
    year: int | None = None
    """Year of the work; only for a search."""

    @cached_property
    def key(self) -> str:
        """Key of the question in the ledger."""
        return f"{self.method}:{content_hash([self.value, self.author, self.year])}"


def questions_of(reference: Reference) -> list[WorkQuestion]:
    """Return the questions for a reference, the surest first; none where it has too few fields."""
    questions: list[WorkQuestion] = []
    arxiv_id = _VERSION.sub("", reference.arxiv_id.lower())
    if doi := reference.doi.lower():
        arxiv_doi = _ARXIV_DOI.fullmatch(doi)
        if arxiv_doi:
            arxiv_id = _VERSION.sub("", arxiv_doi[1])
        else:
            questions.append(WorkQuestion(LookupMethod.DOI, doi))
    if arxiv_id:
        questions.append(WorkQuestion(LookupMethod.ARXIV, arxiv_id))
    title = words_of(reference.title)
    if len("".join(title)) >= _MIN_TITLE_LETTERS:
        author = " ".join(words_of(reference.authors[0].family)) if reference.authors else ""
        query = " ".join(title[:MAX_WORDS])
        questions.append(WorkQuestion(LookupMethod.SEARCH, query, author, reference.year))
    return questions


def words_of(text: str) -> list[str]:
    """Return the words of a text without accents and case, for comparisons."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    return _WORD.findall("".join(sign for sign in plain if not unicodedata.combining(sign)))

"""What is asked of catalogues for a reference: the same question for all that say the same."""

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
"""Of a title, in a query."""


class LookupMethod(StrEnum):
    """How a work is asked for."""

    DOI = "doi"
    ARXIV = "arxiv"
    SEARCH = "search"


@dataclass(frozen=True)
class WorkQuestion:
    """One question; `value` is the DOI, the arXiv id without its version, or a title."""

    method: LookupMethod
    value: str
    author: str = ""
    """Family name of the first one, of a search."""
    year: int | None = None

    @cached_property
    def key(self) -> str:
        """Names it in the ledger."""
        said = [self.value, self.author, self.year]
        return f"{self.method}:{content_hash(said)}"


def questions_of(reference: Reference) -> list[WorkQuestion]:
    """What can be asked for the reference, the surest first; nothing where it says too little."""
    asked: list[WorkQuestion] = []
    arxiv_id = _VERSION.sub("", reference.arxiv_id.lower())
    if doi := reference.doi.lower():
        own = _ARXIV_DOI.fullmatch(doi)
        if own:
            arxiv_id = _VERSION.sub("", own[1])
        else:
            asked.append(WorkQuestion(LookupMethod.DOI, doi))
    if arxiv_id:
        asked.append(WorkQuestion(LookupMethod.ARXIV, arxiv_id))
    title = words_of(reference.title)
    if len("".join(title)) >= 8:
        author = " ".join(words_of(reference.authors[0].family)) if reference.authors else ""
        said = " ".join(title[:MAX_WORDS])
        asked.append(WorkQuestion(LookupMethod.SEARCH, said, author, reference.year))
    return asked


def words_of(text: str) -> list[str]:
    """Words without accents and case, as they are compared."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    return _WORD.findall("".join(sign for sign in plain if not unicodedata.combining(sign)))

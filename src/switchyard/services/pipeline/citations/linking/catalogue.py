"""The base of all catalogues of works: how requests are sent, and how answers are read.

Answers come from outside: invalid records are left out, and every text is bounded.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from switchyard.services.common.printable import quoted_answer
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.citations.cited_works import CitedWork, without_markup
from switchyard.services.pipeline.citations.linking.work_questions import LookupMethod, WorkQuestion
from switchyard.services.pipeline.citations.reference import Person
from switchyard.services.pipeline.sources.source_client import SourceClient, SourceServer
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse
from switchyard.services.pipeline.text.plain_text import clean

TIMEOUT = 180.0
"""Seconds for one request and its whole answer."""
BATCH_SIZE = 50
"""Identifiers of one request at most: OpenAlex accepts 100, Wikidata 50."""
MAX_RESULTS = 5
"""Most works that a search returns."""
MAX_AUTHORS = 100
_MAX_TEXT = 1_000
"""Characters of a text without its markup."""
_MAX_MARKED_UP = 20_000
"""Characters of a text with its markup."""
ARXIV_DOI = "10.48550/arxiv."
_MAIL = re.compile(r"[^@\s]{1,100}@[^@\s]{1,100}")


class Catalogue(ABC):
    """One catalogue of works."""

    name: str
    label: str

    takes_mail = True
    """Whether requests with a mail address go to a pool of their own, which answers sooner."""

    def __init__(self, client: SourceClient, *, contact: str | None) -> None:
        self._client = client
        is_mail = self.takes_mail and contact is not None and _MAIL.fullmatch(contact)
        self._mail_params = {"mailto": contact} if is_mail and contact is not None else {}

    @classmethod
    def server(cls, settings: Settings) -> SourceServer:
        """Return the catalogue's address, and the bounds of requests to it."""
        return SourceServer(
            cls.name,
            label=cls.label,
            base_url=getattr(settings, f"{cls.name}_base_url").rstrip("/"),
            interval=settings.link_interval,
            timeout=TIMEOUT,
            secret_params=cls.secret_params(settings),
        )

    @classmethod
    def secret_params(cls, settings: Settings) -> dict[str, str]:
        """Return parameters of each request that must not be logged, such as a key; none by
        default."""
        return {}

    @abstractmethod
    async def find_by_identifiers(self, questions: Sequence[WorkQuestion]) -> dict[str, CitedWork]:
        """Return the works with these DOIs and arXiv ids, by the questions' keys; those that the
        catalogue does not have are absent. At most BATCH_SIZE questions. Raises what
        SourceClient.get raises."""

    @abstractmethod
    async def search(self, question: WorkQuestion) -> list[CitedWork]:
        """Return up to MAX_RESULTS works that may be meant. Raises what SourceClient.get raises."""

    async def _get(self, path: str, **params: str) -> dict[str, Any]:
        answer = (await self._client.get(path, params | self._mail_params)).json()
        if not isinstance(answer, dict):
            raise InvalidSourceResponse(
                f"{self.label} returned no JSON object, but {quoted_answer(answer)}"
            )
        return answer

    def _records(self, answer: Mapping[str, Any], *path: str) -> list[Mapping[str, Any]]:
        value: Any = answer
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if not isinstance(value, list):
            raise InvalidSourceResponse(
                f"{self.label}'s answer has no {'.'.join(path)}: {quoted_answer(answer)}"
            )
        return [each for each in value if isinstance(each, dict)]


def keys_by_doi(questions: Sequence[WorkQuestion]) -> dict[str, str]:
    """Return the questions' keys by DOI; for an arXiv id, by arXiv's DOI. A DOI with a comma or a
    bar, which would end it in a query, is left out: the work is searched for by its title."""
    dois = {
        (ARXIV_DOI if each.method is LookupMethod.ARXIV else "") + each.value: each.key
        for each in questions
    }
    return {doi: key for doi, key in dois.items() if not re.search(r"[,|\s]", doi)}


def is_arxiv(doi: str) -> bool:
    return doi.startswith(ARXIV_DOI)


def works_by_key(
    works: Sequence[CitedWork | None], keys: Mapping[str, str]
) -> dict[str, CitedWork]:
    """Return works by the keys of the questions for their DOIs (`keys_by_doi`)."""
    by_key: dict[str, CitedWork] = {}
    for work in works:
        if work is None:
            continue
        for doi in (work.doi, ARXIV_DOI + work.arxiv_id):
            if doi in keys:
                by_key.setdefault(keys[doi], work)
    return by_key


def work_or_none(**fields: Any) -> CitedWork | None:
    """Make a work from its fields; None for a work without identifiers or without a title, which is
    of no use."""
    doi, has_arxiv_doi = fields["doi"], is_arxiv(fields["doi"])
    if has_arxiv_doi:
        fields |= {"arxiv_id": doi.removeprefix(ARXIV_DOI), "doi": ""}
    try:
        return CitedWork.from_fields(**fields) if fields["title"] else None
    except ValueError:
        return None


def person_of(name: str) -> Person:
    """Split a name in its natural order: the last word is the family name."""
    given_names, _, family = name.rpartition(" ")
    return Person(family, given_names)


def doi_in(value: Any) -> str:
    match = re.search(r"10\.\d{4,9}/\S{1,300}", text_in(value).lower())
    return match.group() if match else ""


def last_part(value: Any, pattern: str) -> str:
    """Return the part behind the last slash of an address if it matches `pattern`; else an empty
    text."""
    last = text_in(value).rpartition("/")[2]
    return last if re.fullmatch(pattern, last) else ""


def year_in(value: Any) -> int | None:
    return value if isinstance(value, int) and 1000 <= value <= 2200 else None


def text_in(value: Any) -> str:
    """Return a text without markup, of at most 1,000 characters; empty where the value is no
    text."""
    return (
        without_markup(clean(value[:_MAX_MARKED_UP]))[:_MAX_TEXT] if isinstance(value, str) else ""
    )

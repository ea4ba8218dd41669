"""What the catalogues of works have in common: how they are asked, and how an answer is read.

Answers are foreign: a record that is none is left out, and every text is bounded.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from switchyard.services.common.printable import quoted_answer
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.citations.linking.questions import LookupMethod, WorkQuestion
from switchyard.services.pipeline.citations.reference import Person
from switchyard.services.pipeline.citations.works import CitedWork, without_markup
from switchyard.services.pipeline.sources.source_client import SourceClient, SourceServer
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse
from switchyard.services.pipeline.text.plain import clean

TIMEOUT = 180.0
"""Seconds for one request, all of its answer."""
BATCH_SIZE = 50
"""Identifiers of one request: OpenAlex takes 100, Wikidata 50."""
MAX_RESULTS = 5
"""Works that a search gives."""
MAX_AUTHORS = 100
_CHARS = 1_000
_MAX_MARKED_UP = 20_000
"""Characters of a text with its markup."""
ARXIV_DOI = "10.48550/arxiv."
_MAIL = re.compile(r"[^@\s]{1,100}@[^@\s]{1,100}")


class Catalogue(ABC):
    """One catalogue."""

    name: str
    label: str

    takes_mail = True
    """It has a polite pool for those who say how to reach them."""

    def __init__(self, client: SourceClient, *, contact: str | None) -> None:
        self._client = client
        is_mail = self.takes_mail and contact is not None and _MAIL.fullmatch(contact)
        self._polite = {"mailto": contact} if is_mail and contact is not None else {}

    @classmethod
    def server(cls, settings: Settings) -> SourceServer:
        """Where it is, and how it wants to be asked."""
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
        """What it wants with each request and nobody may see: a key; nothing by default."""
        return {}

    @abstractmethod
    async def by_identifiers(self, questions: Sequence[WorkQuestion]) -> dict[str, CitedWork]:
        """The works with these DOIs and arXiv ids, by the questions' keys, as far as it knows
        them; BATCH_SIZE at most. Raises what SourceClient.get raises."""

    @abstractmethod
    async def search(self, question: WorkQuestion) -> list[CitedWork]:
        """Works that may be meant, MAX_RESULTS at most. Raises what SourceClient.get raises."""

    async def _get(self, path: str, **params: str) -> dict[str, Any]:
        told = (await self._client.get(path, params | self._polite)).json()
        if not isinstance(told, dict):
            raise InvalidSourceResponse(
                f"{self.label} returned no JSON object, but {quoted_answer(told)}"
            )
        return told

    def _records(self, told: Mapping[str, Any], *path: str) -> list[Mapping[str, Any]]:
        found: Any = told
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        if not isinstance(found, list):
            raise InvalidSourceResponse(
                f"{self.label}'s answer has no {'.'.join(path)}: {quoted_answer(told)}"
            )
        return [each for each in found if isinstance(each, dict)]


def dois_of(questions: Sequence[WorkQuestion]) -> dict[str, str]:
    """The questions' keys by DOI; arXiv's papers have DOIs of arXiv's own. A comma or a bar would
    end the DOI in a query: what has one is searched for by its title."""
    dois = {
        (ARXIV_DOI if each.method is LookupMethod.ARXIV else "") + each.value: each.key
        for each in questions
    }
    return {doi: key for doi, key in dois.items() if not re.search(r"[,|\s]", doi)}


def is_arxiv(doi: str) -> bool:
    return doi.startswith(ARXIV_DOI)


def by_key(works: Sequence[CitedWork | None], asked: Mapping[str, str]) -> dict[str, CitedWork]:
    found: dict[str, CitedWork] = {}
    for work in works:
        if work is None:
            continue
        for doi in (work.doi, ARXIV_DOI + work.arxiv_id):
            if doi in asked:
                found.setdefault(asked[doi], work)
    return found


def work_of(**said: Any) -> CitedWork | None:
    """A work without identifiers, or without a title, is of no use."""
    doi, own = said["doi"], is_arxiv(said["doi"])
    said["arxiv_id"] = doi.removeprefix(ARXIV_DOI) if own else said.get("arxiv_id", "")
    said["doi"] = "" if own else doi
    try:
        return CitedWork.from_fields(**said) if said["title"] else None
    except ValueError:
        return None


def person_of(name: str) -> Person:
    """A name in its natural order: the last word is the family's."""
    given, _, family = name.rpartition(" ")
    return Person(family, given)


def doi_in(value: Any) -> str:
    found = re.search(r"10\.\d{4,9}/\S{1,300}", text_in(value).lower())
    return found.group() if found else ""


def last_part(value: Any, form: str) -> str:
    """What stands behind the last slash of an address, if it has that form."""
    last = text_in(value).rpartition("/")[2]
    return last if re.fullmatch(form, last) else ""


def year_in(value: Any) -> int | None:
    return value if isinstance(value, int) and 1000 <= value <= 2200 else None


def text_in(value: Any) -> str:
    """A text without markup; empty where it is none."""
    return without_markup(clean(value[:_MAX_MARKED_UP]))[:_CHARS] if isinstance(value, str) else ""


def dict_in(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def list_in(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

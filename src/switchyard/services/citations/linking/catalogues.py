"""Catalogues of works, each asked in its own language, behind one protocol.

OpenAlex, Crossref and Wikidata take DOIs in batches, and a title at a time. Their answers are
foreign: a record that is none is left out, and every text is bounded.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from switchyard.services.citations.linking.questions import Means, WorkQuestion
from switchyard.services.citations.reference import Person
from switchyard.services.citations.works import CitedWork
from switchyard.services.settings import Settings
from switchyard.services.sources.asking import SourceClient, SourceServer
from switchyard.services.sources.errors import SourceNonsense
from switchyard.services.text.plain import clean

TIMEOUT = 180.0
"""Seconds for one request, all of its answer."""
BATCH = 50
"""Identifiers of one request: OpenAlex takes 100, Wikidata 50."""
FOUND = 5
"""Works that a search gives."""
_MAX_AUTHORS = 100
_CHARS = 1_000
_ARXIV_DOI = "10.48550/arxiv."
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
        )

    @abstractmethod
    async def by_identifiers(self, questions: Sequence[WorkQuestion]) -> dict[str, CitedWork]:
        """The works with these DOIs and arXiv ids, by the questions' keys, as far as it knows
        them; BATCH at most. Raises what SourceClient.get raises."""

    @abstractmethod
    async def search(self, question: WorkQuestion) -> list[CitedWork]:
        """Works that may be meant, FOUND at most. Raises what SourceClient.get raises."""

    async def _get(self, path: str, **params: str) -> dict[str, Any]:
        told = (await self._client.get(path, params | self._polite)).json()
        if not isinstance(told, dict):
            raise SourceNonsense(f"{self.label}'s answer is no object")
        return told

    def _records(self, told: Mapping[str, Any], *path: str) -> list[Mapping[str, Any]]:
        found: Any = told
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        if not isinstance(found, list):
            raise SourceNonsense(f"{self.label}'s answer has no {'.'.join(path)}")
        return [each for each in found if isinstance(each, dict)]


class OpenAlex(Catalogue):
    """https://docs.openalex.org"""

    name = "openalex"
    label = "OpenAlex"
    _FIELDS = "id,doi,ids,title,publication_year,authorships,primary_location"

    async def by_identifiers(self, questions: Sequence[WorkQuestion]) -> dict[str, CitedWork]:
        asked = _asked(questions)
        if not asked:
            return {}
        told = await self._get(
            "/works",
            **{"filter": "doi:" + "|".join(asked), "per-page": "100", "select": self._FIELDS},
        )
        works = [_openalex(each) for each in self._records(told, "results")]
        return _by_key(works, asked)

    async def search(self, question: WorkQuestion) -> list[CitedWork]:
        # A comma would begin another filter; the words have no signs.
        params = {"filter": f"title.search:{question.value}", "per-page": str(FOUND)}
        told = await self._get("/works", **params, select=self._FIELDS)
        works = [_openalex(each) for each in self._records(told, "results")[:FOUND]]
        return [work for work in works if work is not None]


class Crossref(Catalogue):
    """https://api.crossref.org"""

    name = "crossref"
    label = "Crossref"
    _FIELDS = "DOI,title,author,issued,container-title"

    async def by_identifiers(self, questions: Sequence[WorkQuestion]) -> dict[str, CitedWork]:
        asked = _asked(questions)
        if not asked:
            return {}
        told = await self._get(
            "/works",
            filter=",".join(f"doi:{doi}" for doi in asked),
            rows=str(2 * BATCH),
            select=self._FIELDS,
        )
        works = [_crossref(each) for each in self._records(told, "message", "items")]
        return _by_key(works, asked)

    async def search(self, question: WorkQuestion) -> list[CitedWork]:
        said = (question.value, question.author, str(question.year or ""))
        asked = {"query.bibliographic": " ".join(filter(None, said)), "rows": str(FOUND)}
        told = await self._get("/works", **asked, select=self._FIELDS)
        works = [_crossref(each) for each in self._records(told, "message", "items")[:FOUND]]
        return [work for work in works if work is not None]


class Wikidata(Catalogue):
    """https://www.wikidata.org/w/api.php"""

    name = "wikidata"
    label = "Wikidata"
    takes_mail = False

    async def by_identifiers(self, questions: Sequence[WorkQuestion]) -> dict[str, CitedWork]:
        asked = _asked(questions)
        if not asked:
            return {}
        said = [
            f"P818={doi.removeprefix(_ARXIV_DOI)}" if _is_arxiv(doi) else f"P356={doi.upper()}"
            for doi in asked
        ]
        works = await self._found("haswbstatement:" + "|".join(said), 2 * BATCH)
        return _by_key(works, asked)

    async def search(self, question: WorkQuestion) -> list[CitedWork]:
        # What has a DOI, or a date of publication: most other items are no works.
        return await self._found(f"{question.value} haswbstatement:P356|P577", FOUND)

    async def _found(self, said: str, most: int) -> list[CitedWork]:
        listed = await self._get(
            "", action="query", list="search", format="json", srsearch=said, srlimit=str(most)
        )
        titles = (each.get("title") for each in self._records(listed, "query", "search"))
        ids = [each for each in titles if isinstance(each, str) and re.fullmatch(r"Q\d+", each)]
        works: list[CitedWork] = []
        for start in range(0, min(len(ids), most), BATCH):
            told = await self._get(
                "",
                action="wbgetentities",
                format="json",
                props="labels|claims",
                languages="en|mul",
                ids="|".join(ids[start : start + BATCH]),
            )
            entities = told.get("entities")
            if not isinstance(entities, dict):
                raise SourceNonsense("Wikidata's answer has no entities")
            found = (_wikidata(each) for each in entities.values() if isinstance(each, dict))
            works += [work for work in found if work is not None]
        return works


CATALOGUES: Mapping[str, type[Catalogue]] = {
    each.name: each for each in (OpenAlex, Crossref, Wikidata)
}


def _asked(questions: Sequence[WorkQuestion]) -> dict[str, str]:
    """The questions' keys by DOI; arXiv's papers have DOIs of arXiv's own. A comma or a bar would
    end the DOI in a query: what has one is searched for by its title."""
    dois = {
        (_ARXIV_DOI if each.means is Means.ARXIV else "") + each.value: each.key
        for each in questions
    }
    return {doi: key for doi, key in dois.items() if not re.search(r"[,|\s]", doi)}


def _is_arxiv(doi: str) -> bool:
    return doi.startswith(_ARXIV_DOI)


def _by_key(works: Sequence[CitedWork | None], asked: Mapping[str, str]) -> dict[str, CitedWork]:
    found: dict[str, CitedWork] = {}
    for work in works:
        if work is None:
            continue
        for doi in (work.doi, _ARXIV_DOI + work.arxiv_id):
            if doi in asked:
                found.setdefault(asked[doi], work)
    return found


def _work(**said: Any) -> CitedWork | None:
    """A work without identifiers, or without a title, is of no use."""
    doi, own = said["doi"], _is_arxiv(said["doi"])
    said["arxiv_id"] = doi.removeprefix(_ARXIV_DOI) if own else said.get("arxiv_id", "")
    said["doi"] = "" if own else doi
    try:
        return CitedWork.made(**said) if said["title"] else None
    except ValueError:
        return None


def _openalex(told: Mapping[str, Any]) -> CitedWork | None:
    location = _dict(told.get("primary_location"))
    authorships = told.get("authorships")
    names = [
        _text(_dict(_dict(each).get("author")).get("display_name")) for each in _list(authorships)
    ]
    return _work(
        title=_text(told.get("title")),
        authors=tuple(_person(name) for name in names[:_MAX_AUTHORS] if name),
        year=_year(told.get("publication_year")),
        container=_text(_dict(location.get("source")).get("display_name")),
        doi=_doi(told.get("doi")),
        openalex=_last(told.get("id"), r"W\d{1,20}"),
    )


def _crossref(told: Mapping[str, Any]) -> CitedWork | None:
    dates = _list(_dict(told.get("issued")).get("date-parts"))
    first = _list(dates[0]) if dates else []
    people = [_dict(each) for each in _list(told.get("author"))[:_MAX_AUTHORS]]
    persons = [
        Person(_text(each.get("family")) or _text(each.get("name")), _text(each.get("given")))
        for each in people
    ]
    return _work(
        title=_text(next(iter(_list(told.get("title"))), "")),
        authors=tuple(person for person in persons if person.family),
        year=_year(first[0]) if first else None,
        container=_text(next(iter(_list(told.get("container-title"))), "")),
        doi=_doi(told.get("DOI")),
    )


def _wikidata(told: Mapping[str, Any]) -> CitedWork | None:
    claims = _dict(told.get("claims"))
    labels = _dict(told.get("labels"))
    label = next(
        (_text(_dict(labels[name]).get("value")) for name in ("en", "mul") if name in labels), ""
    )
    title = next((_text(_dict(each).get("text")) for each in _values(claims, "P1476")), "")
    date = next((_text(_dict(each).get("time")) for each in _values(claims, "P577")), "")
    names = [_text(each) for each in _values(claims, "P2093")]
    digits = re.match(r"\+?(\d{4})-", date)
    return _work(
        title=title or label,
        authors=tuple(_person(name) for name in names[:_MAX_AUTHORS] if name),
        year=int(digits[1]) if digits else None,
        doi=next((_doi(each) for each in _values(claims, "P356")), ""),
        arxiv_id=next((_text(each).lower() for each in _values(claims, "P818")), ""),
        wikidata=_last(told.get("id"), r"Q\d{1,20}"),
    )


def _values(claims: Mapping[str, Any], name: str) -> Iterator[Any]:
    for claim in _list(claims.get(name)):
        yield _dict(_dict(_dict(claim).get("mainsnak")).get("datavalue")).get("value")


def _person(name: str) -> Person:
    """A name in its natural order: the last word is the family's."""
    given, _, family = name.rpartition(" ")
    return Person(family, given)


def _doi(value: Any) -> str:
    found = re.search(r"10\.\d{4,9}/\S{1,300}", _text(value).lower())
    return found.group() if found else ""


def _last(value: Any, form: str) -> str:
    """What stands behind the last slash of an address, if it has that form."""
    last = _text(value).rpartition("/")[2]
    return last if re.fullmatch(form, last) else ""


def _year(value: Any) -> int | None:
    return value if isinstance(value, int) and 1000 <= value <= 2200 else None


def _text(value: Any) -> str:
    return " ".join(clean(value[:_CHARS]).split()) if isinstance(value, str) else ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

"""Small real servers that answer as OpenAlex, Crossref and Wikidata do, from the same works."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.support.site import Exchange, Request, Site


@dataclass(frozen=True)
class KnownWork:
    """A work that a catalogue has."""

    number: int
    title: str
    year: int
    doi: str = ""
    arxiv_id: str = ""
    authors: tuple[str, ...] = ()
    """In their natural order."""
    container: str = ""

    @property
    def any_doi(self) -> str:
        return self.doi or (f"10.48550/arxiv.{self.arxiv_id}" if self.arxiv_id else "")


class CatalogueServer(Site):
    """`origin` is what JOBS_…_BASE_URL takes."""

    def __init__(self, works: Iterable[KnownWork] = ()) -> None:
        super().__init__()
        self.works = list(works)
        self.by_doi = {work.any_doi: work for work in self.works if work.any_doi}
        self.answered_questions: list[str] = []
        """DOIs and titles that were asked for, and answered."""

    def with_dois(self, dois: Iterable[str]) -> list[KnownWork]:
        """Return the works with these DOIs; each counts as answered."""
        lower_dois = [doi.lower() for doi in dois]
        self.answered_questions += lower_dois
        return [self.by_doi[doi] for doi in lower_dois if doi in self.by_doi]

    def with_words(self, text: str) -> list[KnownWork]:
        """Return the works whose titles share the most words with a text."""
        self.answered_questions.append(text)
        words = set(re.findall(r"\w+", text.lower()))
        ranked = [
            (len(words & set(re.findall(r"\w+", work.title.lower()))), work) for work in self.works
        ]
        return [work for shared, work in sorted(ranked, key=lambda each: -each[0]) if shared][:5]


class OpenAlexServer(CatalogueServer):
    def answer(self, exchange: Exchange, request: Request) -> None:
        """Answer as this catalogue does."""
        doi_filter = request.parameters["filter"]
        kind, _, value = doi_filter.partition(":")
        if "," in doi_filter:
            send(exchange, {"error": "Invalid query parameters error."}, 400)
        elif kind == "doi":
            self._send(exchange, self.with_dois(value.split("|")))
        else:
            self._send(exchange, self.with_words(value))

    def _send(self, exchange: Exchange, works: list[KnownWork]) -> None:
        results = [
            {
                "id": f"https://openalex.org/W{work.number}",
                "doi": f"https://doi.org/{work.any_doi}" if work.any_doi else None,
                "title": work.title,
                "publication_year": work.year,
                "authorships": [{"author": {"display_name": name}} for name in work.authors],
                "primary_location": {"source": {"display_name": work.container}},
            }
            for work in works
        ]
        send(exchange, {"meta": {"count": len(results)}, "results": results})


class CrossrefServer(CatalogueServer):
    def answer(self, exchange: Exchange, request: Request) -> None:
        """Answer as this catalogue does."""
        if "filter" in request.parameters:
            filters = request.parameters["filter"].split(",")
            works = self.with_dois(each.removeprefix("doi:") for each in filters)
        else:
            works = self.with_words(request.parameters["query.bibliographic"])
        items = [
            {
                "DOI": work.any_doi,
                "title": [work.title],
                "author": [
                    {"given": name.rpartition(" ")[0], "family": name.rpartition(" ")[2]}
                    for name in work.authors
                ],
                "issued": {"date-parts": [[work.year, 1]]},
                "container-title": [work.container] if work.container else [],
            }
            for work in works
        ]
        send(exchange, {"status": "ok", "message": {"total-results": len(items), "items": items}})


class WikidataServer(CatalogueServer):
    people: dict[str, str]
    """Labels of authors who are items; a work names them by their ids."""

    def __init__(self, works: Iterable[KnownWork] = (), people: dict[str, str] | None = None):
        super().__init__(works)
        self.people = people or {}

    def answer(self, exchange: Exchange, request: Request) -> None:
        """Answer as this catalogue does."""
        parameters = request.parameters
        if parameters["action"] == "wbgetentities":
            ids = parameters["ids"].split("|")
            entities = {
                f"Q{work.number}": self._entity(work)
                for work in self.works
                if f"Q{work.number}" in ids
            }
            entities |= {
                each: {"id": each, "labels": {"mul": {"language": "mul", "value": name}}}
                for each, name in self.people.items()
                if each in ids
            }
            send(exchange, {"entities": entities, "success": 1})
            return
        query = parameters["srsearch"]
        if query.startswith("haswbstatement:"):
            statements = [
                each.split("=") for each in query.removeprefix("haswbstatement:").split("|")
            ]
            prefix = {"P818": "10.48550/arxiv.", "P356": ""}
            works = self.with_dois(prefix[name] + value for name, value in statements)
        else:
            works = self.with_words(query.partition(" haswbstatement:")[0])
        search_results = [{"ns": 0, "title": f"Q{work.number}"} for work in works]
        send(exchange, {"batchcomplete": "", "query": {"search": search_results}})

    def _entity(self, work: KnownWork) -> dict[str, Any]:
        values: dict[str, list[Any]] = {
            "P356": [work.doi.upper()] if work.doi else [],
            "P818": [work.arxiv_id] if work.arxiv_id else [],
            "P577": [{"time": f"+{work.year}-00-00T00:00:00Z"}],
        }
        claims = {
            name: [{"mainsnak": _snak(each)} for each in property_values]
            for name, property_values in values.items()
        }
        for ordinal, author in reversed(list(enumerate(work.authors, 1))):
            is_item = author in self.people
            claims.setdefault("P50" if is_item else "P2093", []).append(
                {
                    "mainsnak": _snak({"id": author} if is_item else author),
                    "qualifiers": {"P1545": [_snak(str(ordinal))]},
                }
            )
        return {
            "id": f"Q{work.number}",
            "labels": {"en": {"language": "en", "value": work.title}},
            "claims": claims,
        }


def _snak(value: Any) -> dict[str, Any]:
    return {"datavalue": {"value": value}}


def send(exchange: Exchange, value: Any, status: int = 200) -> None:
    exchange.send(status, json.dumps(value).encode(), content_type="application/json")

"""Crossref: DOIs in batches, and a title at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from switchyard.services.pipeline.citations.linking.catalogue import (
    BATCH_SIZE,
    MAX_AUTHORS,
    MAX_RESULTS,
    Catalogue,
    by_key,
    dict_in,
    doi_in,
    dois_of,
    list_in,
    text_in,
    work_of,
    year_in,
)
from switchyard.services.pipeline.citations.linking.questions import WorkQuestion
from switchyard.services.pipeline.citations.reference import Person
from switchyard.services.pipeline.citations.works import CitedWork


class Crossref(Catalogue):
    """https://api.crossref.org"""

    name = "crossref"
    label = "Crossref"
    _FIELDS = "DOI,title,author,issued,container-title"

    async def by_identifiers(self, questions: Sequence[WorkQuestion]) -> dict[str, CitedWork]:
        asked = dois_of(questions)
        if not asked:
            return {}
        told = await self._get(
            "/works",
            filter=",".join(f"doi:{doi}" for doi in asked),
            rows=str(2 * BATCH_SIZE),
            select=self._FIELDS,
        )
        works = [_work_from_record(each) for each in self._records(told, "message", "items")]
        return by_key(works, asked)

    async def search(self, question: WorkQuestion) -> list[CitedWork]:
        said = (question.value, question.author, str(question.year or ""))
        asked = {"query.bibliographic": " ".join(filter(None, said)), "rows": str(MAX_RESULTS)}
        told = await self._get("/works", **asked, select=self._FIELDS)
        works = [
            _work_from_record(each)
            for each in self._records(told, "message", "items")[:MAX_RESULTS]
        ]
        return [work for work in works if work is not None]


def _work_from_record(record: Mapping[str, Any]) -> CitedWork | None:
    dates = list_in(dict_in(record.get("issued")).get("date-parts"))
    first = list_in(dates[0]) if dates else []
    people = [dict_in(each) for each in list_in(record.get("author"))[:MAX_AUTHORS]]
    persons = [
        Person(text_in(each.get("family")) or text_in(each.get("name")), text_in(each.get("given")))
        for each in people
    ]
    return work_of(
        title=text_in(next(iter(list_in(record.get("title"))), "")),
        authors=tuple(person for person in persons if person.family),
        year=year_in(first[0]) if first else None,
        container=text_in(next(iter(list_in(record.get("container-title"))), "")),
        doi=doi_in(record.get("DOI")),
    )

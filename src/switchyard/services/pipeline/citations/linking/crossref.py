"""Look up works in Crossref: DOIs in batches, titles one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from switchyard.services.common.json_values import dict_in, list_in
from switchyard.services.pipeline.citations.cited_works import CitedWork
from switchyard.services.pipeline.citations.linking.catalogue import (
    BATCH_SIZE,
    MAX_AUTHORS,
    MAX_RESULTS,
    Catalogue,
    doi_in,
    keys_by_doi,
    text_in,
    work_or_none,
    works_by_key,
    year_in,
)
from switchyard.services.pipeline.citations.linking.work_questions import WorkQuestion
from switchyard.services.pipeline.citations.reference import Person


class Crossref(Catalogue):
    """https://api.crossref.org"""

    name = "crossref"
    label = "Crossref"
    _FIELDS = "DOI,title,author,issued,container-title"

    async def find_by_identifiers(self, questions: Sequence[WorkQuestion]) -> dict[str, CitedWork]:
        key_by_doi = keys_by_doi(questions)
        if not key_by_doi:
            return {}
        answer = await self._get(
            "/works",
            filter=",".join(f"doi:{doi}" for doi in key_by_doi),
            rows=str(2 * BATCH_SIZE),
            select=self._FIELDS,
        )
        works = [_work_from_record(each) for each in self._records(answer, "message", "items")]
        return works_by_key(works, key_by_doi)

    async def search(self, question: WorkQuestion) -> list[CitedWork]:
        terms = (question.value, question.author, str(question.year or ""))
        params = {"query.bibliographic": " ".join(filter(None, terms)), "rows": str(MAX_RESULTS)}
        answer = await self._get("/works", **params, select=self._FIELDS)
        works = [
            _work_from_record(each)
            for each in self._records(answer, "message", "items")[:MAX_RESULTS]
        ]
        return [work for work in works if work is not None]


def _work_from_record(record: Mapping[str, Any]) -> CitedWork | None:
    dates = list_in(dict_in(record.get("issued")).get("date-parts"))
    year_month_day = list_in(dates[0]) if dates else []
    authors = [
        Person(text_in(each.get("family")) or text_in(each.get("name")), text_in(each.get("given")))
        for each in map(dict_in, list_in(record.get("author"))[:MAX_AUTHORS])
    ]
    return work_or_none(
        title=text_in(next(iter(list_in(record.get("title"))), "")),
        authors=tuple(author for author in authors if author.family),
        year=year_in(year_month_day[0]) if year_month_day else None,
        container=text_in(next(iter(list_in(record.get("container-title"))), "")),
        doi=doi_in(record.get("DOI")),
    )

"""Look up works in OpenAlex: DOIs in batches, titles one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from switchyard.services.common.json_values import dict_in, list_in
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.citations.cited_works import CitedWork
from switchyard.services.pipeline.citations.linking.catalogue import (
    MAX_AUTHORS,
    MAX_RESULTS,
    Catalogue,
    doi_in,
    keys_by_doi,
    last_part,
    person_of,
    text_in,
    work_or_none,
    works_by_key,
    year_in,
)
from switchyard.services.pipeline.citations.linking.work_questions import WorkQuestion


class OpenAlex(Catalogue):
    """https://docs.openalex.org"""

    name = "openalex"
    label = "OpenAlex"
    _FIELDS = "id,doi,ids,title,publication_year,authorships,primary_location"

    @classmethod
    def secret_params(cls, settings: Settings) -> dict[str, str]:
        """Return the API key, if there is one; without it, OpenAlex answers few requests a day."""
        key = settings.openalex_api_key
        return {} if key is None else {"api_key": key.get_secret_value()}

    async def find_by_identifiers(self, questions: Sequence[WorkQuestion]) -> dict[str, CitedWork]:
        key_by_doi = keys_by_doi(questions)
        if not key_by_doi:
            return {}
        answer = await self._get(
            "/works",
            **{"filter": "doi:" + "|".join(key_by_doi), "per-page": "100", "select": self._FIELDS},
        )
        works = [_work_from_record(each) for each in self._records(answer, "results")]
        return works_by_key(works, key_by_doi)

    async def search(self, question: WorkQuestion) -> list[CitedWork]:
        # A comma would begin another filter, but the words contain no signs.
        params = {"filter": f"title.search:{question.value}", "per-page": str(MAX_RESULTS)}
        answer = await self._get("/works", **params, select=self._FIELDS)
        works = [_work_from_record(each) for each in self._records(answer, "results")[:MAX_RESULTS]]
        return [work for work in works if work is not None]


def _work_from_record(record: Mapping[str, Any]) -> CitedWork | None:
    location = dict_in(record.get("primary_location"))
    authorships = [dict_in(each) for each in list_in(record.get("authorships"))]
    names = [text_in(dict_in(each.get("author")).get("display_name")) for each in authorships]
    return work_or_none(
        title=text_in(record.get("title")),
        authors=tuple(person_of(name) for name in names[:MAX_AUTHORS] if name),
        year=year_in(record.get("publication_year")),
        container=text_in(dict_in(location.get("source")).get("display_name")),
        doi=doi_in(record.get("doi")),
        openalex=last_part(record.get("id"), r"W\d{1,20}"),
    )

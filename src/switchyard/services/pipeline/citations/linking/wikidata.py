"""Look up works in Wikidata: identifiers in batches, titles one by one, authors by their own items.

An author is a text (P2093) or an item of its own (P50), in the order that P1545 says. P1932 may
give the item's name on the work; where it does not, the item's label is fetched.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from switchyard.services.common.json_values import dict_in, list_in
from switchyard.services.pipeline.citations.cited_works import CitedWork
from switchyard.services.pipeline.citations.linking.catalogue import (
    ARXIV_DOI,
    BATCH_SIZE,
    MAX_AUTHORS,
    MAX_RESULTS,
    Catalogue,
    doi_in,
    is_arxiv,
    keys_by_doi,
    last_part,
    person_of,
    text_in,
    work_or_none,
    works_by_key,
)
from switchyard.services.pipeline.citations.linking.work_questions import WorkQuestion
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse

MAX_LISTED_AUTHORS = 10
"""Authors of a work whose own items are looked up: the first ones. Matching needs no more."""
_ITEM = r"Q[0-9]{1,20}"
_LANGUAGES = ("en", "mul")


class Wikidata(Catalogue):
    """https://www.wikidata.org/w/api.php"""

    name = "wikidata"
    label = "Wikidata"
    takes_mail = False

    async def find_by_identifiers(self, questions: Sequence[WorkQuestion]) -> dict[str, CitedWork]:
        key_by_doi = keys_by_doi(questions)
        if not key_by_doi:
            return {}
        statements = [
            f"P818={doi.removeprefix(ARXIV_DOI)}" if is_arxiv(doi) else f"P356={doi.upper()}"
            for doi in key_by_doi
        ]
        works = await self._find_works("haswbstatement:" + "|".join(statements), 2 * BATCH_SIZE)
        return works_by_key(works, key_by_doi)

    async def search(self, question: WorkQuestion) -> list[CitedWork]:
        # Only items with a DOI or a date of publication: most others are no works.
        return await self._find_works(f"{question.value} haswbstatement:P356|P577", MAX_RESULTS)

    async def _find_works(self, query: str, limit: int) -> list[CitedWork]:
        answer = await self._get(
            "", action="query", list="search", format="json", srsearch=query, srlimit=str(limit)
        )
        titles = (each.get("title") for each in self._records(answer, "query", "search"))
        ids = [each for each in titles if isinstance(each, str) and re.fullmatch(_ITEM, each)]
        items = await self._fetch_items(ids[:limit], "labels|claims")
        unnamed_items = {
            author.item: None  # a dictionary keeps their order
            for item in items
            for author in _authors(dict_in(item.get("claims")))[:MAX_LISTED_AUTHORS]
            if not author.name
        }
        author_items = await self._fetch_items(list(unnamed_items), "labels")
        names = {last_part(each.get("id"), _ITEM): _label(each) for each in author_items}
        works = (_work_from_item(item, names) for item in items)
        return [work for work in works if work is not None]

    async def _fetch_items(self, ids: Sequence[str], props: str) -> list[dict[str, Any]]:
        """Fetch items; those that do not exist are left out."""
        items: list[dict[str, Any]] = []
        for start in range(0, len(ids), BATCH_SIZE):
            answer = await self._get(
                "",
                action="wbgetentities",
                format="json",
                props=props,
                languages="|".join(_LANGUAGES),
                ids="|".join(ids[start : start + BATCH_SIZE]),
            )
            entities = answer.get("entities")
            if not isinstance(entities, dict):
                raise InvalidSourceResponse("Wikidata's answer has no entities")
            items += [each for each in entities.values() if isinstance(each, dict)]
        return items


@dataclass(frozen=True, slots=True)
class _Author:
    place: float
    """Place in the order of the work's authors."""
    name: str
    """Empty where only the item has the name."""
    item: str = ""


def _authors(claims: Mapping[str, Any]) -> list[_Author]:
    authors = [
        _Author(_place(claim), text_in(_value(dict_in(claim).get("mainsnak"))))
        for claim in list_in(claims.get("P2093"))[:MAX_AUTHORS]
    ]
    for claim in list_in(claims.get("P50"))[:MAX_AUTHORS]:
        value = dict_in(_value(dict_in(claim).get("mainsnak")))
        item = last_part(value.get("id"), _ITEM)
        authors.append(_Author(_place(claim), text_in(_qualifier(claim, "P1932")), item))
    identified = [author for author in authors if author.name or author.item]
    return sorted(identified, key=lambda author: author.place)[:MAX_AUTHORS]


def _place(claim: Any) -> float:
    ordinal = text_in(_qualifier(claim, "P1545"))
    return int(ordinal) if re.fullmatch(r"[0-9]{1,6}", ordinal) else math.inf


def _work_from_item(item: Mapping[str, Any], names: Mapping[str, str]) -> CitedWork | None:
    claims = dict_in(item.get("claims"))
    title = next((text_in(dict_in(each).get("text")) for each in _values(claims, "P1476")), "")
    date = next((text_in(dict_in(each).get("time")) for each in _values(claims, "P577")), "")
    author_names = [each.name or names.get(each.item, "") for each in _authors(claims)]
    digits = re.match(r"\+?(\d{4})-", date)
    return work_or_none(
        title=title or _label(item),
        authors=tuple(person_of(name) for name in author_names if name),
        year=int(digits[1]) if digits else None,
        doi=next((doi_in(each) for each in _values(claims, "P356")), ""),
        arxiv_id=next((text_in(each).lower() for each in _values(claims, "P818")), ""),
        wikidata=last_part(item.get("id"), _ITEM),
    )


def _label(item: Mapping[str, Any]) -> str:
    labels = dict_in(item.get("labels"))
    texts = (text_in(dict_in(labels.get(language)).get("value")) for language in _LANGUAGES)
    return next(filter(None, texts), "")


def _values(claims: Mapping[str, Any], name: str) -> Iterator[Any]:
    for claim in list_in(claims.get(name)):
        yield _value(dict_in(claim).get("mainsnak"))


def _qualifier(claim: Any, name: str) -> Any:
    snaks = list_in(dict_in(dict_in(claim).get("qualifiers")).get(name))
    return _value(snaks[0]) if snaks else None


def _value(snak: Any) -> Any:
    return dict_in(dict_in(snak).get("datavalue")).get("value")

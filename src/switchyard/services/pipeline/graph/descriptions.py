"""Describe nodes of the graph from what documents and references say: the keys by which they are
found again, and the text that is shown.

The input comes from anybody's files. What this module returns is bounded, and fits into any
database and any file.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from switchyard.services.common.json_values import list_in
from switchyard.services.pipeline.ledger.graph_identity import identifies_work
from switchyard.services.pipeline.records.graph import (
    EdgeKind,
    NewEdge,
    NodeDescription,
    NodeKind,
    Provenance,
)
from switchyard.services.pipeline.sources.arxiv.arxiv_feed import ArxivId

MAX_LABEL_LENGTH = 500
"""Longest label, in characters."""
MAX_KEY_LENGTH = 200
"""Longest key, in characters; a longer one is cut, and ends in a hash of the whole."""
MAX_AUTHORS = 20
"""Most authors of a cited work; a document may have ten times as many."""
MAX_TOPICS = 50
MAX_CITED_WORKS = 5_000
"""Most works that a document cites."""
YEARS = range(1000, 2101)

_UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+"
)
_NON_WORD = re.compile(r"[\W_]+")
_DOI = re.compile(r"10\.\d{4,9}/[^\s\"<>]+")
_ARXIV_DOI = "10.48550/arxiv."


def tidy(text: object, max_length: int = MAX_LABEL_LENGTH) -> str:
    """Shorten a text to one line, without characters that would control a terminal or that a
    database refuses."""
    if not isinstance(text, str):
        return ""
    line = " ".join(_UNPRINTABLE.sub(" ", text[: 4 * max_length]).split())
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def normalize_name(text: str) -> str:
    """Return a title or name in the form in which it is compared: words in lower case, without
    accents and signs."""
    decomposed = unicodedata.normalize("NFKD", text[: 4 * MAX_LABEL_LENGTH])
    letters = "".join(each for each in decomposed if not unicodedata.combining(each))
    return " ".join(_NON_WORD.sub(" ", letters).casefold().split())


def bounded_key(scheme: str, name: str) -> str:
    """Return a key of at most MAX_KEY_LENGTH characters."""
    full_key = f"{scheme}:{name}"
    if len(full_key) <= MAX_KEY_LENGTH:
        return full_key
    return f"{full_key[: MAX_KEY_LENGTH - 17]}-{sha256(full_key.encode()).hexdigest()[:16]}"


def doi_key(doi: object) -> str | None:
    """Return `doi:10.1000/182`, or `arxiv:1605.08386` for a DOI of arXiv; None where it is no
    DOI."""
    match = _DOI.search(tidy(doi, MAX_KEY_LENGTH).casefold())
    if match is None:
        return None
    name = match.group().rstrip(".,;)")
    if name.startswith(_ARXIV_DOI):
        return arxiv_key(name.removeprefix(_ARXIV_DOI))
    return bounded_key("doi", name)


def arxiv_key(name: object) -> str | None:
    """Return `arxiv:1605.08386`, without the version; None where it is no id of arXiv."""
    try:
        return ArxivId.parse(tidy(name, MAX_KEY_LENGTH)).source
    except ValueError:
        return None


def describe_document(
    document_id: str,
    *,
    title: object,
    source: object = None,
    entry: Mapping[str, Any] | None = None,
) -> NodeDescription:
    """Describe a document by its title and by `entry`, the metadata of its source."""
    entry = entry or {}
    source_key = arxiv_key(source) if str(source or "").startswith("arxiv:") else None
    keys = _distinct_keys([source_key, arxiv_key(entry.get("id")), doi_key(entry.get("doi"))])
    names = [tidy(name) for name in list_in(entry.get("authors"))[: 10 * MAX_AUTHORS]]
    people = [person for name in names if (person := _author(*_name_parts(name))) is not None]
    label = tidy(title)
    year = _year(str(entry.get("published") or "")[:4])
    family = normalize_name(_name_parts(names[0])[0]) if names else ""
    edges = [NewEdge(EdgeKind.WRITTEN_BY, person, provenance="metadata") for person in people]
    if venue := _venue(tidy(entry.get("journal_ref"))):
        edges.append(NewEdge(EdgeKind.PUBLISHED_IN, venue, provenance="metadata"))
    for topic in list_in(entry.get("categories"))[:MAX_TOPICS]:
        if name := tidy(topic, MAX_KEY_LENGTH):
            key = bounded_key("topic", name.casefold())
            node = NodeDescription(NodeKind.TOPIC, name, (key,))
            edges.append(NewEdge(EdgeKind.ABOUT, node, provenance="metadata"))
    normal_title = normalize_name(label)
    title_key = _title_key(normal_title, family, year)
    return NodeDescription(
        NodeKind.DOCUMENT,
        label or document_id,
        (*keys, *_distinct_keys([title_key])),
        title=_compared_title(normal_title, title_key),
        author=family,
        year=year,
        provenance="document",
        document_id=document_id,
        edges=tuple(edges),
    )


def citation_edges(
    references: Sequence[Mapping[str, Any]], citations: Sequence[Mapping[str, Any]] = ()
) -> list[NewEdge]:
    """Return the edges to the works that a document cites, from the result of `process_references`.
    An edge's weight is the number of places that cite the work, 1 at least. References that name no
    work are left out."""
    citation_counts: dict[int, int] = {}
    for citation in citations:
        for index in list_in(citation.get("references")):
            if isinstance(index, int):
                citation_counts[index] = citation_counts.get(index, 0) + 1
    edges = []
    for index, reference in enumerate(references[:MAX_CITED_WORKS]):
        link = reference.get("link") or {}
        linked = link.get("work") if link.get("status") == "linked" else None
        work = (
            describe_work({**reference, **linked}, "link") if linked else describe_work(reference)
        )
        if work is not None:
            provenance = tidy(link.get("provider")) if linked else ""
            weight = float(max(1, citation_counts.get(index, 0)))
            edges.append(NewEdge(EdgeKind.CITES, work, weight, provenance or "reference"))
    return edges


def describe_work(
    reference: Mapping[str, Any], provenance: Provenance = "reference"
) -> NodeDescription | None:
    """Describe a work by its fields in a parsed reference, or by those of a catalogue; None where
    the fields name no work."""
    keys = _distinct_keys(
        [
            doi_key(reference.get("doi")),
            arxiv_key(reference.get("arxiv_id")),
            *(
                bounded_key(scheme, name.upper())
                for scheme in ("openalex", "wikidata")
                if (name := tidy(reference.get(scheme), MAX_KEY_LENGTH))
            ),
        ]
    )
    title, year = tidy(reference.get("title")), _year(reference.get("year"))
    people = [each for each in list_in(reference.get("authors")) if isinstance(each, Mapping)]
    names = [(tidy(each.get("family")), tidy(each.get("given"))) for each in people[:MAX_AUTHORS]]
    family = normalize_name(names[0][0]) if names else ""
    normal_title = normalize_name(title)
    title_key = _title_key(normal_title, family, year)
    if not keys and title_key is None:
        # Only the title is left: it must be long enough to tell the work from others.
        if not identifies_work(normal_title):
            return None
        title_key = bounded_key("title", normal_title)
    edges = [
        NewEdge(EdgeKind.WRITTEN_BY, person)
        for name in names
        if (person := _author(*name)) is not None
    ]
    if venue := _venue(tidy(reference.get("container"))):
        edges.append(NewEdge(EdgeKind.PUBLISHED_IN, venue))
    return NodeDescription(
        NodeKind.WORK,
        title or tidy(reference.get("text")) or keys[0],
        (*keys, *_distinct_keys([title_key])),
        title=_compared_title(normal_title, title_key),
        author=family,
        year=year,
        provenance=provenance,
        edges=tuple(edges),
    )


def similarity_edges(links: Iterable[Mapping[str, Any]]) -> list[NewEdge]:
    """Return the edges to the documents that `link_content` has found to be similar."""
    return [
        NewEdge(
            EdgeKind.SIMILAR,
            NodeDescription(
                NodeKind.DOCUMENT,
                tidy(link.get("title")) or str(link["document_id"]),
                document_id=str(link["document_id"]),
            ),
            float(link["similarity"]),
            "similarity",
        )
        for link in links
    ]


def _title_key(title: str, family: str, year: int | None) -> str | None:
    """Make the key of a work from its title, year and first author; None if one of these is
    unknown."""
    if not (title and family and year):
        return None
    return bounded_key("title", f"{title}|{year}|{family}")


def _compared_title(normal_title: str, title_key: str | None) -> str:
    """Return the title by which a node is compared with others; empty for one that does not tell a
    work from others."""
    return normal_title if title_key or identifies_work(normal_title) else ""


def _author(family: str, given_names: str) -> NodeDescription | None:
    """Describe a person by the name as it is written: J. Roe and Jane Roe may be two people."""
    words = normalize_name(f"{family} {given_names}")
    if not words:
        return None
    label = f"{given_names} {family}".strip()
    return NodeDescription(NodeKind.AUTHOR, tidy(label), (bounded_key("author", words),))


def _name_parts(name: str) -> tuple[str, str]:
    """Return family and given name of `Jane Q. Roe` or `Roe, Jane Q.`."""
    family, comma, given_names = name.partition(",")
    if comma:
        return family.strip(), given_names.strip()
    given_names, _, family = name.rpartition(" ")
    return family, given_names


def _venue(name: str) -> NodeDescription | None:
    """Describe the venue of a work by its name, cut off before a volume, pages or a year."""
    venue = re.split(r"[\s,(;:]+(?:vol|no|pp|p|art)?\.?\s*\(?\d", name, maxsplit=1, flags=re.I)[0]
    words = normalize_name(venue)
    if not re.search(r"[^\W\d_]{2}", words):
        return None
    return NodeDescription(NodeKind.VENUE, venue.strip(" .,"), (bounded_key("venue", words),))


def _year(value: object) -> int | None:
    try:
        year = int(str(value))
    except ValueError:
        return None
    return year if year in YEARS else None


def _distinct_keys(keys: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in keys if each is not None))

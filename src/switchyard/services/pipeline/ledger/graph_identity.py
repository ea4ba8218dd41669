"""Decide which descriptions are of one node: pure rules, for the transaction that looks nodes
up."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from switchyard.services.pipeline.records.graph import TRUST, NodeDescription, NodeKind

SCHEMES_BEST_FIRST = ("doi", "arxiv", "openalex", "wikidata", "document", "title")
"""Schemes of keys, in the order in which one of them becomes a node's name."""
UNIQUE_SCHEMES = ("doi", "arxiv", "openalex", "wikidata")
"""Schemes of which a work has one key each: two descriptions with different keys are two works,
whatever their titles. The first scheme that both descriptions have decides."""
MAX_YEAR_DIFFERENCE = 1
"""Greatest difference between the years of a preprint and of the printed work."""
MIN_TITLE_WORDS, MIN_TITLE_LENGTH = 4, 20
"""A title of at least so many words and characters identifies a work by itself."""


@dataclass(slots=True)
class Node:
    """A node as a transaction sees it."""

    id: int
    kind: NodeKind
    key: str
    label: str
    title: str
    author: str
    year: int | None
    provenance: str
    keys: set[str] = field(default_factory=set)
    documents: set[str] = field(default_factory=set)
    """Ids of the documents that are this work."""
    is_new: bool = False
    is_changed: bool = False


def scheme_of(key: str) -> str:
    """Return the scheme of a key: `doi` of `doi:10.1000/182`."""
    return key.partition(":")[0]


def best_key(keys: Iterable[str]) -> str:
    """Return the key that names a node."""

    def sort_key(key: str) -> tuple[int, str]:
        scheme = scheme_of(key)
        return (
            SCHEMES_BEST_FIRST.index(scheme)
            if scheme in SCHEMES_BEST_FIRST
            else len(SCHEMES_BEST_FIRST),
            key,
        )

    return min(keys, key=sort_key)


def contradict(keys: Collection[str], other_keys: Collection[str]) -> bool:
    """Return whether two sets of keys can't be of one work."""
    for scheme in UNIQUE_SCHEMES:
        keys_of_scheme = {key for key in keys if scheme_of(key) == scheme}
        others_of_scheme = {key for key in other_keys if scheme_of(key) == scheme}
        if keys_of_scheme and others_of_scheme:
            return not keys_of_scheme & others_of_scheme
    return False


def identifies_work(title: str) -> bool:
    """Return whether a title is long enough to identify a work where year or author are unknown."""
    return len(title) >= MIN_TITLE_LENGTH and len(title.split()) >= MIN_TITLE_WORDS


def same_by_title(node: Node, other: NodeDescription | Node) -> bool:
    """Return whether both are one work by title, year and first author, as far as these are known.

    Two documents are never one work by title: yearly reports share a title, and nothing else tells
    them apart."""
    if not node.title or node.title != other.title:
        return False
    if node.documents and _documents_of(other) - node.documents:
        return False
    years = [year for year in (node.year, other.year) if year is not None]
    authors = [author for author in (node.author, other.author) if author]
    if max(years, default=0) - min(years, default=0) > MAX_YEAR_DIFFERENCE or len(set(authors)) > 1:
        return False
    return len(years) + len(authors) == 4 or identifies_work(node.title)


def has_only_title(node: Node) -> bool:
    """Return whether nothing but its title identifies a work."""
    return not any(scheme_of(key) in UNIQUE_SCHEMES for key in node.keys)


def same_by_key(node: Node, key: str, description: NodeDescription) -> bool:
    """Return whether the node that has this key is the node that is described."""
    if contradict(node.keys, description.keys):
        return False
    return scheme_of(key) != "title" or not (node.documents and _documents_of(description))


def trust_of(provenance: str) -> int:
    """Return the rank of a provenance, higher for one that is trusted more."""
    return [str(each) for each in TRUST].index(provenance) if provenance in TRUST else 0


def _documents_of(node: NodeDescription | Node) -> set[str]:
    if isinstance(node, Node):
        return node.documents
    return {node.document_id} if node.document_id else set()

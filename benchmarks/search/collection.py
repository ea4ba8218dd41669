"""The documents and the queries, as they stand in the two text files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent
_HEADING = re.compile(r"\[(?P<name>\S+)\] (?P<title>.+)")
NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Document:
    name: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Query:
    document: str | None
    """The one that answers it; None where none does."""
    kind: str
    text: str


def documents() -> list[Document]:
    found = []
    for block in (_FOLDER / "documents.txt").read_text().strip().split("\n\n"):
        heading, _, text = block.partition("\n")
        match = _HEADING.fullmatch(heading)
        if match is None:
            raise ValueError(f"no heading: {heading}")
        found.append(Document(match["name"], match["title"], f"{match['title']}\n\n{text}"))
    return found


def queries() -> list[Query]:
    lines = (_FOLDER / "queries.txt").read_text().splitlines()
    parts = [line.split(" | ", 2) for line in lines if line and not line.startswith("#")]
    return [Query(None if name == NOTHING else name, kind, text) for name, kind, text in parts]

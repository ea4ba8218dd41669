"""CPU-bound work on references, for threads and processes of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any


def found(pages: Sequence[str]) -> dict[str, Any]:
    """The references of a paper, not yet cut into fields, and its text without them."""
    from switchyard.services.citations.sections import split

    paper = split(pages)
    return {"references": [asdict(raw) for raw in paper.references], "body": paper.body}


def listed(text: str) -> list[str]:
    """The references of a text that has nothing else: with blank lines between them, else one to
    a line."""
    from switchyard.services.citations.sections import MAX_REFERENCES
    from switchyard.services.citations.tokens import MAX_REFERENCE_CHARS

    blocks = [block for block in text.replace("\r", "").split("\n\n") if block.strip()]
    if len(blocks) < 2:
        blocks = [line for line in text.splitlines() if line.strip()]
    return [block.strip()[:MAX_REFERENCE_CHARS] for block in blocks[:MAX_REFERENCES]]


def parsed(texts: Sequence[str]) -> list[dict[str, Any]]:
    """References, cut into fields."""
    from switchyard.services.citations.parsing import OfflineParser

    return [reference.as_json() for reference in OfflineParser().parse_all(texts)]


def put_together(
    raw: Sequence[Mapping[str, Any]], fields: Sequence[Mapping[str, Any]], body: Sequence[str]
) -> dict[str, Any]:
    """References with their places in the list, and where the text cites them."""
    from switchyard.services.citations.reference import Reference
    from switchyard.services.citations.sections import RawReference, citations_in

    entries = [RawReference(**each) for each in raw]
    references = [Reference.of(each) for each in fields]
    return {
        "references": [
            {"label": entry["label"], "page": entry["page"], **reference}
            for entry, reference in zip(raw, fields, strict=True)
        ],
        "citations": [asdict(each) for each in citations_in(body, entries, references)],
    }

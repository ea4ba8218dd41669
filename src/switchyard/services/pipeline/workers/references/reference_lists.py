"""CPU-bound work on references, which runs in threads and processes of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchyard.services.pipeline.citations.engines.grobid_tei import TeiEntry


def find_references(pages: Sequence[str]) -> dict[str, Any]:
    """Find the references of a paper, not yet cut into fields, and the text without them."""
    from switchyard.services.pipeline.citations.reference_sections import split_references

    paper = split_references(pages)
    return {"references": [asdict(raw) for raw in paper.references], "body": paper.body}


def split_list(text: str) -> list[str]:
    """Split a text that is a list of references: at blank lines, else one to a line."""
    from switchyard.services.pipeline.citations.reference_sections import MAX_REFERENCES
    from switchyard.services.pipeline.citations.tokens import MAX_REFERENCE_CHARS

    blocks = [block for block in text.replace("\r", "").split("\n\n") if block.strip()]
    if len(blocks) < 2:
        blocks = [line for line in text.splitlines() if line.strip()]
    return [block.strip()[:MAX_REFERENCE_CHARS] for block in blocks[:MAX_REFERENCES]]


def references_of_tei(entries: Sequence[TeiEntry], pages: Sequence[str]) -> dict[str, Any]:
    """Return what `find_references` returns, for references that another program has found in the
    whole paper, each with its `fields`. They are numbered if the text cites by numbers."""
    from switchyard.services.pipeline.citations.reference_sections import cites_by_number

    is_numbered = cites_by_number(pages)
    return {
        "references": [
            {
                "text": entry.reference.text,
                "label": str(number) if is_numbered else "",
                "page": entry.boxes[0].page if entry.boxes else 1,
                "boxes": [asdict(box) for box in entry.boxes],
                "fields": entry.reference.as_json(),
            }
            for number, entry in enumerate(entries, start=1)
        ],
        "body": list(pages),
    }


def with_citations(
    raw_references: Sequence[Mapping[str, Any]],
    parsed_references: Sequence[Mapping[str, Any]],
    body: Sequence[str],
) -> dict[str, Any]:
    """Return references with their labels and their places in the paper, and where the text cites
    them. `raw_references` are as `find_references` returns them; `parsed_references` are the same
    ones, cut into fields."""
    from switchyard.services.pipeline.citations.reference import Reference
    from switchyard.services.pipeline.citations.reference_sections import (
        RawReference,
        find_citations,
    )

    entries = [RawReference(each["text"], each["label"], each["page"]) for each in raw_references]
    references = [Reference.from_json(each) for each in parsed_references]
    return {
        "references": [
            {
                name: raw_reference[name]
                for name in ("label", "page", "boxes")
                if name in raw_reference
            }
            | dict(parsed_reference)
            for raw_reference, parsed_reference in zip(
                raw_references, parsed_references, strict=True
            )
        ],
        "citations": [asdict(each) for each in find_citations(body, entries, references)],
    }

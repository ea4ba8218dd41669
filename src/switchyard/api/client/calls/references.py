"""Describe calls that extract and parse the references of papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from switchyard.api.client.call import (
    UPLOAD_TIMEOUT,
    Call,
    Upload,
    get_json,
    in_path,
    operation,
    without_none,
)
from switchyard.api.models.references import OrderedReferences

BibliographyFormat = Literal["bibtex", "csl", "tei"]


@operation("references-order_references")
def extract_references(
    file: Upload | None = None,
    *,
    text: str | None = None,
    document_id: str | None = None,
    filename: str | None = None,
) -> Call[OrderedReferences]:
    """Extract the references of a paper: of a file, a text, or a document that was uploaded."""
    body = {"text": text, "document_id": document_id}
    return _order("/extract/references", file, body, filename)


@operation("references-order_parsing")
def parse_references(
    references: Sequence[str] | None = None,
    *,
    file: Upload | None = None,
    text: str | None = None,
    filename: str | None = None,
) -> Call[OrderedReferences]:
    """Parse references into fields: a list of them, or a text or file with one on each line."""
    body = {"references": None if references is None else list(references), "text": text}
    return _order("/parse/references", file, body, filename)


@operation("references-order_processing")
def process_references(
    file: Upload | None = None,
    *,
    text: str | None = None,
    document_id: str | None = None,
    filename: str | None = None,
) -> Call[OrderedReferences]:
    """Extract the references of a paper, parse them into fields, and link them to their citations
    in the text.
    """
    body = {"text": text, "document_id": document_id}
    return _order("/process/references", file, body, filename)


@operation("jobs-references_of_job")
def job_references(job_id: str) -> Call[dict[str, Any]]:
    """Return the result of a job on references; Conflict until there is one."""
    return get_json(f"/jobs/{in_path(job_id)}/references")


@operation("jobs-references_of_job")
def job_bibliography(job_id: str, format: BibliographyFormat = "bibtex") -> Call[str]:  # noqa: A002
    """Return the references of a job as a bibliography in the given format."""
    path = f"/jobs/{in_path(job_id)}/references"
    return Call("GET", path, bytes.decode, {"format": format}, repeatable=True)


def _order(
    path: str, file: Upload | None, body: dict[str, Any], filename: str | None
) -> Call[OrderedReferences]:
    return Call(
        "POST",
        path,
        OrderedReferences.model_validate_json,
        json=None if file is not None else without_none(body),
        file=file,
        filename=filename,
        read_timeout=UPLOAD_TIMEOUT,
    )

"""Describe calls that send, follow, read and search documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel

from switchyard.api.client.call import (
    UPLOAD_TIMEOUT,
    Call,
    Upload,
    get,
    get_json,
    in_path,
    operation,
    without_none,
)
from switchyard.api.client.times import Time, past_param
from switchyard.api.models import documents as document_models

if TYPE_CHECKING:
    from switchyard.api.client.calls.references import BibliographyFormat

M = TypeVar("M", bound=BaseModel)

Mode = Literal["hybrid", "vector", "keyword"]


@operation("documents-send_document")
def upload(
    file: Upload,
    *,
    source: str | None = None,
    title: str | None = None,
    lane: Literal["hot", "backfill"] | None = None,
    filename: str | None = None,
    tags: Mapping[str, str] | None = None,
    notify_url: str | None = None,
) -> Call[document_models.DocumentView]:
    """Send a document. The file is streamed, not read into memory. Its jobs have the tags;
    `notify_url` is notified of the end."""
    form = {
        "source": source,
        "title": title,
        "lane": lane,
        "tags": json.dumps(dict(tags)) if tags else None,
        "notify_url": notify_url,
    }
    return _upload("/documents", document_models.DocumentView, file, form, filename)


@operation("documents-list_documents")
def documents_page(
    *,
    state: str | None = None,
    source: str | None = None,
    classes: Sequence[str] | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[document_models.DocumentList]:
    """Return a page of the documents, newest first. `classes` are written `privacy:public`; with
    several labels of one kind, any of them."""
    return get(
        "/documents",
        document_models.DocumentList,
        state=state,
        source=source,
        limit=limit,
        cursor=cursor,
        **({"class": list(classes)} if classes else {}),
    )


@operation("samples-generate_documents")
def generate_documents(
    count: int | None = None,
    *,
    seed: int | None = None,
    kinds: Sequence[str] | None = None,
    languages: Sequence[str] | None = None,
    lane: Literal["hot", "backfill"] | None = None,
) -> Call[document_models.SamplesView]:
    """Have sample documents made and sent through the pipeline."""
    body = {
        "count": count,
        "seed": seed,
        "kinds": kinds and list(kinds),
        "languages": languages and list(languages),
        "lane": lane,
    }
    read = document_models.SamplesView.model_validate_json
    return Call("POST", "/documents/generate", read, json=without_none(body))


@operation("documents-document_status")
def document(document_id: str) -> Call[document_models.DocumentView]:
    """Return the state of a document."""
    return get(f"/documents/{in_path(document_id)}", document_models.DocumentView)


@operation("documents-document_result")
def document_result(document_id: str, *, with_text: bool = False) -> Call[dict[str, Any]]:
    """Return the results of a document; on request also its text, page by page."""
    include = "text" if with_text else None
    return get_json(f"/documents/{in_path(document_id)}/result", include=include)


@operation("documents-document_references")
def document_references(document_id: str) -> Call[dict[str, Any]]:
    """Return the references of a document, once the job `process_references` has run for it."""
    return get_json(f"/documents/{in_path(document_id)}/references")


@operation("documents-document_references")
def bibliography(document_id: str, format: BibliographyFormat = "bibtex") -> Call[str]:  # noqa: A002
    """Return the references of a document as the text of a file for other programs."""
    path = f"/documents/{in_path(document_id)}/references"
    return Call("GET", path, bytes.decode, {"format": format}, repeatable=True)


@operation("documents-document_figures")
def document_figures(document_id: str) -> Call[document_models.FigureList]:
    """Return a document's figures, once the job `describe_figures` has run for it."""
    return get(f"/documents/{in_path(document_id)}/figures", document_models.FigureList)


@operation("documents-document_figure")
def document_figure(document_id: str, number: int) -> Call[bytes]:
    """Return the picture of a figure (from 1) as PNG or JPEG."""
    path = f"/documents/{in_path(document_id)}/figures/{number}"
    return Call("GET", path, bytes, repeatable=True)


@operation("documents-document_page")
def document_page(document_id: str, number: int) -> Call[document_models.PageView]:
    """Return the text of one page (from 1) as Markdown."""
    return get(f"/documents/{in_path(document_id)}/pages/{number}", document_models.PageView)


@operation("extraction-order_text")
def extract_text(
    file: Upload,
    *,
    title: str | None = None,
    lane: Literal["hot", "backfill"] | None = None,
    filename: str | None = None,
) -> Call[document_models.ExtractionView]:
    """Have a file's text extracted; the file is not kept as a document."""
    view = document_models.ExtractionView
    return _upload("/extract/text", view, file, {"title": title, "lane": lane}, filename)


@operation("extraction-extracted_text")
def extracted_text(job_id: str) -> Call[dict[str, Any]]:
    """Return the extracted text, page by page; Conflict until the job has ended."""
    return get_json(f"/extract/text/{in_path(job_id)}")


@operation("search-search")
def search(
    query: str,
    *,
    mode: Mode | None = None,
    limit: int | None = None,
    per_document: int | None = None,
    document_ids: Sequence[str] | None = None,
    source: str | None = None,
    classes: Sequence[str] | None = None,
    since: Time | None = None,
    until: Time | None = None,
    cites: str | None = None,
    cited_by: str | None = None,
) -> Call[document_models.SearchAnswer]:
    """Search documents for passages that answer a query, best first. Times need a time zone.
    `cites` and `cited_by` name a work of the graph by any key: only documents that cite it, or that
    it cites."""
    filters = without_none(
        {
            "document_ids": document_ids and list(document_ids),
            "source": source,
            "since": past_param("since", since),
            "until": past_param("until", until),
            "classes": classes and list(classes),
            "cites": cites,
            "cited_by": cited_by,
        }
    )
    body = {
        "query": query,
        "mode": mode,
        "limit": limit,
        "per_document": per_document,
        "filters": filters or None,
    }
    read = document_models.SearchAnswer.model_validate_json
    return Call("POST", "/search", read, json=without_none(body), repeatable=True)


def _upload(
    path: str,
    answer: type[M],
    file: Upload,
    form: Mapping[str, str | None],
    filename: str | None,
) -> Call[M]:
    return Call(
        "POST",
        path,
        answer.model_validate_json,
        form=without_none(form),
        file=file,
        filename=filename,
        repeatable=True,
        read_timeout=UPLOAD_TIMEOUT,
    )

"""Documents: upload them by drag and drop, follow their stages, read and search them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

from fastapi import Depends, Path, Query, Request
from starlette.responses import RedirectResponse, Response

from switchyard.api.dashboard.formats import Html
from switchyard.api.dashboard.jobs import TIMES, waterfall
from switchyard.api.dashboard.pages import (
    HEADERS,
    DashboardPage,
    DashboardView,
    Pages,
    allows,
    done,
)
from switchyard.api.dashboard.sessions import PATH
from switchyard.api.dependencies import DocumentsOf, PagePicturesOf
from switchyard.api.http.problems import Problem
from switchyard.api.http.routing import Cursor, GuardedRoute
from switchyard.api.models.documents import HitView, SearchBody
from switchyard.api.pipeline.documents import FORM, DocumentIdOf, receive_upload
from switchyard.api.pipeline.search import search
from switchyard.api.state import ApiState, Shared
from switchyard.broker import patterns
from switchyard.services.common.files.media_types import IMAGES, PDF
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.records.results import JobSummary
from switchyard.services.engine.wings import load_wings
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.pipeline.documents.document_service import (
    DocumentService,
    NotFinished,
    UnknownDocument,
)
from switchyard.services.pipeline.documents.document_status import STATES
from switchyard.services.pipeline.graph.svg import draw
from switchyard.services.pipeline.index.chunk_search import highlights
from switchyard.services.pipeline.index.search_modes import SearchMode
from switchyard.services.pipeline.index.word_index import query_terms
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.graph import Neighbourhood
from switchyard.services.pipeline.text.ocr import PLACES, ReadLine

T = TypeVar("T")
HERE = f"{PATH}/documents"
WING = "pipeline"

PAGE_SIZE = 50
MAX_HITS = 20
MAX_HITS_PER_DOCUMENT = 3
MAX_NEIGHBOURS = 24
"""Works and authors that are drawn around a document."""
MAX_RELATED = 8
MAX_REFERENCES = 300
MAX_PAGE_TEXT = 200_000
"""Characters of a page that are shown."""
MAX_PAGE_LINKS = 400


def _is_installed(_: Request) -> bool:
    return any(wing.name == WING for wing in load_wings())


async def _require_wing(request: Request) -> None:
    if not _is_installed(request):
        raise Problem(
            "not-found", "documents need the extra: `pip install 'switchyard[documents]'`"
        )


router = Pages(DashboardView("documents", "Documents", HERE, is_shown=_is_installed))
files = Pages(router.view, route_class=GuardedRoute)
"""Routes of pictures, which are not counted as pages: a slow picture keeps no page waiting."""
for each in (router, files):
    each.dependencies.append(Depends(_require_wing))

QueryText = Annotated[str, Query(max_length=2000, pattern=patterns.NO_NUL)]


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A text in three parts, each cut into pieces: words of the query, and the text between
    them."""

    before: Sequence[tuple[str, bool]]
    passage: Sequence[tuple[str, bool]]
    after: Sequence[tuple[str, bool]]


@router.get("")
async def list_documents(
    request: Request,
    documents: DocumentsOf,
    document_state: Annotated[str, Query(alias="state", max_length=40)] = "",
    source: QueryText = "",
    label: Annotated[str, Query(alias="class", max_length=100)] = "",
    cursor: Cursor = None,
) -> DashboardPage:
    """List documents, newest first."""
    class_label = label.strip()
    if class_label and re.match(patterns.CLASS, class_label) is None:
        raise Problem("invalid", f"a class is written kind:label, not {class_label[:50]!r}")
    page = await documents.documents(
        state=document_state or None,
        source=source.strip() or None,
        classes=[class_label] if class_label else (),
        limit=PAGE_SIZE,
        cursor=cursor,
    )
    fields = {"state": document_state, "source": source.strip(), "class": class_label}
    query = {name: value for name, value in fields.items() if value}
    context = {
        "documents": page.items,
        "asked": fields,
        "is_filtered": bool(query),
        "states": sorted(STATES),
        "max_bytes": documents.intake.max_bytes,
        "newer": f"{HERE}?{urlencode(query)}" if cursor else None,
        "older": f"{HERE}?{urlencode(query | {'cursor': page.next_cursor})}"
        if page.next_cursor
        else None,
    }
    return DashboardPage("documents.html", context, title="Documents")


@router.post("", dependencies=[allows(Scope.PUBLISH)], openapi_extra=FORM)
async def send_document(request: Request, documents: DocumentsOf) -> Response:
    """Take a document in, as the API does."""
    upload, metadata = await receive_upload(request, documents.intake)
    submitted = await documents.submit(upload, metadata)
    name = metadata.filename or "The document"
    notice = "is known: nothing was started" if submitted.duplicate else "has been taken in"
    # Many are sent at once, and the notice is one for all.
    known = "?known=1" if submitted.duplicate else ""
    document_address = f"{HERE}/{quote(submitted.status.document_id, safe='')}{known}"
    return done(document_address, f"{name} {notice}.")


@router.get("/search")
async def search_documents(
    request: Request,
    state: Shared,
    documents: DocumentsOf,
    q: QueryText = "",
    mode: SearchMode = SearchMode.HYBRID,
) -> DashboardPage:
    """Show the places in documents that answer a question, with the words that were found."""
    hits: list[HitView] = []
    if q.strip():
        body = SearchBody(
            query=q.strip(), mode=mode, limit=MAX_HITS, per_document=MAX_HITS_PER_DOCUMENT
        )
        hits = (await search(body, request, state, documents)).hits
    context = {
        "q": q.strip(),
        "mode": mode,
        "modes": list(SearchMode),
        "hits": [
            (each, _cut_at(each.snippet, each.highlights), _passage_address(each, q))
            for each in hits
        ],
    }
    return DashboardPage("documents_search.html", context, title="Search documents")


@router.get("/{document_id}")
async def show_document(
    document_id: DocumentIdOf, request: Request, state: Shared, documents: DocumentsOf
) -> Response:
    """Show the results of a document's stages, and how they were made."""
    status = await documents.status(document_id)
    if status.document_id != document_id:
        return RedirectResponse(f"{HERE}/{quote(status.document_id, safe='')}", 303)
    run = await state.ledger.job_reads.pipeline(status.job_id) if status.job_id else []
    result = await _if_made(documents.result(document_id))
    now = state.ledger.clock.time()
    context = {
        "document": status,
        "run": waterfall(run, now),
        "costs": await _costs(state, run),
        "currency": state.settings.prices.currency,
        **TIMES,
        "result": result,
        "pages": min((result or {}).get("page_count") or 0, MAX_PAGE_LINKS),
        "figures": await _if_made(documents.figures(document_id)) or [],
        "references": await _references(documents, document_id),
        "max_references": MAX_REFERENCES,
        **(await _neighbours(state, document_id) if status.has_ended else _NO_NEIGHBOURS),
    }
    return DashboardPage("document.html", context, title=status.title or status.filename or "")


@router.get("/{document_id}/pages/{number}")
async def show_page(
    document_id: DocumentIdOf,
    number: Annotated[int, Path(ge=1, le=1_000_000)],
    documents: DocumentsOf,
    q: QueryText = "",
    passage: Annotated[str, Query(max_length=1000)] = "",
) -> Response:
    """Show the text of a page; for a hit of a search, with its passage and the words found."""
    page = await documents.page(document_id, number)
    passage_span = _passage_in(page.text, passage)
    if passage and passage_span is None and number < page.page_count:
        # A passage begins on its page, and its best sentence may be on the next.
        following = await documents.page(document_id, number + 1)
        if _passage_in(following.text, passage) is not None:
            query = urlencode({"q": q, "passage": passage})
            next_page_address = f"{HERE}/{quote(document_id, safe='')}/pages/{number + 1}?{query}"
            return RedirectResponse(next_page_address, 303)
    status = await documents.status(document_id)
    figures = await _if_made(documents.figures(document_id)) or []
    lines = await documents.ocr_lines(document_id, number)
    context = {
        "document": status,
        "has_picture": status.media_type in (PDF, *IMAGES),
        "lines": lines,
        "found_lines": await asyncio.to_thread(_lines_with_words, lines, q),
        "places": PLACES,
        "page": page,
        "q": q,
        "marked": await asyncio.to_thread(_mark_words, page.text[:MAX_PAGE_TEXT], q, passage_span),
        "is_cut": len(page.text) > MAX_PAGE_TEXT,
        "figures": [each for each in figures if each["page"] == number],
        "is_unreadable": number in status.unreadable_pages,
    }
    title = f"Page {number} of {status.title or status.filename or document_id}"
    return DashboardPage("document_page.html", context, title=title)


@files.get("/{document_id}/pages/{number}/picture")
async def show_page_picture(
    document_id: DocumentIdOf,
    number: Annotated[int, Path(ge=1, le=1_000_000)],
    request: Request,
    pictures: PagePicturesOf,
) -> Response:
    """Return a picture of a page, drawn from the document's file."""
    page = await pictures.find(document_id, number)
    # Not cached: the key may have been revoked since.
    headers = {**HEADERS, "Cache-Control": "private, no-cache", "ETag": f'"{page.etag}"'}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    content, media_type = await pictures.draw(page)
    return Response(content, media_type=media_type, headers=headers)


@files.get("/{document_id}/figures/{number}")
async def show_figure(
    document_id: DocumentIdOf,
    number: Annotated[int, Path(ge=1, le=1_000)],
    documents: DocumentsOf,
) -> Response:
    """Return the picture of a figure."""
    content, media_type = await documents.figure(document_id, number)
    headers = {"Cache-Control": "private, max-age=300"}
    return Response(content, media_type=media_type, headers={**HEADERS, **headers})


async def _if_made(result: Awaitable[T]) -> T | None:
    """Await a stage's result and return it; None if it was not made yet, or was removed."""
    try:
        return await result
    except (UnknownDocument, NotFinished):
        return None


async def _costs(state: ApiState, run: Sequence[JobSummary]) -> dict[str, float]:
    """Return the cost of the model calls of a run's jobs, by job id."""
    if not run or not state.settings.model_servers:
        return {}
    since = datetime.fromtimestamp(run[0].created_at, UTC).date().isoformat()
    ids = [each.id for each in run]
    spending = LlmLedger(state.ledger).spending
    rows = await spending.llm_spend("job", since=since, names=ids, limit=len(ids))
    return {each.name: each.cost for each in rows if each.name is not None}


async def _references(documents: DocumentService, document_id: str) -> list[dict[str, Any]]:
    result = await _if_made(documents.references(document_id))
    references = [] if result is None else result["references"][:MAX_REFERENCES]
    return [{**each, "links": _links_of(each)} for each in references]


def _links_of(reference: Mapping[str, Any]) -> dict[str, str]:
    """Return where a reference leads, by what is there."""
    work = (reference.get("link") or {}).get("work") or {}
    links = {}
    if doi := reference.get("doi") or work.get("doi"):
        links["doi"] = f"https://doi.org/{quote(str(doi), safe='/')}"
    if arxiv_id := reference.get("arxiv_id"):
        links["arXiv"] = f"https://arxiv.org/abs/{quote(str(arxiv_id), safe='/')}"
    url = str(reference.get("url") or "")
    if url.lower().startswith(("http://", "https://")):
        links["web"] = url
    return links


_NO_NEIGHBOURS: Mapping[str, Any] = {"drawn": None, "neighbours": [], "related": {}}


async def _neighbours(state: ApiState, document_id: str) -> dict[str, Any]:
    """Return the works and authors around a document in the graph: drawn, and as lists."""
    pipeline = PipelineLedger(state.ledger)
    neighbourhood = await pipeline.graph_walks.graph_neighbourhood(
        document_id, depth=1, limit=MAX_NEIGHBOURS + 1
    )
    if neighbourhood is None or len(neighbourhood.nodes) < 2:
        return dict(_NO_NEIGHBOURS)
    coupled = await pipeline.graph_reads.graph_coupled(document_id, MAX_RELATED)
    cocited = await pipeline.graph_reads.graph_cocited(document_id, MAX_RELATED)
    return {
        "drawn": Html(draw(neighbourhood, neighbourhood.distances)),
        "neighbours": _stored_neighbours(neighbourhood),
        "related": {
            "Cites the same works": coupled.works if coupled is not None else [],
            "Cited together with it": cocited.works if cocited is not None else [],
        },
    }


def _stored_neighbours(neighbourhood: Neighbourhood) -> list[tuple[str, str]]:
    """Return id and label of the neighbours of which there is a document here."""
    return [(each.documents[0], each.label) for each in neighbourhood.nodes[1:] if each.documents]


def _passage_address(hit: HitView, query: str) -> str:
    """Return the address of a hit's page, at its passage."""
    address_query = urlencode({"q": query.strip(), "passage": hit.snippet})
    return f"{HERE}/{quote(hit.document_id, safe='')}/pages/{hit.page}?{address_query}#passage"


def _passage_in(text: str, passage: str) -> tuple[int, int] | None:
    """Return start and end of a snippet in a text that may break its lines in other places; None
    where the snippet is not found."""
    words = passage.rstrip(" …").split()
    if not words:
        return None
    match = re.search(r"\s+".join(map(re.escape, words)), text[:MAX_PAGE_TEXT])
    return None if match is None else match.span()


def _lines_with_words(lines: Sequence[ReadLine], query: str) -> set[int]:
    """Return the indexes of the lines that have words of a query."""
    words = {form for word in query_terms(query) for form in word} if query.strip() else set()
    return {index for index, line in enumerate(lines) if words and highlights(line.text, words)}


def _mark_words(text: str, query: str, passage_span: tuple[int, int] | None) -> MarkedText:
    """Mark the words of a query in a text as a search marks them in its snippets."""
    start, end = passage_span if passage_span is not None else (len(text), len(text))
    words = {form for word in query_terms(query) for form in word} if query.strip() else set()

    def pieces(part: str) -> list[tuple[str, bool]]:
        return _cut_at(part, highlights(part, words) if words else ())

    return MarkedText(pieces(text[:start]), pieces(text[start:end]), pieces(text[end:]))


def _cut_at(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[str, bool]]:
    """Cut a text into pieces; return each with whether it is one of the spans."""
    pieces, position = [], 0
    for start, end in spans:
        pieces += [(text[position:start], False), (text[start:end], True)]
        position = end
    return [piece for piece in [*pieces, (text[position:], False)] if piece[0]]

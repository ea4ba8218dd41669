"""`POST /search`: places in documents that answer a query; `/admin/index`: the search index."""

from __future__ import annotations

from fastapi import Request

from switchyard.api.dependencies import DocumentsOf
from switchyard.api.http.document_errors import SEARCH_PROBLEMS
from switchyard.api.http.problems import invalid, responses, try_later
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import needs
from switchyard.api.models.documents import HitView, SearchAnswer, SearchBody
from switchyard.api.models.lanes import IndexView
from switchyard.api.state import Shared
from switchyard.api.views.pipeline import view_index
from switchyard.services.common.errors import PermanentError, RetryableError
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.publishing.requests import RequestFieldError
from switchyard.services.pipeline.index.chunk_index import IndexMismatch, IndexUnavailable
from switchyard.services.pipeline.index.document_search import (
    Filters,
    UnknownWork,
    search_documents,
    search_time_limit,
)
from switchyard.services.pipeline.index.open_index import generation_reports

router = Routes(tags=["search"])
index_router = Routes(prefix="/admin", tags=["admin"], dependencies=[needs(Scope.ADMIN)])


@router.post(
    "/search",
    dependencies=[needs(Scope.READ)],
    responses=SEARCH_PROBLEMS,
)
async def search(
    body: SearchBody, request: Request, state: Shared, documents: DocumentsOf
) -> SearchAnswer:
    """Search all documents whose text has been indexed."""
    filters = Filters(
        document_ids=body.filters.document_ids,
        source=body.filters.source,
        classes=body.filters.classes or (),
        since=None if body.filters.since is None else body.filters.since.timestamp(),
        until=None if body.filters.until is None else body.filters.until.timestamp(),
        cites=body.filters.cites,
        cited_by=body.filters.cited_by,
    )
    try:
        hits = await search_documents(
            state.index,
            state.ledger,
            body.query,
            body.limit,
            mode=body.mode,
            filters=filters,
            per_document=body.per_document,
        )
    except UnknownWork as error:
        raise invalid(RequestFieldError(("filters", error.filter), str(error))) from error
    except IndexMismatch as error:
        request.state.trouble = f"{type(error).__name__}: {error}"
        raise try_later("search-away", str(error)) from error
    except (RetryableError, PermanentError) as error:
        # The error's text may name hosts: only the log gets it.
        request.state.trouble = f"{type(error).__name__}: {error}"
        component = "index" if isinstance(error, IndexUnavailable) else "embedder"
        raise try_later(
            "search-away", f"the {component} does not answer; try again later"
        ) from error
    unreadable_pages = await documents.unreadable_pages({hit.document_id for hit in hits})
    views = [
        HitView.from_record(hit, unreadable_pages=unreadable_pages.get(hit.document_id, ()))
        for hit in hits
    ]
    return SearchAnswer(mode=body.mode, hits=views)


@index_router.get("/index", responses=responses("search-away"))
async def index(state: Shared, request: Request) -> IndexView:
    """Show the location of the search index, its embedder, and the progress of a rebuild."""
    try:
        async with search_time_limit(state.index):
            return view_index(state.index, await generation_reports(state.index))
    except (RetryableError, PermanentError, TimeoutError) as error:
        request.state.trouble = f"{type(error).__name__}: {error}"
        raise try_later("search-away", "the index can't be read: the log says why") from error

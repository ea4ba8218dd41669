"""`POST /search`: places in documents that answer a query."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from api.access import needs
from api.document_errors import SEARCH_AWAY, SEARCH_PROBLEMS, DocumentProblem
from api.problems import RETRY_AFTER
from api.state import State
from services.api_keys import Scope
from services.outcomes import PermanentError, RetryableError
from services.search import MAX_LIMIT, Hit, Mode
from services.searching import Filters, search_documents

router = APIRouter(tags=["search"])

DocumentIdField = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
SourceField = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"^[^\x00]+$")]


class FiltersBody(BaseModel):
    """Which documents to search; filters that are null do not matter, several all hold."""

    model_config = ConfigDict(extra="forbid")

    document_ids: list[DocumentIdField] | None = Field(default=None, max_length=1000)
    source: SourceField | None = Field(default=None, examples=["https://example.org/paper"])


class SearchBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    query: str = Field(min_length=1, max_length=2000, examples=["why the tide rises"])
    mode: Mode = Field(
        default=Mode.HYBRID,
        description="`vector`: near in meaning; `keyword`: has the words; `hybrid`: both.",
    )
    limit: int = Field(default=10, ge=1, le=MAX_LIMIT)
    per_document: int | None = Field(
        default=None, ge=1, le=MAX_LIMIT, description="Hits that one document may have."
    )
    filters: FiltersBody = FiltersBody()


class HitView(BaseModel):
    """A place in a document."""

    document_id: str
    title: str
    page: int = Field(description="From 1.")
    snippet: str
    highlights: list[tuple[int, int]] = Field(
        description="Where the query's words are in the snippet: start and end, in characters."
    )
    score: float = Field(description="Best first; only comparable within one mode.")
    chunk_id: str


class SearchAnswer(BaseModel):
    mode: Mode
    hits: list[HitView]


@router.post(
    "/search",
    dependencies=[needs(Scope.READ)],
    responses=SEARCH_PROBLEMS,
)
async def search(body: SearchBody, request: Request, state: State) -> SearchAnswer:
    """Search all documents whose text has been indexed."""
    filters = Filters(
        document_ids=body.filters.document_ids,
        source=body.filters.source,
    )
    try:
        hits = await search_documents(
            state.settings,
            state.ledger,
            body.query,
            body.limit,
            mode=body.mode,
            filters=filters,
            per_document=body.per_document,
        )
    except (RetryableError, PermanentError) as error:
        # Its text may name hosts: it stays in the log.
        request.state.trouble = f"{type(error).__name__}: {error}"
        headers = {"Retry-After": str(RETRY_AFTER)}
        raise DocumentProblem(SEARCH_AWAY, "try again later", headers=headers) from error
    return SearchAnswer(mode=body.mode, hits=[_view(hit) for hit in hits])


def _view(hit: Hit) -> HitView:
    return HitView(
        document_id=hit.document_id,
        title=hit.title,
        page=hit.page,
        snippet=hit.snippet,
        highlights=list(hit.highlights),
        score=hit.score,
        chunk_id=hit.chunk_id,
    )

"""What goes in and out of the endpoints of documents, extraction and search, as JSON."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from switchyard.api.models.base import ApiModel, DocumentIdField, Moment, Timestamp
from switchyard.api.models.request_model import RequestModel
from switchyard.broker import patterns
from switchyard.services.pipeline.index.search_modes import MAX_LIMIT, SearchMode
from switchyard.services.pipeline.records.documents import checked_class

SampleName = Annotated[str, Field(pattern=patterns.LOWER_CASE_WORD)]


class FailureView(ApiModel):
    """The failure that has stopped a document's pipeline."""

    reason: str = Field(examples=["permanent"])
    error_type: str | None = Field(examples=["CorruptDocument"])
    message: str | None
    job_id: str | None = Field(description="The job to redrive.")
    attempts: int


class PageView(ApiModel):
    """The text of one page."""

    document_id: str
    page: int = Field(description="From 1.")
    page_count: int
    text: str = Field(description="Markdown; empty for a page without text.")


class ClassView(ApiModel):
    """One class of a document, and the reason for it."""

    kind: str = Field(examples=["privacy"])
    label: str = Field(examples=["confidential"])
    score: float = Field(
        description="For rules, the points of its keywords; for meaning, the similarity."
    )
    why: dict[str, Any] = Field(
        description="With `by` `rules`: how often each of the `keywords` occurs, and the `points` "
        "of each label. With `by` `meaning`: the `similarities` of the most similar labels.",
        examples=[{"by": "rules", "keywords": {"iban": 2}, "points": {"confidential": 6.0}}],
    )


class DocumentView(ApiModel):
    """Progress of a document."""

    document_id: str
    state: str = Field(
        examples=["summarizing"],
        description="queued, storing, extracting, needs_ocr (waits for OCR), recognizing, "
        "summarizing, embedding, classifying, linking, completed or failed; further stages bring "
        "states of their own.",
    )
    current_stage: str | None = Field(examples=["summarize_content"])
    completed_stages: list[str] = Field(examples=[["ingest_document", "extract_text"]])
    job_id: str | None = Field(description="The first job of the pipeline's latest run.")
    error: FailureView | None
    title: str | None
    filename: str | None
    source: str | None
    media_type: str | None
    size: int | None = Field(description="Bytes.")
    created_at: Timestamp | None
    updated_at: Timestamp | None
    classes: list[ClassView] = Field(
        default=[],
        description="Empty until the document is classified; by kind, highest score first.",
    )
    unreadable_pages: list[int] = Field(
        default=[],
        description="Pages, from 1, whose text could not be read, also not by OCR; empty until the "
        "document has a result.",
    )
    page_errors: dict[int, str] = Field(
        default={},
        description="Errors of pages that are broken or take too long to draw, by the number of "
        "the page.",
        examples=[{3: "page 3 of the PDF takes more than 10 s of processor time"}],
    )
    duplicate: bool = Field(
        default=False,
        description="In the answer to an upload: true if the document was already known and "
        "nothing was started.",
    )
    result: dict[str, Any] | None = Field(
        default=None, description="In the answer to an upload without a broker: the result."
    )


class DocumentSummary(ApiModel):
    """A document in a listing; `/documents/{id}` has more."""

    document_id: str
    state: str
    current_stage: str | None
    title: str | None
    filename: str | None
    source: str | None
    media_type: str | None
    size: int | None
    created_at: Timestamp
    updated_at: Timestamp
    classes: list[ClassView] = Field(default=[])


class DocumentList(ApiModel):
    documents: list[DocumentSummary]
    next_cursor: str | None = Field(
        description="Pass it as `cursor` for the next page; null on the last page."
    )


class FigureView(ApiModel):
    """A figure or table of a document, cut out and described."""

    figure: int = Field(description="From 1: its picture is at /documents/{id}/figures/{figure}.")
    page: int
    kind: str = Field(description="`figure`, `table`, or `image` for a document that is an image.")
    caption: str = Field(description="Empty if none was found.")
    description: str = Field(description="What the picture shows; empty if the model refused it.")
    refused: str | None = Field(default=None, description="Why the model refused it.")
    model: str
    width: int = Field(description="Pixels.")
    height: int
    media_type: str = Field(examples=["image/png"])
    size: int = Field(description="Bytes.")


class FigureList(ApiModel):
    figures: list[FigureView]


class GenerateBody(RequestModel):
    model_config = ConfigDict(extra="forbid")

    count: int = Field(default=5, ge=1, le=50)
    seed: int = Field(
        default=0, ge=0, le=2**53 - 1, description="The same seed gives the same documents."
    )
    kinds: list[SampleName] = Field(
        default=[], max_length=50, examples=[["paper", "scan"]], description="Default: all."
    )
    languages: list[SampleName] = Field(
        default=[], max_length=50, examples=[["en", "he"]], description="Default: all."
    )
    lane: Literal["hot", "backfill"] = "hot"


class SampleView(ApiModel):
    """A sample document."""

    document_id: str
    filename: str
    kind: str
    language: str
    title: str


class SamplesView(ApiModel):
    """Sample documents that are being made."""

    job_id: str = Field(description="The job that makes them; its result names them.")
    documents: list[SampleView] | None = Field(
        default=None, description="Without a broker: the generated documents."
    )


class ExtractionView(ApiModel):
    """An extraction of a file's text."""

    job_id: str
    result: dict[str, Any] | None = Field(
        default=None,
        description="Without a broker: title, counts, and `pages` with their text; else fetch it "
        "from /extract/text/{job_id}.",
    )


ClassField = Annotated[str, BeforeValidator(checked_class), Field(pattern=patterns.CLASS)]
SourceField = Annotated[str, Field(min_length=1, max_length=2000, pattern=patterns.NO_NUL)]

WorkField = Annotated[str, Field(min_length=1, max_length=300, pattern=patterns.NO_NUL)]


class FiltersBody(ApiModel):
    """Which documents to search: those that match every filter that is not null."""

    model_config = ConfigDict(extra="forbid")

    document_ids: list[DocumentIdField] | None = Field(default=None, max_length=1000)
    classes: list[ClassField] | None = Field(
        default=None,
        max_length=50,
        examples=[["privacy:public", "privacy:internal"]],
        description="With several labels of one kind, any of them matches; several kinds must "
        "all match.",
    )
    source: SourceField | None = Field(default=None, examples=["https://example.org/paper"])
    since: Moment | None = Field(
        default=None, description="Only documents ingested at or after this time."
    )
    until: Moment | None = Field(
        default=None, description="Only documents ingested before this time."
    )
    cites: WorkField | None = Field(
        default=None,
        examples=["doi:10.1000/182"],
        description="Only documents that cite this work: any key of its node in the graph, or "
        "the id of its document.",
    )
    cited_by: WorkField | None = Field(
        default=None, description="Only documents that this work cites."
    )


class SearchBody(RequestModel):
    model_config = ConfigDict(extra="forbid")

    query: str = Field(min_length=1, max_length=2000, examples=["why the tide rises"])
    mode: SearchMode = Field(
        default=SearchMode.HYBRID,
        description="`vector`: similar meaning; `keyword`: contains the words; `hybrid`: both.",
    )
    limit: int = Field(default=10, ge=1, le=MAX_LIMIT)
    per_document: int | None = Field(
        default=None, ge=1, le=MAX_LIMIT, description="Maximum number of hits per document."
    )
    filters: FiltersBody = Field(default_factory=FiltersBody)


class HitView(ApiModel):
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
    unreadable_pages: list[int] = Field(
        default=[],
        description="Pages of its document, from 1, whose text could not be read, so that no "
        "search finds it.",
    )


class SearchAnswer(ApiModel):
    mode: SearchMode
    hits: list[HitView]

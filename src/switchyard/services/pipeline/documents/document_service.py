"""Submit documents, and return their status and results.

The same methods serve both modes. With a broker, the pipeline's first job is published; without
one, the pipeline runs in this process, and the sender waits for its end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from switchyard.broker.wording import suggest
from switchyard.services.common.errors import ConflictError, InvalidInput, NotFoundError
from switchyard.services.common.files.errors import NotStored
from switchyard.services.common.files.storage_keys import (
    figures_key,
    page_key,
    result_key,
    stage_key,
)
from switchyard.services.common.files.uploads import Upload
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.bounded_gather import gather_bounded
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.metrics import Metrics
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.results import Page
from switchyard.services.engine.records.states import State
from switchyard.services.engine.runtime.inline import InlineRunner
from switchyard.services.pipeline.citations.stored_references import stored_references
from switchyard.services.pipeline.documents.document_status import STATES, DocumentStatus, status_of
from switchyard.services.pipeline.documents.extractions import ExtractionService
from switchyard.services.pipeline.documents.page_pictures import PagePictures
from switchyard.services.pipeline.documents.pipeline_runs import PipelineRuns, recorded_run
from switchyard.services.pipeline.documents.reference_orders import ReferenceService
from switchyard.services.pipeline.documents.upload_intake import UploadIntake, UploadMetadata
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.documents import FAILED, FINISHED_STATES, Document
from switchyard.services.pipeline.text.ocr import ReadLine
from switchyard.services.pipeline.workers.stages import EXTRACT, INGEST, OCR, document_id_of

_MAX_CONCURRENT_READS = 8
"""Results of documents that are read at the same time."""
_MAX_FILTERED_PAGES = 20
"""Most pages that are searched for documents in a state to fill one page."""


class UnknownDocument(NotFoundError):
    """There is no document of that id, or its result was removed."""


class UnknownDocumentState(InvalidInput):
    """There is no such state of documents."""


class NotFinished(ConflictError):
    """There is no result: the pipeline has not ended, or has failed (see `status`)."""

    def __init__(self, status: DocumentStatus) -> None:
        self.status = status
        stage_text = f" at {status.current_stage}" if status.current_stage else ""
        super().__init__(f"document {status.document_id} is {status.state}{stage_text}")


@dataclass(frozen=True, slots=True)
class Submission:
    """The outcome of a submitted file."""

    status: DocumentStatus
    duplicate: bool
    """Whether the content or the source was known, so that nothing was started."""
    is_own: bool = False
    """Whether the content was never sent before, so that all metadata comes from this upload. False
    also for a document that failed before, as it may keep its first sender's title and source."""


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """The text of one page."""

    document_id: str
    page: int
    """From 1."""
    page_count: int
    text: str
    """Markdown; empty for a page without text."""


@dataclass(frozen=True, slots=True)
class DocumentServices:
    """The services of a process that serves documents."""

    documents: DocumentService
    extractions: ExtractionService
    references: ReferenceService
    pictures: PagePictures


@asynccontextmanager
async def open_document_services(
    settings: Settings,
    registry: Registry,
    ledger: Ledger,
    jobs: JobPublisher | None,
    metrics: Metrics | None = None,
) -> AsyncIterator[DocumentServices]:
    """Open the services for as long as the process that serves them runs.

    Without `jobs` (no broker) the pipeline runs in this process, and `metrics` show it.
    """
    async with PagePictures.open(settings) as pictures:
        if jobs is not None:
            yield _services(ledger, UploadIntake(settings, jobs, None), pictures)
            return
        async with InlineRunner(settings, registry, ledger, metrics=metrics) as runner:
            yield _services(ledger, UploadIntake(settings, runner, runner), pictures)


def _services(ledger: Ledger, intake: UploadIntake, pictures: PagePictures) -> DocumentServices:
    return DocumentServices(
        DocumentService(ledger, intake),
        ExtractionService(ledger, intake),
        ReferenceService(ledger, intake),
        pictures,
    )


class DocumentService:
    """Takes documents in, and returns their status and results."""

    def __init__(self, ledger: Ledger, intake: UploadIntake) -> None:
        self._ledger = ledger
        self._runs = PipelineRuns(ledger)
        repositories = PipelineLedger(ledger)
        self._documents = repositories.documents
        self._classes = repositories.document_classes
        self._graph = repositories.graph_reads
        self.intake = intake
        self._read_json = intake.storage.get_json_async

    # --- submit -----------------------------------------------------------------------------

    async def submit(self, upload: Upload, metadata: UploadMetadata) -> Submission:
        """Start the pipeline for an upload, unless its content or source is known.

        The pipeline of a document that has failed is started again. Inline, this returns when the
        pipeline has ended. Raises what UploadIntake.start raises.
        """
        submission = await self._submit(upload, metadata)
        if self.intake.is_inline:
            submission = await self._wait_for_end(submission)
            status = submission.status
            if status.state == FAILED and status.document_id != document_id_of(upload.sha256):
                # The pipeline of another file from this source ran first, and failed: submit this
                # file.
                submission = await self._wait_for_end(await self._submit(upload, metadata))
        if self.intake.is_inline or submission.duplicate:
            await self.intake.discard(upload)
        job_id = submission.status.job_id
        if metadata.notify_url is not None and submission.duplicate and job_id is not None:
            await self.intake.add_notice(metadata, job_id)
        return submission

    async def _wait_for_end(self, submission: Submission) -> Submission:
        """Wait until the pipeline has ended. If another file from the same source came at the same
        time, this upload belongs to that file's document: wait for that document's pipeline."""
        status = submission.status
        for _ in range(2):
            if not status.has_ended:
                await self.intake.wait_for(status.job_id)
                status = await self.status(status.document_id)
        is_own = submission.is_own and status.document_id == submission.status.document_id
        return replace(submission, status=status, is_own=is_own)

    async def _submit(self, upload: Upload, metadata: UploadMetadata) -> Submission:
        document_id = document_id_of(upload.sha256)
        known = await self._documents.find_document(upload.sha256, metadata.source)
        if known is not None:
            runs = await self._runs.confirmed_runs_of(known.id, known)
            status = status_of(known.id, known, runs.latest)
            if status.is_finished or (runs.is_open and status.state != FAILED):
                return Submission((await self._add_descriptions([status]))[0], duplicate=True)
        if known is None or known.id != document_id:
            runs = await self._runs.confirmed_runs_of(document_id, None)
            if runs.is_open:
                return Submission(await self.status(document_id), duplicate=True)
        request = JobRequest(
            f"{metadata.lane}.{INGEST.name}",
            metadata.payload(upload, "source", "title", "filename"),
            source=metadata.asked_by,
            job_id=runs.next_id,
            vouched=upload.vouched,
            tags=metadata.tags,
            notify_url=metadata.notify_url,
        )
        published = await self.intake.start(request, upload)
        is_new = known is None and not runs.latest and not published.duplicate
        return Submission(await self.status(document_id), published.duplicate, is_new)

    # --- status and results -----------------------------------------------------------------

    async def status(self, document_id: str) -> DocumentStatus:
        """Return the status of a document. Raises UnknownDocument, LedgerUnavailable."""
        status = await self._status(document_id, await self._documents.get_document(document_id))
        if not status.is_finished:
            return status
        result = await self._read_json(result_key(document_id)) or {}
        return replace(
            status,
            unreadable_pages=tuple(result.get("unreadable_pages", ())),
            page_errors={
                int(page): reason for page, reason in result.get("page_errors", {}).items()
            },
        )

    async def unreadable_pages(self, document_ids: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Return the numbers of the pages that could not be read, by document; documents without
        such pages are absent."""
        pages: dict[str, tuple[int, ...]] = {}

        async def read_pages(document_id: str) -> None:
            result = await self._read_json(result_key(document_id))
            if result is not None and result.get("unreadable_pages"):
                pages[document_id] = tuple(result["unreadable_pages"])

        await gather_bounded(
            map(read_pages, sorted(set(document_ids))), at_once=_MAX_CONCURRENT_READS
        )
        return pages

    async def _status(self, document_id: str, document: Document | None) -> DocumentStatus:
        jobs = (await self._runs.runs_of(document_id, document)).latest
        if document is None and not jobs:
            raise UnknownDocument(f"there is no document {document_id}")
        if document is None and jobs[0].state is State.SUCCEEDED:
            # The job found that the source already had another document, sent at the same time.
            record = await self._ledger.job_reads.get(jobs[0].id)
            other_id = record.result.get("document_id") if record and record.result else None
            other_document = await self._documents.get_document(other_id) if other_id else None
            if other_document is not None:
                return await self._status(other_document.id, other_document)
        return (await self._add_descriptions([status_of(document_id, document, jobs)]))[0]

    async def _add_descriptions(self, statuses: Sequence[DocumentStatus]) -> list[DocumentStatus]:
        """Add the documents' classes, and titles found in the documents where the senders gave
        none."""
        ids = [each.document_id for each in statuses]
        classes = await self._classes.classes_of(ids)
        labels = await self._graph.graph_labels(
            [each.document_id for each in statuses if each.title is None]
        )
        return [
            replace(
                each,
                classes=classes.get(each.document_id, ()),
                title=each.title or _title(labels.get(each.document_id), each.document_id),
            )
            for each in statuses
        ]

    async def own_result(self, document_id: str) -> dict[str, Any]:
        """Return what `result` returns, but with no links, as they name other documents. Raises
        what `result` raises."""
        return await self.result(document_id) | {"links": []}

    async def result(self, document_id: str, *, with_text: bool = False) -> dict[str, Any]:
        """Return the result of a document; with its text, page by page.

        Raises UnknownDocument, NotFinished. `pages` is None when the text was deleted by age.
        """
        status = await self.status(document_id)
        if not status.is_finished:
            raise NotFinished(status)
        result = await self._read_json(result_key(status.document_id))
        if result is None:
            raise UnknownDocument(f"the result of document {document_id} was removed")
        if with_text:
            text = await self._read_json(stage_key(status.document_id, EXTRACT.name))
            result["pages"] = text["result"]["pages"] if text else None
        return result

    async def references(self, document_id: str) -> dict[str, Any]:
        """Return the result of `process_references` for a document: `references` and `citations`.

        Raises UnknownDocument, also where that job has not run yet.
        """
        status = await self.status(document_id)
        references = await stored_references(self.intake.storage, status.document_id)
        if references is None:
            raise UnknownDocument(
                f"the references of document {document_id} have not been looked for: publish "
                "hot.process_references with its document_id"
            )
        return references

    async def figures(self, document_id: str) -> list[dict[str, Any]]:
        """Return the figures that `describe_figures` has cut out and described.

        Raises UnknownDocument, also where that job has not run yet.
        """
        stored = await self._read_json(figures_key(document_id))
        if stored is None:
            await self.status(document_id)
            raise UnknownDocument(
                f"the figures of document {document_id} have not been described: publish "
                "vlm_ocr.describe_figures with its document_id"
            )
        figures: list[dict[str, Any]] = stored["figures"]
        return figures

    async def figure(self, document_id: str, number: int) -> tuple[bytes, str]:
        """Return the picture of a figure, from 1, and its media type, PNG or JPEG: this
        system encoded the picture.

        Raises as `figures`, and UnknownDocument for a figure that does not exist.
        """
        figures = await self.figures(document_id)
        if number > len(figures):
            raise UnknownDocument(
                f"document {document_id} has no figure {number:,}: it has {len(figures):,}"
            )
        figure = figures[number - 1]
        try:
            return await self.intake.storage.get_async(figure["key"]), figure["media_type"]
        except NotStored as error:
            raise UnknownDocument(f"the picture of figure {number:,} was removed") from error

    async def page(self, document_id: str, number: int) -> DocumentPage:
        """Return a page's text, from 1, as soon as it was extracted, or read by OCR.

        Raises UnknownDocument, also for a page that does not exist, and for a text that was deleted
        by age or is not extracted yet.
        """
        text = await self._read_json(stage_key(document_id, EXTRACT.name))
        if text is None:
            raise UnknownDocument(f"there is no text of document {document_id} here")
        pages = text["result"]["pages"]
        if not 1 <= number <= len(pages):
            raise UnknownDocument(
                f"document {document_id} has no page {number:,}: it has {len(pages):,}"
            )
        page_text = pages[number - 1]["text"]
        if not page_text:  # OCR may have read the page already, before the text has all pages
            # `content` is the hash of the file.
            ocr_page = await self._read_json(page_key(document_id, OCR.name, number))
            if ocr_page is not None and ocr_page.get("content", "") == text.get("content"):
                page_text = ocr_page["text"] or ""
        return DocumentPage(document_id, number, len(pages), page_text)

    async def ocr_lines(self, document_id: str, number: int) -> list[ReadLine]:
        """Return the lines that OCR has read on a page, from 1, with their places; none for a page
        that it has not read."""
        ocr_page = await self._read_json(page_key(document_id, OCR.name, number)) or {}
        text = await self._read_json(stage_key(document_id, EXTRACT.name)) or {}
        if ocr_page.get("content", "") != text.get("content"):
            return []  # of another version of the document
        return [ReadLine(*line) for line in ocr_page.get("lines", ())]

    async def documents(
        self,
        *,
        state: str | None = None,
        source: str | None = None,
        classes: Collection[str] = (),
        limit: int,
        cursor: str | None,
    ) -> Page[DocumentStatus]:
        """List documents, newest first, each with the status that `status` returns.

        A page may have fewer than `limit` documents although others follow: states are derived from
        jobs, so a `state` is filtered after reading. Raises UnknownDocumentState, InvalidCursor,
        and ValueError for an invalid limit.
        """
        if state is not None and state not in STATES:
            raise UnknownDocumentState(f"no document state {state!r}: {suggest(state, STATES)}")
        recorded_state = state if state in FINISHED_STATES else None
        excluded_states = FINISHED_STATES if state is not None and recorded_state is None else ()
        document_statuses: list[DocumentStatus] = []
        for _ in range(_MAX_FILTERED_PAGES):
            page = await self._documents.list_documents(
                state=recorded_state,
                not_states=excluded_states,
                source=source,
                classes=classes,
                limit=limit - len(document_statuses),
                cursor=cursor,
            )
            ids = await self._ledger.system.job_ids()
            runs = await self._runs.runs_of_each(
                {each.id: recorded_run(ids, each) for each in page.items}
            )
            statuses = [status_of(each.id, each, runs[each.id].latest) for each in page.items]
            document_statuses += await self._add_descriptions(
                [each for each in statuses if state in (None, each.state)]
            )
            cursor = page.next_cursor
            if cursor is None or len(document_statuses) == limit:
                break
        return Page(items=tuple(document_statuses), next_cursor=cursor)


def _title(label: str | None, document_id: str) -> str | None:
    """Return the title; None where the graph's label is only the document's id."""
    return None if label == document_id else label

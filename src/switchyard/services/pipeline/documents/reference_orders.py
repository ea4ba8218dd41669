"""Start, follow and read jobs on references of files and texts that are not kept as documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from switchyard.services.common.errors import NotFoundError
from switchyard.services.common.files.errors import FileTooLarge
from switchyard.services.common.files.storage_keys import extraction_key, job_folder, stage_key
from switchyard.services.common.files.uploads import Upload
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import State
from switchyard.services.pipeline.citations.stored_references import stored_references
from switchyard.services.pipeline.documents.extractions import ExtractionNotFinished
from switchyard.services.pipeline.documents.upload_intake import UploadIntake, UploadMetadata
from switchyard.services.pipeline.workers.stages import LINK_CITATIONS, REFERENCE_STAGES

Order = Literal["extract_references", "parse_references", "process_references"]
"""Job types on references that a client can start."""
MAX_OUTPUT_BYTES = 8 * 1024 * 1024
"""Largest output that is read, in bytes."""


class NoReferences(NotFoundError):
    """There is no job on references with that id, or its result was removed or is larger than
    MAX_OUTPUT_BYTES."""


@dataclass(frozen=True, slots=True)
class StageProgress:
    """The progress of a job with stages of its own."""

    current: str | None
    """The current stage; None before the job runs, and when it has succeeded."""
    completed: tuple[str, ...]


class ReferenceService:
    """Starts jobs on references of files and texts, and returns their results."""

    def __init__(self, ledger: Ledger, intake: UploadIntake) -> None:
        self._ledger = ledger
        self.intake = intake

    async def order_from_file(self, order: Order, upload: Upload, metadata: UploadMetadata) -> str:
        """Start the job on an upload, and return its id. Inline, this returns when the job has
        ended.

        Raises as UploadIntake.start does.
        """
        payload = metadata.payload(upload, "filename")
        request = _make_request(order, metadata, payload, upload.vouched)
        job_id = (await self.intake.start(request, upload)).job_id
        if self.intake.is_inline:
            try:
                await self.intake.wait_for(job_id)
            finally:
                await self.intake.discard(upload)
        return job_id

    async def order_from_text(
        self, order: Order, payload: Mapping[str, Any], metadata: UploadMetadata
    ) -> str:
        """Start the job on the text or the references in the payload, and return its id; inline, it
        waits as `order_from_file` does. Raises InvalidPayload."""
        job_id = (await self.intake.publish(_make_request(order, metadata, payload))).job_id
        await self.intake.wait_for(job_id)
        return job_id

    async def stages(self, record: JobRecord) -> StageProgress | None:
        """Return the progress of a job; None for a job without stages of its own, or on a
        document."""
        stages = REFERENCE_STAGES.get(record.job_type)
        if stages is None or "document_id" in record.payload:
            return None
        if record.state is State.SUCCEEDED:
            return StageProgress(None, tuple(stage.name for stage in stages))
        completed = []
        for stage in stages:
            if not await self.intake.storage.exists_async(
                stage_key(job_folder(record.id), stage.name)
            ):
                break
            completed.append(stage.name)
        open_stages = [stage.name for stage in stages if stage.name not in completed]
        is_idle = record.started_at is None or not open_stages
        return StageProgress(None if is_idle else open_stages[0], tuple(completed))

    async def output(self, record: JobRecord) -> dict[str, Any] | None:
        """Return the output of a job that is stored under the job's id, if it has at most
        MAX_OUTPUT_BYTES bytes."""
        if not _has_output(record):
            return None
        key = extraction_key(record.id)
        try:
            return await self.intake.storage.get_json_async(key, max_bytes=MAX_OUTPUT_BYTES)
        except FileTooLarge:
            return None

    async def references(self, job_id: str) -> dict[str, Any]:
        """Return the result of a job: `references`, and `citations` of `process_references`.

        Raises NoReferences, ExtractionNotFinished, LedgerUnavailable.
        """
        record = await self._ledger.job_reads.get(job_id)
        if record is None or record.job_type not in (*REFERENCE_STAGES, LINK_CITATIONS.name):
            raise NoReferences(f"there is no job {job_id} that looks for references")
        if record.state is not State.SUCCEEDED:
            raise ExtractionNotFinished(record)
        result = await self._stored_result(record)
        if result is None:
            raise NoReferences(f"the result of job {job_id} was removed")
        return result

    async def _stored_result(self, record: JobRecord) -> dict[str, Any] | None:
        if isinstance((record.result or {}).get("references"), list):
            return record.result
        if _has_output(record):
            return await self.output(record)
        document_id = record.payload.get("document_id")
        if document_id is None:
            return None
        return await stored_references(self.intake.storage, document_id)


def _has_output(record: JobRecord) -> bool:
    """Return whether a job's output is in storage under the job's id, as its result says."""
    return (record.result or {}).get("result") == extraction_key(record.id)


def _make_request(
    order: Order,
    metadata: UploadMetadata,
    payload: Mapping[str, Any],
    vouched: Mapping[str, Any] | None = None,
) -> JobRequest:
    # The link worker has no backfill lane: less urgent jobs go to maintenance.
    return JobRequest(
        f"{'hot' if metadata.lane == 'hot' else 'maintenance'}.{order}",
        payload,
        source=metadata.asked_by,
        job_id=str(uuid4()),
        vouched=vouched,
        tags=metadata.tags,
        notify_url=metadata.notify_url,
    )

"""Extract the text of an upload that does not become a document, in one job with its result in the
storage."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from switchyard.services.common.errors import ConflictError, NotFoundError
from switchyard.services.common.files.errors import InvalidKey, NotStored
from switchyard.services.common.files.uploads import Upload
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import State
from switchyard.services.pipeline.documents.upload_intake import UploadIntake, UploadMetadata
from switchyard.services.pipeline.workers.stages import EXTRACT


class UnknownExtraction(NotFoundError):
    """There is no extraction of that id, or its result was removed."""


class ExtractionNotFinished(ConflictError):
    """The extraction has no result yet, or has failed: see `record`."""

    def __init__(self, record: JobRecord) -> None:
        self.record = record
        super().__init__(f"the extraction is {record.state}")


@dataclass(frozen=True, slots=True)
class Extraction:
    """The extraction of a text by a job; `result` is set if the job has already ended."""

    job_id: str
    result: dict[str, Any] | None = None


class ExtractionService:
    """Starts extractions of the text of uploads, and returns their results."""

    def __init__(self, ledger: Ledger, intake: UploadIntake) -> None:
        self._ledger = ledger
        self.intake = intake

    async def start(self, upload: Upload, metadata: UploadMetadata) -> Extraction:
        """Start the extraction of an upload's text. Without a broker (inline), the job runs in this
        process: return its result, too.

        Raises as UploadIntake.start does; inline, ExtractionNotFinished for a file that can't be
        read.
        """
        request = JobRequest(
            f"{metadata.lane}.{EXTRACT.name}",
            metadata.payload(upload, "title", "filename"),
            source=metadata.asked_by,
            job_id=str(uuid4()),
            vouched=upload.vouched,
            tags=metadata.tags,
            notify_url=metadata.notify_url,
        )
        job_id = (await self.intake.start(request, upload)).job_id
        if not self.intake.is_inline:
            return Extraction(job_id)
        try:
            await self.intake.wait_for(job_id)
            return Extraction(job_id, await self.result(job_id))
        finally:
            await self.intake.discard(upload)

    async def result(self, job_id: str) -> dict[str, Any]:
        """Return the result of an extraction: title, counts and `pages` with their text.

        Raises UnknownExtraction, ExtractionNotFinished, LedgerUnavailable.
        """
        record = await self._ledger.job_reads.get(job_id)
        # Without `key`, it is a stage of a document's pipeline, and no upload's extraction.
        if record is None or record.job_type != EXTRACT.name or "key" not in record.payload:
            raise UnknownExtraction(f"there is no extraction {job_id}")
        if record.state is not State.SUCCEEDED:
            raise ExtractionNotFinished(record)
        try:
            # The job's result names the key: older versions used others.
            key = (record.result or {}).get("result", "")
            result: dict[str, Any] = json.loads(await self.intake.storage.get_async(key))
        except (NotStored, InvalidKey) as error:
            raise UnknownExtraction(f"the text of extraction {job_id} was removed") from error
        return result

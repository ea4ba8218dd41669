"""The job type that makes sample documents and sends them through the pipeline."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID, uuid5

from pydantic import Field

from switchyard.broker import patterns
from switchyard.services.common.errors import PermanentError
from switchyard.services.common.extras import ExtraNotInstalled
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.common.files.uploads import INCOMING
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Job, Next, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.pipeline.records.strict_model import StrictModel
from switchyard.services.pipeline.workers.stages import INGEST, document_id_of

MAX_GENERATED = 50
"""Documents of one job at most, as all are in the hot lane at once."""
MAX_SEED = 2**53 - 1
"""The largest integer that every reader of JSON reads exactly."""
_UPLOAD_NAMESPACE = UUID("b7f5a3f2-3d0e-5c55-9a0d-2f4f8a6f1d77")

Name = Annotated[str, Field(pattern=patterns.LOWER_CASE_WORD)]


class GenerateDocuments(StrictModel):
    """Payload of `generate_documents`."""

    count: int = Field(default=5, ge=1, le=MAX_GENERATED)
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """The same seed gives the same documents, which are taken in once."""
    kinds: list[Name] = Field(default=[], max_length=50)
    """Kinds of documents; all kinds where the list is empty."""
    languages: list[Name] = Field(default=[], max_length=50)
    """Languages of the documents; all languages where the list is empty."""


@job(
    "generate_documents",
    worker="ingest",
    lanes=("hot", "backfill"),
    timeout=300,
    isolation="process",
    memory_limit_mb=2048,
)
def generate_documents(payload: GenerateDocuments, ctx: JobContext) -> Outcome:
    """Make documents up, and have each taken in as if it had been uploaded."""
    from switchyard.services.pipeline.samples.generated_samples import UnknownSample, generate

    storage = Storage(ctx.settings.files_url)
    jobs, documents = [], []
    try:
        samples = generate(
            payload.count, seed=payload.seed, kinds=payload.kinds, languages=payload.languages
        )
        for number, sample in enumerate(samples):
            # The same key in a repeat of the job, so that the first attempt leaves no files behind.
            key = f"{INCOMING}{uuid5(_UPLOAD_NAMESPACE, f'{ctx.job_id}/{number}')}"
            storage.put(key, sample.content)
            ingest_payload = {"key": key, "filename": sample.filename}
            jobs.append(Job(INGEST.name, ingest_payload, own_pipeline=True))
            documents.append(
                {
                    "document_id": document_id_of(content_hash(sample.content)),
                    "filename": sample.filename,
                    "kind": sample.kind,
                    "language": sample.language,
                    "title": sample.title,
                }
            )
    except (UnknownSample, ExtraNotInstalled) as error:
        raise PermanentError(str(error)) from error
    return Next(jobs, {"documents": documents})

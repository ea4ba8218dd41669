"""Order sample documents, which a job makes and sends through the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from switchyard.services.common.errors import PermanentFailure
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.pipeline.documents.upload_intake import UploadIntake


class SamplesFailed(PermanentFailure):
    """The job that makes samples has failed."""


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """An order of samples, which the job with that id makes."""

    job_id: str
    documents: Sequence[dict[str, Any]] | None = None
    """The documents (`document_id`, `filename`, `kind`, `language`, `title`), once made."""


async def order_samples(
    ledger: Ledger,
    intake: UploadIntake,
    *,
    count: int,
    seed: int,
    kinds: Sequence[str],
    languages: Sequence[str],
    lane: Literal["hot", "backfill"] = "hot",
    asked_by: str = "api",
) -> SampleOrder:
    """Start the job that makes samples. Inline, this returns when their pipelines have ended.

    Raises UnknownSample, StorageFull, SamplesFailed, and as JobPublisher.publish does.
    """
    from switchyard.services.pipeline.samples.generated_samples import check_choice

    check_choice(kinds, languages)
    await intake.require_room()
    request = JobRequest(
        f"{lane}.generate_documents",
        {"count": count, "seed": seed, "kinds": list(kinds), "languages": list(languages)},
        source=asked_by,
        job_id=str(uuid4()),
    )
    published = await intake.publish(request)
    if not intake.is_inline:
        return SampleOrder(published.job_id)
    await intake.wait_for(published.job_id)
    record = await ledger.job_reads.get(published.job_id)
    if record is None or record.result is None:
        raise SamplesFailed((record and record.error_message) or "the samples were not made")
    return SampleOrder(published.job_id, record.result["documents"])

"""The wing of documents: what it brings to the system."""

from __future__ import annotations

from switchyard.services.engine.wings import Wing

WING = Wing(
    name="pipeline",
    libraries=("trafilatura",),
    extra="documents",
    job_modules=(
        "switchyard.services.pipeline.workers.ingest.documents",
        "switchyard.services.pipeline.workers.ingest.arxiv",
        "switchyard.services.pipeline.workers.ingest.source_jobs",
        "switchyard.services.pipeline.workers.ingest.web",
        "switchyard.services.pipeline.workers.ingest.crawl",
        "switchyard.services.pipeline.workers.ocr",
        "switchyard.services.pipeline.workers.figures",
        "switchyard.services.pipeline.workers.summaries",
        "switchyard.services.pipeline.workers.embed",
        "switchyard.services.pipeline.workers.classify",
        "switchyard.services.pipeline.workers.link",
        "switchyard.services.pipeline.workers.references.reference_jobs",
        "switchyard.services.pipeline.workers.references.link_citations",
        "switchyard.services.pipeline.workers.samples",
        "switchyard.services.pipeline.workers.reindex",
        "switchyard.services.pipeline.workers.graph",
    ),
    source_modules=(
        "switchyard.services.pipeline.sources.backfill_arxiv",
        "switchyard.services.pipeline.sources.backfill_github",
        "switchyard.services.pipeline.sources.backfill_huggingface",
        "switchyard.services.pipeline.sources.backfill_stored",
    ),
    periodic_duties="switchyard.services.pipeline.operations:periodic_duties",
    default_schedules="switchyard.services.pipeline.operations:DEFAULT_SCHEDULES",
    doctor_steps="switchyard.services.pipeline.operations:doctor_steps",
    cost_estimate="switchyard.services.pipeline.workers.summaries:estimate_summaries",
)

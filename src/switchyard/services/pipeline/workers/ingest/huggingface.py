"""Job type `ingest_huggingface`: the card of a model or data set, into the pipeline."""

from switchyard.services.pipeline.sources.huggingface import HuggingfaceSource
from switchyard.services.pipeline.workers.ingest.sourced import ingest_job

ingest_huggingface = ingest_job(HuggingfaceSource())

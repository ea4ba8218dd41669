"""Job type `ingest_github`: a repository, from GitHub into the pipeline."""

from switchyard.services.pipeline.sources.github import GithubSource
from switchyard.services.pipeline.workers.ingest.sourced import ingest_job

ingest_github = ingest_job(GithubSource())

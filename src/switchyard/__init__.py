"""A job system on RabbitMQ for AI document pipelines: one import for what programs use.

from switchyard import Done, JobContext, Outcome, job          # job types of your own
from switchyard import JobPublisher, JobRequest                # publishing, with an event loop
from switchyard import BlockingPublisher, JobMessage           # and without one
from switchyard import LLMQueue                                # questions to language models
from switchyard import DocumentSource, ingest_job              # sources of documents of your own
from switchyard import AsyncClient, Client                     # the HTTP API

`import switchyard` loads nothing: each name is loaded when it is first asked for, with what it
needs and no more. docs/python.md explains the names; whatever stands elsewhere may move.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchyard.api.client import AsyncClient, Client
    from switchyard.broker.message import JobMessage
    from switchyard.broker.publish.blocking import BlockingPublisher
    from switchyard.services.common.errors import PermanentError, RetryableError
    from switchyard.services.engine.jobs.context import JobContext
    from switchyard.services.engine.jobs.limits import Limit
    from switchyard.services.engine.jobs.local_fields import LocalOnly
    from switchyard.services.engine.jobs.outcomes import (
        Discard,
        Done,
        Job,
        Next,
        Outcome,
        Retry,
        Snooze,
    )
    from switchyard.services.engine.jobs.registry import job
    from switchyard.services.engine.jobs.secret_fields import Secret
    from switchyard.services.engine.publishing.preparing import JobRequest
    from switchyard.services.engine.publishing.publisher import JobPublisher
    from switchyard.services.engine.records.joins import JoinedJob
    from switchyard.services.llm.llm_queue import LLMQueue
    from switchyard.services.pipeline.sources.document_source import DocumentSource, FoundDocument
    from switchyard.services.pipeline.sources.source_client import SourceClient
    from switchyard.services.pipeline.sources.source_errors import (
        InvalidSourceResponse,
        SourceNotFound,
        SourceRefused,
    )
    from switchyard.services.pipeline.workers.ingest.source_jobs import ingest_job

__all__ = [
    "AsyncClient",
    "BlockingPublisher",
    "Client",
    "Discard",
    "DocumentSource",
    "Done",
    "FoundDocument",
    "InvalidSourceResponse",
    "Job",
    "JobContext",
    "JobMessage",
    "JobPublisher",
    "JobRequest",
    "JoinedJob",
    "LLMQueue",
    "Limit",
    "LocalOnly",
    "Next",
    "Outcome",
    "PermanentError",
    "Retry",
    "RetryableError",
    "Secret",
    "Snooze",
    "SourceClient",
    "SourceNotFound",
    "SourceRefused",
    "ingest_job",
    "job",
]

_HOMES = {
    "switchyard.api.client": ("AsyncClient", "Client"),
    "switchyard.broker.publish.blocking": ("BlockingPublisher",),
    "switchyard.broker.message": ("JobMessage",),
    "switchyard.services.common.errors": ("PermanentError", "RetryableError"),
    "switchyard.services.engine.jobs.context": ("JobContext",),
    "switchyard.services.engine.jobs.limits": ("Limit",),
    "switchyard.services.engine.jobs.local_fields": ("LocalOnly",),
    "switchyard.services.engine.jobs.outcomes": (
        "Discard",
        "Done",
        "Job",
        "Next",
        "Outcome",
        "Retry",
        "Snooze",
    ),
    "switchyard.services.engine.jobs.registry": ("job",),
    "switchyard.services.engine.jobs.secret_fields": ("Secret",),
    "switchyard.services.llm.llm_queue": ("LLMQueue",),
    "switchyard.services.engine.publishing.preparing": ("JobRequest",),
    "switchyard.services.engine.publishing.publisher": ("JobPublisher",),
    "switchyard.services.engine.records.joins": ("JoinedJob",),
    "switchyard.services.pipeline.sources.source_client": ("SourceClient",),
    "switchyard.services.pipeline.sources.document_source": ("DocumentSource", "FoundDocument"),
    "switchyard.services.pipeline.sources.source_errors": (
        "InvalidSourceResponse",
        "SourceNotFound",
        "SourceRefused",
    ),
    "switchyard.services.pipeline.workers.ingest.source_jobs": ("ingest_job",),
}
"""Where each name is at home; the same as above, for those who run and do not read."""


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

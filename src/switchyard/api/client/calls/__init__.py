"""The operations by subject. Each is imported when it is first asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchyard.api.client.calls import (
        backfills,
        crawls,
        dead,
        documents,
        graph,
        job_actions,
        jobs,
        llm,
        pauses,
        references,
        schedules,
        service,
    )

__all__ = [
    "backfills",
    "crawls",
    "dead",
    "documents",
    "graph",
    "job_actions",
    "jobs",
    "llm",
    "pauses",
    "references",
    "schedules",
    "service",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")

"""Structured logs: one event a line, with the job's id and attempt where there is a job."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure(level: str = "info", form: str = "auto") -> None:
    """Send this process's logs to stderr. `level` and `form` as in the settings' `log_…`."""
    threshold = getattr(logging, level.upper())
    as_json = form == "json" or (form == "auto" and not sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_json:
        # Without local variables: they may be private, and make a line of many kilobytes.
        frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        shared += [
            structlog.processors.ExceptionRenderer(frames),
            structlog.processors.JSONRenderer(),
        ]
    else:
        shared.append(
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        )
    structlog.configure(
        processors=shared,
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries beneath report what this system reports itself, with less context.
    logging.basicConfig(level=max(threshold, logging.WARNING), stream=sys.stderr)
    for noisy in ("aiormq", "aio_pika", "pika"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)

"""Structured logs: one event a line, with the job's id and attempt where there is a job.

To log never fails: a full disk or a reader that has gone costs lines, not work. Nor does an outage
of a night fill a disk: what goes wrong again and again is a line every few seconds. Foreign text in
a line (a message's id, an error) neither steers the terminal nor pretends to be another line.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import math
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict

from switchyard.services.common.printable import printable, printable_json, printable_line

REPEAT_INTERVAL = 5.0
"""Seconds in which the same warning or error is one line."""
MAX_REMEMBERED = 1_000
"""Different lines at most."""


class LogStream:
    """A text stream whose writes never fail. What was lost is told once it can be written again."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = 0
        """Writes that failed since the last one that did not."""

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except (OSError, ValueError):  # ValueError: somebody has closed it
            self.lost += 1
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
            if self.lost:  # it can be written again
                self._stream.write(
                    json.dumps({"event": "log lines were lost", "level": "error"}) + "\n"
                )
                self._stream.flush()
                self.lost = 0
        except (OSError, ValueError):
            self.lost += 1


class Repeats:
    """Drops a warning or error that says word for word what was said within REPEAT_INTERVAL
    seconds; the next line tells how often it came, `times`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` in seconds; it only goes on."""
        self._clock = clock
        self._said: dict[str, tuple[float, int]] = {}
        """When each was last a line, and how often it has come since."""

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        if event.get("level") not in ("warning", "error") or "exc_info" in event:
            return event
        text = repr(sorted((name, str(value)) for name, value in event.items()))
        now = self._clock()
        at, dropped = self._said.get(text, (-math.inf, 0))
        if now - at < REPEAT_INTERVAL:
            self._said[text] = (at, dropped + 1)
            raise structlog.DropEvent
        if len(self._said) >= MAX_REMEMBERED:
            self._said.clear()
        self._said[text] = (now, 0)
        return {**event, "times": dropped + 1} if dropped else event


def configure(level: str = "info", form: str = "auto") -> None:
    """Send this process's logs to stderr. `level` and `form` as in the settings' `log_…`. Where a
    library crashes, its trace is the last that is said."""
    if not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__ or 2, all_threads=False)
    threshold = getattr(logging, level.upper())
    as_json = form == "json" or (form == "auto" and not sys.stderr.isatty())
    stream: Any = LogStream(sys.stderr)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        Repeats(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_json:
        # Without local variables: they may be private, and make a line of many kilobytes.
        frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        shared += [
            structlog.processors.ExceptionRenderer(frames),
            structlog.processors.JSONRenderer(),
            _printable_document,
        ]
    else:
        shared += [
            structlog.processors.format_exc_info,
            _traceback_below,
            _printable_event,  # last: what comes after it is the renderer's own styling
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    structlog.configure(
        processors=shared,
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    # Libraries beneath report what this system reports itself, with less context.
    logging.basicConfig(level=max(threshold, logging.WARNING), stream=stream)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_PrintableFormatter(logging.BASIC_FORMAT))
    for noisy in ("aiormq", "aio_pika", "pika"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)


class _PrintableFormatter(logging.Formatter):
    """For the lines of libraries beneath."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _traceback_below(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Print a traceback that came as text below its line."""
    if "traceback" in event and "exception" not in event:
        event["exception"] = str(event.pop("traceback")).rstrip()
    return event


def _printable_event(_logger: Any, _method: str, event: EventDict) -> EventDict:
    return {
        printable_line(name): printable(value) if name in _LINES else _printable_value(value)
        for name, value in event.items()
    }


_LINES = ("exception", "stack")
"""Of an event: what has several lines, as text."""


def _printable_value(value: Any) -> Any:
    if isinstance(value, str):
        return printable_line(value)
    shown = repr(value)
    safe = printable_line(shown)
    return value if safe == shown else safe


def _printable_document(_logger: Any, _method: str, line: str) -> str:
    return printable_json(line)

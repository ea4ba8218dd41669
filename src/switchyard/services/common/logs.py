"""Structured logs: one event a line, with the job's id and attempt where there is a job.

Logging never fails: a full disk or a reader that has gone costs lines, not work. Nor does an outage
of a night fill a disk: an error that repeats is logged once every few seconds. Foreign text in a
line (a message's id, an error) can't steer the terminal or look like another line.
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
"""Most different lines that are remembered."""


class LogStream:
    """A text stream whose writes never fail. Once one succeeds again, a line tells how many lines
    were lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = 0
        """Lines that could not be written since the last report of lost lines."""
        self._is_counted = False
        """Whether the line whose end is still to come is in `lost` already."""

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
            self._is_counted = False
        except (OSError, ValueError):  # ValueError: somebody has closed it
            is_part = not text.endswith("\n")
            self.lost += text.count("\n") + is_part - self._is_counted
            self._is_counted = is_part
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
            if self.lost:
                notice = {"event": "log lines were lost", "level": "error", "count": self.lost}
                self._stream.write(json.dumps(notice) + "\n")
                self._stream.flush()
                self.lost = 0
        except (OSError, ValueError):
            self.lost = max(self.lost, 1)


class Repeats:
    """Drops a warning or error that was logged word for word within the last REPEAT_INTERVAL
    seconds; the next line that is not dropped tells how often it came, `times`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: a monotonic clock, in seconds."""
        self._clock = clock
        self._last_logged: dict[str, tuple[float, int]] = {}
        """By text: when it was last logged, and how often it was dropped since."""

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        if event.get("level") not in ("warning", "error") or "exc_info" in event:
            return event
        text = repr(sorted((name, str(value)) for name, value in event.items()))
        now = self._clock()
        at, dropped = self._last_logged.get(text, (-math.inf, 0))
        if now - at < REPEAT_INTERVAL:
            self._last_logged[text] = (at, dropped + 1)
            raise structlog.DropEvent
        if len(self._last_logged) >= MAX_REMEMBERED:
            self._last_logged.clear()
        self._last_logged[text] = (now, 0)
        return {**event, "times": dropped + 1} if dropped else event


def configure(level: str = "info", form: str = "auto") -> None:
    """Send this process's logs to stderr. `level` and `form` as the settings JOBS_LOG_…. Where a
    library crashes, its trace is the last line."""
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
    quiet_libraries()


def quiet_libraries() -> None:
    """Suppress the lines of libraries whose errors this system reports itself. A second call does
    nothing."""
    for name in ("aiormq", "aio_pika", "pika"):
        logger = logging.getLogger(name)
        if logger.level != logging.CRITICAL:  # setting a level visits all loggers
            logger.setLevel(logging.CRITICAL)


class _PrintableFormatter(logging.Formatter):
    """Formats the lines of libraries, with nothing in them that steers a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _traceback_below(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Print a traceback that came as text below its line."""
    if "traceback" in event and "exception" not in event:
        event["exception"] = str(event.pop("traceback")).rstrip()
    return event


def _printable_event(_logger: Any, _method: str, event: EventDict) -> EventDict:
    return {
        printable_line(name): printable(value)
        if name in _MULTI_LINE_FIELDS
        else _printable_value(value)
        for name, value in event.items()
    }


_MULTI_LINE_FIELDS = ("exception", "stack")
"""Fields of an event whose text may have several lines."""


def _printable_value(value: Any) -> Any:
    if isinstance(value, str):
        return printable_line(value)
    text = repr(value)
    printable_text = printable_line(text)
    return value if printable_text == text else printable_text


def _printable_document(_logger: Any, _method: str, line: str) -> str:
    return printable_json(line)

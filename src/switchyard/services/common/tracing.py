"""Trace a job from its request over every stage, retry and redrive, as spans of OpenTelemetry
(docs/tracing.md).

Off, this module imports nothing, and a span costs one look-up of a variable. `tracing` turns it on
for a process where the environment names an exporter, as OpenTelemetry defines it. The tracer is in
the context, as the log's fields are, so that no caller passes it on.

A job carries the W3C `traceparent` of its publish, in its message and so in its record: everything
that happens to it later (a retry, a redrive, another worker, the end of a join) belongs to the same
trace."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import structlog

from switchyard.services.common.traceparent import valid_traceparent

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

MAX_VALUE_LENGTH = 200
"""Characters of an attribute."""
FLUSH_TIMEOUT = 5_000
"""Milliseconds to send the remaining spans when a process ends."""
_ENABLING_VARIABLES = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
)

Value = str | int | float | bool
Kind = Literal["internal", "server", "client", "producer", "consumer"]


class SpanHandle(Protocol):
    """An open span."""

    @property
    def traceparent(self) -> str | None:
        """The traceparent for a child span in another process; None if tracing is off."""
        ...

    def note(self, **attributes: Value | None) -> None:
        """Add attributes; text is cut to 200 characters, None left out. Never a payload, an
        answer or an address: these may be private."""
        ...

    def failed(self, kind: str) -> None:
        """Mark the span as failed; `kind` is the type of the error."""
        ...

    def rename(self, name: str) -> None:
        """Rename the span, once its name is known."""
        ...

    def end(self) -> None:
        """End the span; only for spans from `begin`."""
        ...


class _NoSpan:
    traceparent: str | None = None

    def note(self, **attributes: Value | None) -> None:
        """Do nothing: tracing is off."""

    def failed(self, kind: str) -> None:
        """Do nothing: tracing is off."""

    def rename(self, name: str) -> None:
        """Do nothing: tracing is off."""

    def end(self) -> None:
        """Do nothing: tracing is off."""


class _OpenSpan:
    def __init__(self, span: Any) -> None:
        self.span = span

    @property
    def traceparent(self) -> str | None:
        context = self.span.get_span_context()
        if not context.is_valid:
            return None
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def note(self, **attributes: Value | None) -> None:
        for name, value in _span_attributes(attributes).items():
            self.span.set_attribute(name, value)

    def failed(self, kind: str) -> None:
        from opentelemetry.trace import StatusCode

        self.span.set_attribute("error.type", kind[:MAX_VALUE_LENGTH])
        self.span.set_status(StatusCode.ERROR)

    def rename(self, name: str) -> None:
        self.span.update_name(name[:MAX_VALUE_LENGTH])

    def end(self) -> None:
        self.span.end()


_NO_SPAN: Final = _NoSpan()
_tracer: Final[ContextVar[Any]] = ContextVar("tracer", default=None)


def tracer() -> Any:
    """Return the tracer of this context, for `tracing_by`; None if tracing is off."""
    return _tracer.get()


@contextmanager
def tracing_by(tracer: Any) -> Iterator[None]:
    """Trace with this tracer from another context: a server handles requests in contexts of their
    own."""
    token = _tracer.set(tracer)
    try:
        yield
    finally:
        _tracer.reset(token)


@contextmanager
def span(
    name: str,
    *,
    kind: Kind = "internal",
    parent: str | None = None,
    **attributes: Value | None,
) -> Iterator[SpanHandle]:
    """Open a span around the context's block; spans that begin within it are its children.

    Its own parent is `parent`, a traceparent, or else the surrounding span. An exception raised in
    the block is recorded by its type. In names of attributes, `__` stands for a dot.
    """
    active = tracer()
    if active is None:
        yield _NO_SPAN
        return
    from opentelemetry.trace import use_span

    open_span = _start_span(active, name, kind, parent, None, attributes)
    try:
        # Its exceptions are not recorded: their text may be private.
        with use_span(open_span.span, record_exception=False, set_status_on_exception=False):
            yield open_span
    except BaseException as error:
        open_span.failed(type(error).__name__)
        raise
    finally:
        open_span.end()


def begin(
    name: str, *, kind: Kind = "internal", parent: str | None = None, **attributes: Value | None
) -> SpanHandle:
    """Begin a span that surrounds no block, such as one of many at once; the caller calls `end`."""
    active = tracer()
    return _NO_SPAN if active is None else _start_span(active, name, kind, parent, None, attributes)


def record(name: str, *, began: float, parent: str | None, **attributes: Value | None) -> None:
    """Record a span that ends now and began at `began` (seconds since the epoch), such as a wait.
    Does nothing without a parent."""
    active = tracer()
    if active is not None and valid_traceparent(parent) is not None:
        _start_span(active, name, "internal", parent, began, attributes).end()


def _start_span(
    active: Any,
    name: str,
    kind: Kind,
    parent: str | None,
    began: float | None,
    attributes: Mapping[str, Value | None],
) -> _OpenSpan:
    from opentelemetry.trace import SpanKind

    return _OpenSpan(
        active.start_span(
            name[:MAX_VALUE_LENGTH],
            context=_context_of(parent),
            kind=SpanKind[kind.upper()],
            attributes=_span_attributes(attributes),
            start_time=None if began is None else int(began * 1e9),
        )
    )


def current_traceparent() -> str | None:
    """Return the traceparent of the surrounding span; None if tracing is off, or outside of any
    span."""
    if tracer() is None:
        return None
    from opentelemetry.trace import get_current_span

    return _OpenSpan(get_current_span()).traceparent


def _context_of(parent: str | None) -> Any:
    if valid_traceparent(parent) is None:
        return None
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": parent}, context=Context())


def _span_attributes(attributes: Mapping[str, Value | None]) -> dict[str, Value]:
    """Return attributes as a span gets them: names with dots for `__`, text cut to
    MAX_VALUE_LENGTH, None left out."""
    return {
        name.replace("__", "."): value[:MAX_VALUE_LENGTH] if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }


@contextmanager
def tracing(process: str) -> Iterator[None]:
    """Trace the block, and all tasks that begin in it, where the environment asks for
    it. `process`: the service's name after `switchyard-`, unless OTEL_SERVICE_NAME is set.

    Raises ValueError for an exporter that is not installed.
    """
    if not _is_enabled():
        yield
        return
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        structlog.get_logger("tracing").warning(
            "nothing is traced: OTEL_… asks for it, and `switchyard[tracing]` is not installed"
        )
        yield
        return
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    with tracing_to(BatchSpanProcessor(_make_exporter()), process):
        yield


@contextmanager
def tracing_to(processor: SpanProcessor, process: str) -> Iterator[None]:
    """Trace as `tracing` does, to this processor."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider

    service = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: f"switchyard-{process}"}
    provider = TracerProvider(resource=Resource.create(service), shutdown_on_exit=False)
    provider.add_span_processor(processor)
    try:
        with tracing_by(provider.get_tracer("switchyard")):
            yield
    finally:
        provider.force_flush(FLUSH_TIMEOUT)
        provider.shutdown()


def _is_enabled() -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "").lower() == "none":
        return False
    return any(os.environ.get(name) for name in _ENABLING_VARIABLES)


def _make_exporter() -> Any:
    """Make the exporter that OTEL_TRACES_EXPORTER names; it reads its own variables."""
    name = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    name = "otlp_proto_http" if name == "otlp" else name
    entry_point = next(iter(entry_points(group="opentelemetry_traces_exporter", name=name)), None)
    if entry_point is None:
        raise ValueError(f"OTEL_TRACES_EXPORTER={name[:50]}: no such exporter is installed")
    return entry_point.load()()

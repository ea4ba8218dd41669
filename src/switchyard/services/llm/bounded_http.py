"""Bound a model server's answer before the SDK collects it in memory.

The SDK reads an error, an answer that is no stream, and each event of a stream to its end: a server
that sends without end would fill the memory within the time limit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any

from switchyard.services.llm.llm_errors import InvalidLlmResponse

if TYPE_CHECKING:
    import openai

MAX_BODY = 16 * 1024 * 1024
"""Bytes of the largest answer that is no stream; parsed as JSON, it may take twenty times as much
memory."""
MAX_FILE = 64 * 1024 * 1024
"""Bytes of a file of answers, which is read line by line."""

MAX_EVENT = 16 * 1024 * 1024
"""Bytes of the largest event of a stream. Some servers send a whole answer in one event:
`completion_reader.MAX_ANSWER` characters, and the fields around them."""
_EVENT_SEPARATORS = (b"\n\n", b"\r\r", b"\r\n\r\n")


def bounded_http(timeout: float) -> openai.DefaultAsyncHttpxClient:
    """Return the SDK's HTTP client. It raises InvalidLlmResponse for an answer beyond these bounds,
    for a compressed one, which could grow beyond them later, and for a redirect to another host."""
    import openai

    from switchyard.broker.tls import authorities

    return openai.DefaultAsyncHttpxClient(
        timeout=timeout,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"response": [_bound_response]},
        verify=authorities(),
    )


async def _bound_response(response: Any) -> None:
    if response.headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        raise InvalidLlmResponse(
            "the model server compresses its answer although the request forbids it: turn that "
            "off at the server, or at the proxy before it"
        )
    if response.has_redirect_location and not _stays_at_server(response):
        raise InvalidLlmResponse(
            "the model server redirects to another host, which is not followed: if that is the "
            "right server, set its address in the settings"
        )
    is_stream = response.is_success and "event-stream" in response.headers.get("content-type", "")
    read_raw = response.aiter_raw
    is_file = response.request.url.path.endswith("/content")
    bound = (
        _bounded_events
        if is_stream
        else partial(_bounded_body, max_bytes=MAX_FILE if is_file else MAX_BODY)
    )

    # The SDK reads all parts of an answer through this method.
    response.aiter_raw = lambda *args, **options: bound(read_raw(*args, **options))


def _stays_at_server(response: Any) -> bool:
    """Return whether a redirect stays at the server that was asked: no server may send our key to
    an address that it chooses."""
    server = response.request.url
    try:
        target = server.join(response.headers["location"])
    except Exception:  # an invalid address; the client's error class can't be imported here
        return False
    return (target.scheme, target.host, target.port) == (server.scheme, server.host, server.port)


async def _bounded_body(parts: AsyncIterator[bytes], *, max_bytes: int) -> AsyncIterator[bytes]:
    size = 0
    async for part in parts:
        size += len(part)
        if size > max_bytes:
            raise InvalidLlmResponse(
                f"the model server's answer is longer than {max_bytes:,} bytes"
            )
        yield part


async def _bounded_events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass a stream on, and bound each event. `CompletionReader` bounds the text of the whole
    stream."""
    event_size, tail = 0, b""
    async for part in parts:
        tail_and_part = tail + part
        event_end = max(
            tail_and_part.rfind(separator) + len(separator) if separator in tail_and_part else 0
            for separator in _EVENT_SEPARATORS
        )
        event_size = len(tail_and_part) - event_end if event_end else event_size + len(part)
        if event_size > MAX_EVENT:
            raise InvalidLlmResponse(
                f"an event of the model server's answer is longer than {MAX_EVENT:,} bytes"
            )
        tail = tail_and_part[-3:]
        yield part

"""What a server of models sends is bounded before the SDK collects it.

The SDK reads an error, and an answer that is no stream, to its end: a server that never comes to
one would fill the memory within the time limit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from switchyard.services.llm.errors import LlmNonsense

if TYPE_CHECKING:
    import openai

MAX_BODY = 64 * 1024 * 1024
"""Bytes of an answer that is no stream: a batch of vectors as text has a tenth of that."""


def bounded_http(timeout: float) -> openai.DefaultAsyncHttpxClient:
    """The SDK's HTTP client, in whose answers LlmNonsense is raised beyond that, and where they are
    packed: they would grow behind any bound."""
    import openai

    return openai.DefaultAsyncHttpxClient(
        timeout=timeout,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"response": [_bound]},
    )


async def _bound(response: Any) -> None:
    if response.headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        raise LlmNonsense("the LLM server packs its answer although it was asked not to")
    if response.is_success and "event-stream" in response.headers.get("content-type", ""):
        return  # `Reading` counts what comes
    sent = response.aiter_raw

    async def bounded(*how: Any, **more: Any) -> AsyncIterator[bytes]:
        size = 0
        async for part in sent(*how, **more):
            size += len(part)
            if size > MAX_BODY:
                raise LlmNonsense(f"the LLM server's answer is longer than {MAX_BODY:,} bytes")
            yield part

    # Everything that the SDK reads of an answer goes through this.
    response.aiter_raw = bounded

"""A client for servers that answer plainly: nothing that they send grows while it is read.

300 bytes that are packed three times are 4 GB, in one step, before anybody can count them.
"""

from __future__ import annotations

from typing import Any

import httpx

from switchyard.broker.tls import authorities


def uncompressed_client(**options: Any) -> httpx.AsyncClient:
    """An `httpx.AsyncClient` with these options. It asks for answers that are not packed, and a
    packed one raises httpx.DecodingError before any of it is read."""
    headers = {"Accept-Encoding": "identity", **options.pop("headers", {})}
    return httpx.AsyncClient(
        headers=headers,
        event_hooks={"response": [_refuse_packed]},
        verify=authorities(),
        **options,
    )


async def _refuse_packed(response: httpx.Response) -> None:
    if response.headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        raise httpx.DecodingError(
            "the server packs its answer although it was asked not to", request=response.request
        )

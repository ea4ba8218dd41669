"""A typed client of the HTTP API, sync and async. Start here.

from switchyard import Client

with Client() as client:                                   # http://127.0.0.1:8000
    document = client.upload("paper.pdf", source="https://example.org/paper")
    print(client.wait_for_document(document.document_id, timeout=120).state)
    for hit in client.search("why the tide rises").hits:
        print(hit.title, hit.page, hit.snippet)
"""

from switchyard.services.common.light_imports import without_unused

with without_unused():
    import httpx  # noqa: F401

from switchyard.api.client.clients import AsyncClient, Client
from switchyard.api.client.errors import (
    ApiError,
    ApiUnavailable,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    RateLimited,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnexpectedResponse,
    UnsupportedMedia,
    WaitTimeout,
)
from switchyard.api.client.sse import Event

__all__ = [
    "ApiError",
    "ApiUnavailable",
    "AsyncClient",
    "Client",
    "Conflict",
    "Event",
    "Forbidden",
    "Invalid",
    "NotFound",
    "RateLimited",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UnexpectedResponse",
    "UnsupportedMedia",
    "WaitTimeout",
]

"""The certificate authorities that HTTP clients trust, loaded once and not for each client.

Loading takes 30 ms of processor time, during which an event loop stands still.
"""

from __future__ import annotations

import os
import ssl
from functools import lru_cache

import httpcore
import httpx


def authorities() -> ssl.SSLContext:
    """Return the value for the option `verify` of an HTTP client: the authorities in
    `SSL_CERT_FILE` or `SSL_CERT_DIR`, else those of httpx. Raises OSError for a missing file."""
    return _load_authorities(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=2)
def _load_authorities(file: str | None, folder: str | None) -> ssl.SSLContext:
    # httpx reads both variables itself; the parameters are only the key of the cache.
    return httpx.create_ssl_context()


@lru_cache(maxsize=1)
def web_authorities() -> ssl.SSLContext:
    """Return the authorities for addresses of the open internet: those of httpx, and those that the
    system and `SSL_CERT_FILE` name beside them. Call it in a thread the first time."""
    return httpcore.default_ssl_context()

"""Normalise addresses of web pages, so that a page is one document. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urldefrag, urljoin, urlsplit, urlunsplit

MAX_LENGTH = 2000
"""Longest address, in characters."""


def page_address(text: str) -> str:
    """Return an address in normal form: scheme and host in lower case, without the scheme's default
    port and without a fragment. Raises ValueError, which says what is wrong."""
    import httpx

    try:
        url = httpx.URL(urldefrag(text.strip()).url)
    except (httpx.InvalidURL, ValueError, UnicodeError) as error:
        raise ValueError(f"{text[:200]!r} is no web address") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"{text[:200]!r} is no web address: it begins with http:// or https://")
    if url.userinfo:
        raise ValueError("an address must not contain a user or password")
    if url.port is not None and not 0 < url.port < 65_536:
        raise ValueError(f"there is no port {url.port}")
    parts = urlsplit(str(url))
    address = urlunsplit(parts if parts.path else parts._replace(path="/"))
    if len(address) > MAX_LENGTH:
        raise ValueError(f"the address has more than {MAX_LENGTH:,} characters")
    return address


def origin_of(url: str) -> str:
    """Return scheme, host and port, without a slash: the site that a robots.txt is for."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def link_addresses(base: str, links: Iterable[str], *, max_links: int) -> list[str]:
    """Return the addresses of links on a page, each once, in their order; invalid ones are left
    out."""
    addresses: dict[str, None] = {}
    for each in links:
        if len(addresses) >= max_links:
            break
        if len(each) > MAX_LENGTH:
            continue
        try:
            addresses[page_address(urljoin(base, each.strip()))] = None
        except ValueError:
            continue
    return list(addresses)

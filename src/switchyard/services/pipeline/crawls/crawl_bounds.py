"""Check the bounds of a crawl: hosts, depth, number of pages, and time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.services.common.errors import InvalidInput
from switchyard.services.common.files.safe_http import host_and_port
from switchyard.services.pipeline.records.crawls import (
    MAX_CRAWL_SECONDS,
    MAX_DEPTH,
    MAX_HOSTS,
    MAX_STARTS,
)
from switchyard.services.pipeline.sources.web.web_addresses import page_address

_HOST = re.compile(r"(\*\.)?[a-z0-9\[\]:._-]{1,255}", re.IGNORECASE)


class InvalidCrawl(InvalidInput):
    """The request for a crawl is invalid; the text says what to change."""

    def __init__(self, text: str, *, field: str) -> None:
        super().__init__(text)
        self.field = field
        """The name of the invalid field."""


@dataclass(frozen=True, slots=True)
class CrawlBounds:
    """Where a crawl begins, and how far it goes."""

    start: tuple[str, ...]
    hosts: tuple[str, ...]
    max_pages: int
    max_depth: int
    within: float
    """Duration in seconds: later, the crawl visits no more pages."""

    @classmethod
    def from_request(
        cls,
        start: Sequence[str],
        hosts: Sequence[str],
        *,
        max_pages: int,
        max_depth: int,
        within: float,
        page_limit: int,
    ) -> CrawlBounds:
        """Check the bounds of a request; `page_limit` is JOBS_CRAWL_MAX_PAGES. The hosts of the
        start addresses always belong to the crawl. Raises InvalidCrawl."""
        if not 1 <= len(start) <= MAX_STARTS:
            raise InvalidCrawl(f"a crawl begins at 1 to {MAX_STARTS} addresses", field="start")
        try:
            start_pages = tuple(dict.fromkeys(page_address(each) for each in start))
        except ValueError as error:
            raise InvalidCrawl(str(error), field="start") from error
        if len(hosts) > MAX_HOSTS:
            raise InvalidCrawl(f"a crawl has {MAX_HOSTS} hosts at most", field="hosts")
        for each in hosts:
            if _HOST.fullmatch(each) is None:
                raise InvalidCrawl(
                    f"{each[:100]!r} is no host: write example.org, *.example.org for all its "
                    "subdomains, or intranet.example:8080",
                    field="hosts",
                )
        if not 1 <= max_pages <= page_limit:
            raise InvalidCrawl(
                f"max_pages must be 1 to {page_limit:,} (JOBS_CRAWL_MAX_PAGES)", field="max_pages"
            )
        if not 0 <= max_depth <= MAX_DEPTH:
            raise InvalidCrawl(f"max_depth must be 0 to {MAX_DEPTH}", field="max_depth")
        if not 1 <= within <= MAX_CRAWL_SECONDS:
            raise InvalidCrawl(
                f"within must be 1 to {MAX_CRAWL_SECONDS:,.0f} seconds", field="within"
            )
        all_hosts = dict.fromkeys([*map(host_of, start_pages), *(each.lower() for each in hosts)])
        return cls(start_pages, tuple(all_hosts), max_pages, max_depth, within)


def host_of(url: str) -> str:
    """Return the host as crawls name it: with its port, unless that is 80 or 443."""
    host, port = host_and_port(url)
    name = f"[{host}]" if ":" in host else host
    return name if port in (80, 443) else f"{name}:{port}"


def is_on_hosts(url: str, hosts: Sequence[str]) -> bool:
    """Return whether the address is on one of the hosts; `*.example.org` stands for all subdomains
    of example.org."""
    host = host_of(url)
    return any(host.endswith(each[1:]) if each.startswith("*.") else host == each for each in hosts)

"""Describe calls that start, follow and cancel crawls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from switchyard.api.client.call import Call, get, in_path, operation, without_none
from switchyard.api.models import crawls as models


@operation("crawls-start")
def crawl(
    start: str | Sequence[str],
    *,
    hosts: Sequence[str] = (),
    max_pages: int | None = None,
    max_depth: int | None = None,
    within: float | None = None,
    tags: Mapping[str, str] | None = None,
    idempotency_key: str | None = None,
) -> Call[models.CrawlView]:
    """Start a crawl at one or more addresses; `within` is seconds. With an `idempotency_key`, a
    repeated call returns the same crawl, so it may be retried."""
    body = {
        "start": [start] if isinstance(start, str) else list(start),
        "hosts": list(hosts),
        "max_pages": max_pages,
        "max_depth": max_depth,
        "within": within,
        "tags": None if tags is None else dict(tags),
    }
    return Call(
        "POST",
        "/crawl",
        models.CrawlView.model_validate_json,
        headers=without_none({"Idempotency-Key": idempotency_key}),
        json=without_none(body),
        repeatable=idempotency_key is not None,
    )


@operation("crawls-list_crawls")
def crawls(*, limit: int | None = None, cursor: str | None = None) -> Call[models.CrawlList]:
    """List crawls, newest first."""
    return get("/crawl", models.CrawlList, limit=limit, cursor=cursor)


@operation("crawls-show")
def crawl_progress(crawl_id: str) -> Call[models.CrawlView]:
    """Return the progress of a crawl."""
    return get(f"/crawl/{in_path(crawl_id)}", models.CrawlView)


@operation("crawls-pages")
def crawl_pages(
    crawl_id: str, *, limit: int | None = None, cursor: str | None = None
) -> Call[models.CrawlPages]:
    """Return a crawl's pages with the result of each, the last due first."""
    return get(f"/crawl/{in_path(crawl_id)}/pages", models.CrawlPages, limit=limit, cursor=cursor)


@operation("crawls-cancel")
def cancel_crawl(crawl_id: str) -> Call[models.CrawlView]:
    """Cancel a crawl: no more pages are visited."""
    read = models.CrawlView.model_validate_json
    return Call("DELETE", f"/crawl/{in_path(crawl_id)}", read, repeatable=True)

"""Repositories of GitHub as a source: of an organisation, of a search, or of a list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import quote

from pydantic import AfterValidator, Field, model_validator

from switchyard.broker import patterns
from switchyard.services.engine.backfill.sources import Cursor, Item, Unusable
from switchyard.services.pipeline.records.strict_model import StrictModel
from switchyard.services.pipeline.sources.document_source import mapping
from switchyard.services.pipeline.sources.github import github_server, repository_name
from switchyard.services.pipeline.sources.paged_backfill import PagedSource, backfill_client
from switchyard.services.pipeline.sources.source_client import SourceClient, SourceServer

PAGE_SIZE = 100
MAX_SEARCH_RESULTS = 1000
"""Most results of a search that GitHub returns."""
_JSON = "application/vnd.github+json"


class GithubOptions(StrictModel):
    """Options of the source `github`: one of the three."""

    org: str | None = Field(default=None, pattern=patterns.GITHUB_ORG)
    """An organisation: all its repositories."""
    query: str | None = Field(default=None, min_length=1, max_length=256)
    """A search in GitHub's syntax: `topic:ocr language:python stars:>100`; its first 1,000 results
    are read."""
    repositories: list[Annotated[str, AfterValidator(repository_name)]] | None = Field(
        default=None, min_length=1, max_length=10_000
    )
    """Names of repositories, each as `owner/name`."""

    @model_validator(mode="after")
    def _check_one_given(self) -> Self:
        if sum(each is not None for each in (self.org, self.query, self.repositories)) != 1:
            raise ValueError("give one of org, query and repositories")
        return self


class GithubBackfill(PagedSource):
    """Repositories of an organisation, of a search, or of a list.

    An organisation's are read by creation, a search's as GitHub ranks them, a list's in its order.
    The cursor's page is GitHub's page number.
    """

    name: ClassVar[str] = "github"
    Options = GithubOptions
    options: GithubOptions
    job_type: ClassVar[str | None] = "ingest_github"
    first_page: ClassVar[int] = 1

    @property
    def title(self) -> str:
        options = self.options
        if options.repositories is not None:
            return f"github {len(options.repositories):,} repositories"
        return f"github {options.org or options.query}"

    async def total(self) -> int | None:
        if self.options.repositories is not None:
            return len(self.options.repositories)
        async with backfill_client(self.server, self.context) as client:
            if self.options.query is not None:
                results = await self._page(client, 1, 1)
                count = results.get("total_count")
                return min(count, MAX_SEARCH_RESULTS) if isinstance(count, int) else None
            path = f"/orgs/{quote(self.options.org or '')}"
            response = await client.get(path, accept=_JSON)
            count = mapping(response.json(), "organisation", "GitHub").get("public_repos")
            return count if isinstance(count, int) else None

    @property
    def server(self) -> SourceServer:
        return github_server(self.context.settings)

    async def pages(self, client: SourceClient, page: int) -> AsyncIterator[tuple[int, object]]:
        if self.options.repositories is not None:
            yield page, [{"full_name": name} for name in self.options.repositories]
            return
        while True:
            results = await self._page(client, page, PAGE_SIZE)
            entries, total = results.get("items"), results.get("total_count", 0)
            if not isinstance(entries, list) or len(entries) < PAGE_SIZE:
                yield page, entries
                return
            is_last = self.options.query is not None and page * PAGE_SIZE >= MAX_SEARCH_RESULTS
            if is_last and isinstance(total, int) and total > MAX_SEARCH_RESULTS:
                entries = [*entries, _RestOfSearch(total)]
            yield page, entries
            if is_last:
                return
            page += 1

    def item_of(self, entry: Any, cursor: Cursor) -> Item | Unusable:
        if isinstance(entry, _RestOfSearch):
            reason = (
                f"GitHub gives the first {MAX_SEARCH_RESULTS:,} results of {entry.total:,}: "
                "divide the search"
            )
            return Unusable("the rest of the search", reason, cursor)
        name = repository_name(entry["full_name"])
        return Item(name.lower(), {"repository": name}, cursor)

    async def _page(self, client: SourceClient, page: int, size: int) -> dict[str, Any]:
        paging = {"per_page": str(size), "page": str(page)}
        if self.options.query is not None:
            # GitHub can't sort a search by creation: pages may shift while it is read.
            params = {"q": self.options.query, **paging}
            response = await client.get("/search/repositories", params, accept=_JSON)
            return dict(mapping(response.json(), "search", "GitHub"))
        order = {"sort": "created", "direction": "asc"}
        path = f"/orgs/{quote(self.options.org or '')}/repos"
        response = await client.get(path, {**order, **paging}, accept=_JSON)
        return {"items": response.json()}


@dataclass(frozen=True, slots=True)
class _RestOfSearch:
    """Stands for the results of a search that GitHub does not return."""

    total: int
    """Results of the whole search."""

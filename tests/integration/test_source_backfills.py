"""Backfills of repositories and models: which items they list, and where they resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.services.common.files.storage import Storage
from switchyard.services.common.settings import Settings
from switchyard.services.engine.backfill.sources import (
    InvalidBackfill,
    Item,
    Source,
    SourceContext,
    SourceFailed,
    Sources,
    SourceUnreachable,
    Unusable,
)
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.pipeline.sources import backfill_github as github
from switchyard.services.pipeline.sources import backfill_huggingface as huggingface
from tests.support import site as server
from tests.support.hosts import model, repository
from tests.support.ledgers import make_ledger
from tests.support.site import Exchange, Request, Site


class PagedSite(Site):
    """A site that lists in pages, as GitHub and Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.names = [f"psf/repository-{number}" for number in range(7)]

    def answer(self, exchange: Exchange, request: Request) -> None:
        parameters = request.parameters
        if request.path == "/orgs/psf":
            return server.says({"public_repos": len(self.names)})(exchange, request)
        if request.path in ("/orgs/psf/repos", "/search/repositories"):
            size, page = int(parameters["per_page"]), int(parameters["page"])
            listed = [repository(name) for name in self.names[(page - 1) * size : page * size]]
            body: Any = listed
            if "q" in parameters:
                body = {"total_count": len(self.names), "items": listed}
            return server.says(body)(exchange, request)
        if request.path in ("/api/models", "/api/datasets"):
            size, offset = int(parameters["limit"]), int(parameters.get("cursor", 0))
            has_more = offset + size < len(self.names)
            query = f"limit={size}&cursor={offset + size}"
            link = (
                {"Link": f'<{self.origin}{request.path}?{query}>; rel="next"'} if has_more else {}
            )
            listed = [model(name) for name in self.names[offset : offset + size]]
            return server.says(listed, headers=link)(exchange, request)
        return super().answer(exchange, request)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[PagedSite]:
    monkeypatch.setattr(github, "PAGE_SIZE", 3)
    monkeypatch.setattr(huggingface, "PAGE_SIZE", 3)
    with PagedSite() as opened:
        yield opened


@pytest.fixture
async def context(tmp_path: Path, site: PagedSite) -> Any:
    settings = Settings(
        data_dir=tmp_path,
        github_base_url=site.origin,
        github_interval=0.0,
        hf_base_url=site.origin,
        hf_interval=0.0,
    )
    await make_ledger(settings.ledger_url)
    async with await Ledger.open(settings.ledger_url) as ledger:
        yield SourceContext(settings, ledger, Storage(settings.files_url), 0.0, max_wait=5)


def open_source(context: SourceContext, name: str, **options: Any) -> Source:
    return Sources.load().open(name, options, context)


async def read_items(source: Source, cursor: Any = None) -> list[Item | Unusable]:
    return [item async for item in source.items(cursor)]


SEARCHES = [
    ("github", {"org": "psf"}),
    ("github", {"query": "tides"}),
    ("github", {"repositories": [f"psf/repository-{number}" for number in range(7)]}),
    ("huggingface", {"author": "psf"}),
    ("huggingface", {"search": "tides", "kind": "dataset"}),
]


@pytest.mark.parametrize(("name", "options"), SEARCHES)
async def test_every_item_is_read_once_and_each_cursor_resumes_after_its_item(
    context: SourceContext, site: PagedSite, name: str, options: dict[str, Any]
) -> None:
    source = open_source(context, name, **options)
    items = await read_items(source)
    assert len({item.key for item in items if isinstance(item, Item)}) == len(items) == 7
    for number, item in enumerate(items, start=1):
        following = await read_items(open_source(context, name, **options), item.cursor)
        assert [getattr(item, "key", None) for item in following] == [
            getattr(item, "key", None) for item in items[number:]
        ]
    declared = Registry.load().get(str(source.job_type))
    for item in items:
        assert isinstance(item, Item)
        declared.validate_remote(item.values)
    assert await source.total() in (7, None)


async def test_the_notes_say_what_githubs_search_leaves_out(
    context: SourceContext, site: PagedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(github, "MAX_SEARCH_RESULTS", 6)
    source = open_source(context, "github", query="tides")
    items = await read_items(source)
    assert [type(item) for item in items] == [*[Item] * 6, Unusable]
    assert await source.total() == 6
    organisation = open_source(context, "github", org="psf")  # all repositories of which are read
    assert await organisation.total() == len(await read_items(organisation)) == 7


@pytest.mark.parametrize("name", ["github", "huggingface"])
async def test_an_unreachable_source_is_asked_again_and_a_refusing_one_is_not(
    context: SourceContext, site: PagedSite, name: str
) -> None:
    options = {"org": "psf"} if name == "github" else {"author": "psf"}
    for behaviour, error in (
        (server.fails(500), SourceUnreachable),
        (server.cut(), SourceUnreachable),
        (server.says({"items": 7}), SourceUnreachable),
        (server.says("<html>"), SourceUnreachable),
        (server.fails(404), SourceFailed),
        (server.fails(422), SourceFailed),
        (server.throttled(100), SourceUnreachable),
    ):
        site.next(behaviour)
        with pytest.raises(error):
            await read_items(open_source(context, name, **options))


async def test_items_without_a_name_are_left_out(context: SourceContext, site: PagedSite) -> None:
    nonsense = [{"full_name": 7}, 3, {}, repository("a/b")]
    site.next(server.says(nonsense))
    items = await read_items(open_source(context, "github", org="psf"), {"page": 1, "done": 0})
    assert [type(item) for item in items][:4] == [Unusable, Unusable, Unusable, Item]
    site.next(server.says([{"id": 7}, 3, model("a/b")]))
    items = await read_items(open_source(context, "huggingface", author="a"))
    assert [type(item) for item in items] == [Unusable, Unusable, Item]


async def test_a_next_page_elsewhere_is_not_followed(
    context: SourceContext, site: PagedSite
) -> None:
    with Site() as elsewhere:
        link = {"Link": f'<{elsewhere.origin}/api/models>; rel="next"'}
        site.next(server.says([model("a/b")], headers=link))
        with pytest.raises(SourceUnreachable, match="on another server"):
            await read_items(open_source(context, "huggingface", author="a"))
        assert elsewhere.requests == []


async def test_a_page_that_is_its_own_next_page_ends_the_listing(
    context: SourceContext, site: PagedSite
) -> None:
    page = f"{site.origin}/api/models?cursor=1"
    site.always(server.says([model("a/b")], headers={"Link": f'<{page}>; rel="next"'}))
    with pytest.raises(SourceUnreachable, match="its own next page"):
        await read_items(open_source(context, "huggingface", author="a"))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("github", {}),
        ("github", {"org": "psf", "query": "x"}),
        ("github", {"org": "../psf"}),
        ("github", {"repositories": ["x"]}),
        ("huggingface", {}),
        ("huggingface", {"author": "a/b"}),
        ("huggingface", {"search": "x", "kind": "space"}),
    ],
)
async def test_an_invalid_search_is_refused(
    context: SourceContext, name: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidBackfill):
        open_source(context, name, **options)

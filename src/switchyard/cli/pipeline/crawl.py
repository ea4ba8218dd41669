"""`jobctl crawl`: pages found by following links."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from switchyard.broker.times import format_local
from switchyard.cli.base.common import load_settings, open_ledger, quiet_logs, run
from switchyard.cli.base.durations import age, parse_duration
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    cell,
    console,
    echo,
    print_json,
    say,
    styled,
    table,
)
from switchyard.cli.base.shared_options import LimitOption, TagOption, tags_of
from switchyard.services.pipeline.records.crawls import MAX_DEPTH

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.records.results import Page
    from switchyard.services.pipeline.crawls.crawl_service import Crawls
    from switchyard.services.pipeline.records.crawls import CrawlProgress, ListedPage

T = TypeVar("T")
IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the crawl, from `jobctl crawl list`.")
]

app = typer.Typer(no_args_is_help=True, help="Crawls of web sites: start, list, show, cancel.")


@app.command()
def start(
    addresses: Annotated[
        list[str], typer.Argument(metavar="URL", help="Addresses of the first pages.")
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="Additional host to visit, for example docs.example.org or *.example.org; "
            "repeatable. Default: only the hosts of the URLs.",
        ),
    ] = None,
    max_pages: Annotated[
        int,
        typer.Option(
            min=1, help="Maximum number of pages; the upper limit is JOBS_CRAWL_MAX_PAGES."
        ),
    ] = 100,
    max_depth: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_DEPTH, help="Maximum number of links to follow from a first page."
        ),
    ] = 3,
    within: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Stop visiting pages after this time, for example 30m, 2h or 7d."
        ),
    ] = "24h",
    tags: TagOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a crawl: one job for each page found. Prints its id.

    Example:

    ```
    jobctl crawl start https://docs.example.org/ --max-pages 500 --max-depth 4
    ```
    """
    from switchyard.cli.base.common import current_user
    from switchyard.services.pipeline.crawls.crawl_bounds import CrawlBounds

    settings, job_tags = load_settings(), tags_of(tags)
    bounds = CrawlBounds.from_request(
        addresses,
        host or [],
        max_pages=max_pages,
        max_depth=max_depth,
        within=parse_duration(within),
        page_limit=settings.crawl_max_pages,
    )

    async def load(service: Crawls) -> tuple[CrawlProgress, bool]:
        crawl = await service.start(bounds, created_by=current_user(), tags=job_tags)
        return await service.show(crawl.id), await _is_lane_full(settings)

    quiet_logs()
    progress, is_lane_full = _with_crawls(load)
    if is_lane_full:
        say("The backfill lane is full (`jobctl lanes`): its pages wait until there is room.")
    if as_json:
        from switchyard.api.views.pipeline import view_crawl

        print_json(view_crawl(progress))
        return
    echo(progress.crawl.id)
    say(f"The scheduler publishes its pages; see `jobctl crawl show {progress.crawl.id}`.")


async def _is_lane_full(settings: Settings) -> bool:
    """Return whether the backfill lane is full; False if that can't be found out."""
    from switchyard.broker.errors import BrokerUnavailable
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.monitoring.lane_pressure import LanePressure
    from switchyard.services.engine.records.states import Pressure
    from switchyard.services.pipeline.crawls.crawl_pages import crawl_pressure

    if settings.amqp_url is None:
        return False
    async with LanePressure(settings, Registry.load()) as lanes:
        try:
            return crawl_pressure(await lanes.snapshot()) is Pressure.FULL
        except BrokerUnavailable:
            return False


@app.command("list")
def list_crawls(
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """List crawls, newest first."""
    crawls = _with_crawls(lambda service: service.all(limit=limit)).items
    if as_json:
        from switchyard.api.views.pipeline import view_crawl

        print_json([view_crawl(each) for each in crawls])
        return
    if not crawls:
        say("No crawls: `jobctl crawl start URL`.")
        return
    rows = table("ID", "STATE", "PAGES", "ENDED", "BEGINS AT", "AGE", flexible=("BEGINS AT",))
    for each in crawls:
        add_row(
            rows,
            cell(each.crawl.id),
            styled(each.state),
            f"{each.crawl.claimed:,} of {each.crawl.max_pages:,}",
            f"{_count_ended(each):,}",
            cell(each.crawl.start[0]),
            age(each.crawl.created_at),
        )
    console().print(rows)


@app.command()
def show(
    crawl_id: IdArgument,
    pages: Annotated[
        int, typer.Option(min=0, max=1000, help="Number of latest pages to show.")
    ] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show the progress of a crawl, and the results of its last pages."""

    async def load(service: Crawls) -> tuple[CrawlProgress, Page[ListedPage]]:
        return await service.show(crawl_id), await service.pages(crawl_id, limit=max(1, pages))

    progress, crawl_page = _with_crawls(load)
    shown_pages = crawl_page.items[:pages]
    if as_json:
        from switchyard.api.views.pipeline import view_crawl_details

        print_json(view_crawl_details(progress, shown_pages))
        return
    _print_crawl(progress)
    if not shown_pages:
        return
    rows = table("DUE", "STATE", "DEPTH", "PAGE", "CAME TO", flexible=("PAGE", "CAME TO"))
    for each in shown_pages:
        add_row(
            rows,
            format_local(each.page.due_at),
            styled(each.state),
            str(each.page.depth),
            cell(each.page.url),
            cell(each.outcome or ""),
        )
    console().print(rows)


@app.command()
def cancel(crawl_id: IdArgument, as_json: JsonOption = False) -> None:
    """Cancel a crawl: it visits no more pages. Results are kept."""
    progress = _with_crawls(lambda service: service.cancel(crawl_id))
    if as_json:
        from switchyard.api.views.pipeline import view_crawl

        print_json(view_crawl(progress))
        return
    _print_crawl(progress)


def _print_crawl(progress: CrawlProgress) -> None:
    crawl = progress.crawl
    states = ", ".join(f"{number:,} {state}" for state, number in sorted(progress.pages.items()))
    echo(f"{crawl.id} {progress.state}: {crawl.claimed:,} of {crawl.max_pages:,} pages ({states})")
    echo(f"begins at {' '.join(crawl.start[:3])}; hosts {' '.join(crawl.hosts[:10])}")
    echo(f"depth {crawl.max_depth} at most, until {format_local(crawl.deadline)}")


def _count_ended(progress: CrawlProgress) -> int:
    from switchyard.services.engine.records.states import FINISHED, State

    return sum(number for state, number in progress.pages.items() if State(state) in FINISHED)


def _with_crawls(query: Callable[[Crawls], Awaitable[T]]) -> T:
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.pipeline.crawls.crawl_service import Crawls

    settings = load_settings()

    async def run_query() -> T:
        async with open_ledger(settings) as ledger:
            return await query(Crawls(settings, ledger, Registry.load()))

    return run(run_query())

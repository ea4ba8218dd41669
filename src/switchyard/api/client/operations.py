"""The operations as methods: each is named once here, and is a method of both clients.

What one sends and how its answer is read stands in a module for each subject (`job_calls`,
`dead_calls`, …): a function there describes one operation, whose id in `/openapi.json` it names.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from functools import wraps
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from switchyard.api.client import (
    backfill_calls,
    crawl_calls,
    dead_calls,
    document_calls,
    graph_calls,
    job_calls,
    llm_calls,
    reference_calls,
    schedule_calls,
    service_calls,
)
from switchyard.api.client.call import AsyncSender, Operation, Sender

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")


class _Page(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


PageT = TypeVar("PageT", bound=_Page)


class Method(Generic[P, T]):
    """An operation as a method of both clients."""

    def __init__(self, operation: Operation[P, T]) -> None:
        self.operations = (operation.id,)
        self._call = operation.call

    @overload
    def __get__(self, client: None, owner: object) -> Self: ...
    @overload
    def __get__(self, client: Sender, owner: object) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, client: AsyncSender, owner: object
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: object) -> Any:
        if client is None:
            return self

        @wraps(self._call)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.send(self._call(*args, **kwargs))

        return method


class Listing(Generic[P, PageT, Item]):
    """A listing as a method of both clients that goes through all its pages."""

    def __init__(
        self, operation: Operation[P, PageT], items: Callable[[PageT], Sequence[Item]]
    ) -> None:
        self.operations = (operation.id,)
        self._call = operation.call
        self._items = items

    @overload
    def __get__(self, client: None, owner: object) -> Self: ...
    @overload
    def __get__(
        self, client: Sender, owner: object
    ) -> Callable[P, Generator[Item, None, None]]: ...
    @overload
    def __get__(
        self, client: AsyncSender, owner: object
    ) -> Callable[P, AsyncGenerator[Item, None]]: ...
    def __get__(self, client: Any, owner: object) -> Any:
        if client is None:
            return self

        def pages(*args: P.args, **kwargs: P.kwargs) -> Generator[Item, None, None]:
            while True:
                page = client.send(self._call(*args, **kwargs))
                yield from self._items(page)
                if page.next_cursor is None:
                    return
                kwargs["cursor"] = page.next_cursor

        async def async_pages(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Item, None]:
            while True:
                page = await client.send(self._call(*args, **kwargs))
                for item in self._items(page):
                    yield item
                if page.next_cursor is None:
                    return
                kwargs["cursor"] = page.next_cursor

        return wraps(self._call)(async_pages if client.is_async else pages)


class Operations:
    """What both clients can do; `await` it in AsyncClient. docs/client.md has examples."""

    publish = Method(job_calls.publish)
    jobs_page = Method(job_calls.jobs_page)
    jobs = Listing(job_calls.jobs_page, lambda page: page.jobs)
    job = Method(job_calls.job)
    job_status = Method(job_calls.job_status)
    cancel = Method(job_calls.cancel)
    release = Method(job_calls.release)

    upload = Method(document_calls.upload)
    documents_page = Method(document_calls.documents_page)
    documents = Listing(document_calls.documents_page, lambda page: page.documents)
    document = Method(document_calls.document)
    generate_documents = Method(document_calls.generate_documents)
    document_result = Method(document_calls.document_result)
    document_references = Method(document_calls.document_references)
    bibliography = Method(document_calls.bibliography)
    document_figures = Method(document_calls.document_figures)
    document_figure = Method(document_calls.document_figure)
    document_page = Method(document_calls.document_page)
    extract_text = Method(document_calls.extract_text)
    extracted_text = Method(document_calls.extracted_text)
    extract_references = Method(reference_calls.extract_references)
    parse_references = Method(reference_calls.parse_references)
    process_references = Method(reference_calls.process_references)
    job_references = Method(reference_calls.job_references)
    job_bibliography = Method(reference_calls.job_bibliography)
    search = Method(document_calls.search)

    graph = Method(graph_calls.graph)
    graph_node = Method(graph_calls.graph_node)
    neighbours_page = Method(graph_calls.neighbours_page)
    neighbours = Listing(graph_calls.neighbours_page, lambda page: page.neighbours)
    neighbourhood = Method(graph_calls.neighbourhood)
    graph_paths = Method(graph_calls.graph_paths)
    cocited = Method(graph_calls.cocited)
    coupled = Method(graph_calls.coupled)
    most_cited_page = Method(graph_calls.most_cited_page)
    most_cited = Listing(graph_calls.most_cited_page, lambda page: page.nodes)

    ask = Method(llm_calls.ask)
    answer = Method(llm_calls.answer)
    llm_spend = Method(llm_calls.llm_spend)

    start_backfill = Method(backfill_calls.start_backfill)
    preview_backfill = Method(backfill_calls.preview_backfill)
    store_backfill_input = Method(backfill_calls.store_backfill_input)
    backfills_page = Method(backfill_calls.backfills_page)
    backfills = Listing(backfill_calls.backfills_page, lambda page: page.backfills)
    backfill = Method(backfill_calls.backfill)
    set_backfill_limits = Method(backfill_calls.set_backfill_limits)
    pause_backfill = Method(backfill_calls.pause_backfill)
    resume_backfill = Method(backfill_calls.resume_backfill)
    cancel_backfill = Method(backfill_calls.cancel_backfill)

    crawl = Method(crawl_calls.crawl)
    crawls = Method(crawl_calls.crawls)
    crawl_progress = Method(crawl_calls.crawl_progress)
    crawl_pages = Method(crawl_calls.crawl_pages)
    cancel_crawl = Method(crawl_calls.cancel_crawl)
    schedules = Method(schedule_calls.schedules)
    schedule = Method(schedule_calls.schedule)
    add_schedule = Method(schedule_calls.add_schedule)
    remove_schedule = Method(schedule_calls.remove_schedule)
    pause_schedule = Method(schedule_calls.pause_schedule)
    resume_schedule = Method(schedule_calls.resume_schedule)
    run_schedule = Method(schedule_calls.run_schedule)
    schedule_history = Method(schedule_calls.schedule_history)

    backpressure = Method(service_calls.backpressure)
    limits = Method(service_calls.limits)
    schemas = Method(service_calls.schemas)
    schema = Method(service_calls.schema)
    asyncapi = Method(service_calls.asyncapi)
    problems = Method(service_calls.problems)
    problem = Method(service_calls.problem)
    live = Method(service_calls.live)
    ready = Method(service_calls.ready)
    health = Method(service_calls.health_of_all)
    metrics = Method(service_calls.metrics)

    lanes = Method(service_calls.lanes)
    workers = Method(service_calls.workers)
    index = Method(service_calls.index)
    dead_page = Method(dead_calls.dead_page)
    dead = Listing(dead_calls.dead_page, lambda page: page.dead_letters)
    dead_letter = Method(dead_calls.dead_letter)
    dead_groups = Method(dead_calls.dead_groups)
    start_redrive = Method(dead_calls.start_redrive)
    plan_redrive = Method(dead_calls.plan_redrive)
    redrives_page = Method(dead_calls.redrives_page)
    redrives = Listing(dead_calls.redrives_page, lambda page: page.redrives)
    redrive = Method(dead_calls.redrive)
    set_redrive_rate = Method(dead_calls.set_redrive_rate)
    pause_redrive = Method(dead_calls.pause_redrive)
    resume_redrive = Method(dead_calls.resume_redrive)
    cancel_redrive = Method(dead_calls.cancel_redrive)


def operations_of(client: type[Operations]) -> set[str]:
    """The ids of the operations of the API that a client covers."""
    members = (getattr(client, name) for name in dir(client))
    return {each for member in members for each in getattr(member, "operations", ())}

"""The operations as methods: each is named once here, and is a method of both clients.

What an operation sends, and how its answer is read, is described in a module for each subject
(`calls.jobs`, `calls.dead`, …): by one function, which names the operation's id in `/openapi.json`.
A subject and its models are imported at its first call: importing all takes longer than a call.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from functools import wraps
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from switchyard.api.client import calls
from switchyard.api.client.call import AsyncSender, Operation, Sender

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")


class _Page(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


PageT = TypeVar("PageT", bound=_Page)


class _OperationDescriptor(Generic[P, T]):
    """Base of the descriptors for an operation; `operation` imports its subject when it is first
    called."""

    def __init__(self, operation: Callable[[], Operation[P, T]]) -> None:
        self._operation = operation

    @property
    def operations(self) -> tuple[str, ...]:
        return (self._operation().id,)


class Method(_OperationDescriptor[P, T]):
    """An operation as a method of both clients."""

    def each(
        self: Method[P, PageT], items: Callable[[PageT], Sequence[Item]]
    ) -> Listing[P, PageT, Item]:
        """Return the operation, whose answer is a page, as a method that yields the items of all
        pages."""
        return Listing(self._operation, items)

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

        call = self._operation().call

        @wraps(call)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.send(call(*args, **kwargs))

        return method


class Listing(_OperationDescriptor[P, PageT], Generic[P, PageT, Item]):
    """A listing as a method of both clients that goes through all its pages."""

    def __init__(
        self,
        operation: Callable[[], Operation[P, PageT]],
        items: Callable[[PageT], Sequence[Item]],
    ) -> None:
        super().__init__(operation)
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

        call = self._operation().call

        def pages(*args: P.args, **kwargs: P.kwargs) -> Generator[Item, None, None]:
            while True:
                page = client.send(call(*args, **kwargs))
                yield from self._items(page)
                if page.next_cursor is None:
                    return
                kwargs["cursor"] = page.next_cursor

        async def async_pages(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Item, None]:
            while True:
                page = await client.send(call(*args, **kwargs))
                for item in self._items(page):
                    yield item
                if page.next_cursor is None:
                    return
                kwargs["cursor"] = page.next_cursor

        return wraps(call)(async_pages if client.is_async else pages)


class Operations:
    """What both clients can do; `await` it in AsyncClient. docs/client.md has examples."""

    publish = Method(lambda: calls.jobs.publish)
    jobs_page = Method(lambda: calls.jobs.jobs_page)
    jobs = jobs_page.each(lambda page: page.jobs)
    job = Method(lambda: calls.jobs.job)
    job_status = Method(lambda: calls.jobs.job_status)
    cancel = Method(lambda: calls.jobs.cancel)
    release = Method(lambda: calls.jobs.release)

    start_job_action = Method(lambda: calls.job_actions.start_job_action)
    plan_job_action = Method(lambda: calls.job_actions.plan_job_action)
    job_actions_page = Method(lambda: calls.job_actions.job_actions_page)
    job_actions = job_actions_page.each(lambda page: page.actions)
    job_action = Method(lambda: calls.job_actions.job_action)
    set_job_action_rate = Method(lambda: calls.job_actions.set_job_action_rate)
    pause_job_action = Method(lambda: calls.job_actions.pause_job_action)
    resume_job_action = Method(lambda: calls.job_actions.resume_job_action)
    cancel_job_action = Method(lambda: calls.job_actions.cancel_job_action)
    undo_job_action = Method(lambda: calls.job_actions.undo_job_action)

    upload = Method(lambda: calls.documents.upload)
    documents_page = Method(lambda: calls.documents.documents_page)
    documents = documents_page.each(lambda page: page.documents)
    document = Method(lambda: calls.documents.document)
    generate_documents = Method(lambda: calls.documents.generate_documents)
    document_result = Method(lambda: calls.documents.document_result)
    document_references = Method(lambda: calls.documents.document_references)
    bibliography = Method(lambda: calls.documents.bibliography)
    document_figures = Method(lambda: calls.documents.document_figures)
    document_figure = Method(lambda: calls.documents.document_figure)
    document_page = Method(lambda: calls.documents.document_page)
    extract_text = Method(lambda: calls.documents.extract_text)
    extracted_text = Method(lambda: calls.documents.extracted_text)
    extract_references = Method(lambda: calls.references.extract_references)
    parse_references = Method(lambda: calls.references.parse_references)
    process_references = Method(lambda: calls.references.process_references)
    job_references = Method(lambda: calls.references.job_references)
    job_bibliography = Method(lambda: calls.references.job_bibliography)
    search = Method(lambda: calls.documents.search)

    graph = Method(lambda: calls.graph.graph)
    graph_node = Method(lambda: calls.graph.graph_node)
    neighbours_page = Method(lambda: calls.graph.neighbours_page)
    neighbours = neighbours_page.each(lambda page: page.neighbours)
    neighbourhood = Method(lambda: calls.graph.neighbourhood)
    graph_paths = Method(lambda: calls.graph.graph_paths)
    cocited = Method(lambda: calls.graph.cocited)
    coupled = Method(lambda: calls.graph.coupled)
    most_cited_page = Method(lambda: calls.graph.most_cited_page)
    most_cited = most_cited_page.each(lambda page: page.nodes)

    ask = Method(lambda: calls.llm.ask)
    answer = Method(lambda: calls.llm.answer)
    llm_spend = Method(lambda: calls.llm.llm_spend)

    start_backfill = Method(lambda: calls.backfills.start_backfill)
    preview_backfill = Method(lambda: calls.backfills.preview_backfill)
    store_backfill_input = Method(lambda: calls.backfills.store_backfill_input)
    backfills_page = Method(lambda: calls.backfills.backfills_page)
    backfills = backfills_page.each(lambda page: page.backfills)
    backfill = Method(lambda: calls.backfills.backfill)
    set_backfill_limits = Method(lambda: calls.backfills.set_backfill_limits)
    pause_backfill = Method(lambda: calls.backfills.pause_backfill)
    resume_backfill = Method(lambda: calls.backfills.resume_backfill)
    cancel_backfill = Method(lambda: calls.backfills.cancel_backfill)

    crawl = Method(lambda: calls.crawls.crawl)
    crawls = Method(lambda: calls.crawls.crawls)
    crawl_progress = Method(lambda: calls.crawls.crawl_progress)
    crawl_pages = Method(lambda: calls.crawls.crawl_pages)
    cancel_crawl = Method(lambda: calls.crawls.cancel_crawl)
    schedules = Method(lambda: calls.schedules.schedules)
    schedule = Method(lambda: calls.schedules.schedule)
    add_schedule = Method(lambda: calls.schedules.add_schedule)
    remove_schedule = Method(lambda: calls.schedules.remove_schedule)
    pause_schedule = Method(lambda: calls.schedules.pause_schedule)
    resume_schedule = Method(lambda: calls.schedules.resume_schedule)
    run_schedule = Method(lambda: calls.schedules.run_schedule)
    schedule_history = Method(lambda: calls.schedules.schedule_history)

    pauses = Method(lambda: calls.pauses.pauses)
    pause = Method(lambda: calls.pauses.pause)
    resume = Method(lambda: calls.pauses.resume)

    backpressure = Method(lambda: calls.service.backpressure)
    limits = Method(lambda: calls.service.limits)
    usage = Method(lambda: calls.service.usage)
    schemas = Method(lambda: calls.service.schemas)
    schema = Method(lambda: calls.service.schema)
    asyncapi = Method(lambda: calls.service.asyncapi)
    problems = Method(lambda: calls.service.problems)
    problem = Method(lambda: calls.service.problem)
    live = Method(lambda: calls.service.live)
    ready = Method(lambda: calls.service.ready)
    health = Method(lambda: calls.service.health)
    metrics = Method(lambda: calls.service.metrics)

    lanes = Method(lambda: calls.service.lanes)
    workers = Method(lambda: calls.service.workers)
    index = Method(lambda: calls.service.index)
    dead_page = Method(lambda: calls.dead.dead_page)
    dead = dead_page.each(lambda page: page.dead_letters)
    dead_letter = Method(lambda: calls.dead.dead_letter)
    dead_groups = Method(lambda: calls.dead.dead_groups)
    start_redrive = Method(lambda: calls.dead.start_redrive)
    plan_redrive = Method(lambda: calls.dead.plan_redrive)
    redrives_page = Method(lambda: calls.dead.redrives_page)
    redrives = redrives_page.each(lambda page: page.redrives)
    redrive = Method(lambda: calls.dead.redrive)
    set_redrive_rate = Method(lambda: calls.dead.set_redrive_rate)
    pause_redrive = Method(lambda: calls.dead.pause_redrive)
    resume_redrive = Method(lambda: calls.dead.resume_redrive)
    cancel_redrive = Method(lambda: calls.dead.cancel_redrive)


def operations_of(client: type[Operations]) -> set[str]:
    """Return the ids of the API's operations that a client covers."""
    members = (getattr(client, name) for name in dir(client))
    return {each for member in members for each in getattr(member, "operations", ())}


def streams(operation: str) -> Callable[[T], T]:
    """Name the operation that a method of both clients follows: a stream of events has no one
    answer."""

    def mark(method: T) -> T:
        method.operations = (operation,)  # type: ignore[attr-defined]
        return method

    return mark

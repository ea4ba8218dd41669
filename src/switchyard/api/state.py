"""The objects that the handlers of requests share; made at the start, closed at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Annotated

import structlog
from fastapi import Depends, Request

from switchyard.api.http.event_stream import AdmissionWatch
from switchyard.api.http.problems import Problem
from switchyard.broker.errors import BrokerUnavailable, WrongSystem
from switchyard.broker.task_supervisor import TaskSupervisor, end_tasks
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.instance_ids import new_instance_id
from switchyard.services.common.settings import Settings
from switchyard.services.engine.access.api_keys import ApiKeyStore, configured_keys
from switchyard.services.engine.access.rate_limit import RateLimiter
from switchyard.services.engine.access.shares import Shares
from switchyard.services.engine.identity.broker import require_same_system, system_guard
from switchyard.services.engine.identity.claiming import claiming
from switchyard.services.engine.jobs.registered_types import JobTypeSync
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.job_events import EventFeed
from switchyard.services.engine.monitoring.lane_pressure import LanePressure
from switchyard.services.engine.monitoring.metrics import Metrics, show_publishes, watch_ledger
from switchyard.services.engine.monitoring.sibling_metrics import Siblings
from switchyard.services.engine.monitoring.startup import wait_until_available
from switchyard.services.engine.monitoring.system_metrics import SystemMetrics
from switchyard.services.engine.publishing.bounded_publisher import TimeBoundedPublisher
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.errors import (
    LedgerAuthError,
    LedgerError,
    LedgerUnavailable,
)
from switchyard.services.engine.webhooks.sources import WebhookSources
from switchyard.services.engine.wings import job_modules
from switchyard.services.llm.budget_account import BudgetAccount, EmbeddingBudget
from switchyard.services.llm.direct_first import DirectFirstRequests
from switchyard.services.llm.direct_requests import DirectRequests
from switchyard.services.llm.llm_queue import LLMQueue, QueuedRequests
from switchyard.services.llm.records.llm_spend import Requester
from switchyard.services.pipeline.index.open_index import OpenIndex, open_index


@dataclass(frozen=True, slots=True)
class BrokerSide:
    """The parts that need a broker."""

    publisher: TimeBoundedPublisher
    jobs: JobPublisher
    pressure: LanePressure
    feed: EventFeed


@dataclass(frozen=True, slots=True)
class ApiState:
    """Everything that requests share."""

    settings: Settings
    registry: Registry
    ledger: Ledger
    storage: Storage
    index: OpenIndex
    keys: ApiKeyStore
    key_limiter: RateLimiter
    metrics: Metrics
    """Metrics of this process."""
    system_metrics: Metrics
    """Metrics of the whole system, which every process would show alike."""
    siblings: Siblings | None
    """The processes that share this one's port; None when it is alone."""
    webhooks: WebhookSources
    broker: BrokerSide | None
    """None without JOBS_AMQP_URL."""
    direct: LLMQueue | None
    """Asks language models from this process; None without JOBS_LLM_DIRECT."""
    direct_first: LLMQueue | None
    """The same while nothing waits in the lane; None without JOBS_LLM_DIRECT_CALLS."""
    streams: Shares
    """The slots of event streams and of requests that wait."""
    admissions: AdmissionWatch
    """Checks whether the streams' keys still let their clients in."""

    async def scrape(self) -> bytes:
        """Return all metrics in Prometheus' text format: those of the system, and those of this
        process and its siblings."""
        own = await self.metrics.scrape()
        if self.siblings is not None:
            own = await self.siblings.scrape(own)
        return own + await self.system_metrics.scrape()

    def cancel_here(self, job_id: str) -> bool:
        """Stop a request to a language model that this process runs itself; False when it runs
        none of that id."""
        return any(each.cancel(job_id) for each in (self.direct, self.direct_first) if each)

    def require_broker(self) -> BrokerSide:
        """Return the broker's side. Raises Problem where the service runs without one."""
        if self.broker is None:
            raise Problem("no-broker", "set JOBS_AMQP_URL to publish jobs")
        return self.broker


def _purse(settings: Settings, ledger: Ledger) -> EmbeddingBudget:
    """Return the budget that records the cost of the vectors of searches."""
    return EmbeddingBudget(
        BudgetAccount.from_settings(settings, ledger), Requester(source="search")
    )


@asynccontextmanager
async def open_state(
    settings: Settings,
    stop: Callable[[], None] = lambda: None,
    siblings: Siblings | None = None,
) -> AsyncIterator[ApiState]:
    """Open ledger and broker. `stop` is called when the service must not go on, as storage or index
    did not answer at first, and prove to be another system's.

    Raises LedgerError when the ledger's tables are not right or its login is refused, WrongSystem,
    WrongStorage, RegistryError, and InvalidWebhooks. A broker or ledger that does not answer is
    tried again later.
    """
    registry = Registry.load(dict.fromkeys((*job_modules(), *settings.modules)))
    configured = configured_keys(
        settings.api_keys.get_secret_value() if settings.api_keys is not None else ""
    )
    registry.process = "the API process"
    metrics, system_metrics = Metrics(), Metrics(of_process=False)
    async with (
        await Ledger.open(settings.ledger_url, fail_fast=True) as ledger,
        _checking_ledger(settings, ledger, stop),
        _open_broker(settings, registry, ledger) as broker,
        open_index(settings, _purse(settings, ledger)) as index,
        _open_direct(settings, registry, ledger, metrics) as direct,
        _open_direct_first(settings, registry, ledger, metrics, broker) as direct_first,
        _syncing_types(registry, ledger),
        siblings.serving(metrics) if siblings is not None else nullcontext(),
    ):
        webhooks = WebhookSources.load(settings, registry)
        ledger.observe(watch_ledger(metrics))
        SystemMetrics(settings, registry, ledger).install(system_metrics)
        if broker is not None:
            show_publishes(metrics, broker.publisher.counts)
        yield ApiState(
            settings=settings,
            registry=registry,
            ledger=ledger,
            storage=Storage(settings.files_url, fail_fast=True),
            index=index,
            keys=ApiKeyStore(ledger, configured),
            key_limiter=RateLimiter(settings.api_rate_limit, settings.api_rate_burst),
            metrics=metrics,
            system_metrics=system_metrics,
            siblings=siblings,
            webhooks=webhooks,
            broker=broker,
            direct=direct,
            direct_first=direct_first,
            streams=Shares(settings.api_max_streams),
            admissions=AdmissionWatch(),
        )


def _syncing_types(registry: Registry, ledger: Ledger) -> AbstractAsyncContextManager[None]:
    holder = f"api {new_instance_id()}"
    return JobTypeSync(
        registry, ledger, own_types=registry, holder=holder, is_worker=False
    ).running()


@asynccontextmanager
async def _open_direct(
    settings: Settings, registry: Registry, ledger: Ledger, metrics: Metrics
) -> AsyncIterator[LLMQueue | None]:
    if not settings.llm_direct:
        yield None
        return
    async with LLMQueue.direct(settings, registry, ledger, metrics) as queue:
        yield queue


@asynccontextmanager
async def _open_direct_first(
    settings: Settings,
    registry: Registry,
    ledger: Ledger,
    metrics: Metrics,
    broker: BrokerSide | None,
) -> AsyncIterator[LLMQueue | None]:
    max_calls = settings.llm_direct_calls
    if not max_calls or broker is None or settings.llm_direct or not settings.llm_servers:
        yield None
        return
    opening = DirectRequests.open(
        settings, registry, ledger, metrics, hub=broker.feed, publisher=broker.publisher
    )
    async with opening as direct:
        queued = QueuedRequests(ledger, broker.jobs, broker.feed)
        yield LLMQueue(ledger, DirectFirstRequests(queued, direct, broker.pressure, max_calls))


@asynccontextmanager
async def _checking_ledger(
    settings: Settings, ledger: Ledger, stop: Callable[[], None]
) -> AsyncIterator[None]:
    """Check the ledger, and claim storage and index for its system. If one of them does not answer,
    it is tried again in the background, and requests are answered 503 meanwhile. Raises LedgerError
    for a ledger that an operator has to repair, WrongStorage."""
    looking: list[asyncio.Task[None]] = []
    try:
        await ledger.check()
    except LedgerAuthError:
        raise
    except LedgerUnavailable:
        looking.append(asyncio.create_task(_wait_for_ledger(ledger)))
    try:
        async with claiming(settings, ledger, stop):
            yield
    finally:
        await end_tasks(*looking)


async def _wait_for_ledger(ledger: Ledger) -> None:
    try:
        await wait_until_available("ledger", ledger.check)
    except LedgerError as error:
        structlog.get_logger("api").error("the ledger can't be used", error=str(error))


@asynccontextmanager
async def _open_broker(
    settings: Settings, registry: Registry, ledger: Ledger
) -> AsyncIterator[BrokerSide | None]:
    if settings.amqp_url is None:
        yield None
        return
    # Checked at the start, if the broker answers, and with each new connection.
    try:
        await require_same_system(settings, ledger)
    except WrongSystem:
        raise
    except BrokerUnavailable:
        pass  # it is looked for later
    publisher = TimeBoundedPublisher(settings, name="api", guard=system_guard(settings, ledger))
    pressure = LanePressure(settings, registry, ledger=ledger)
    feed = EventFeed(settings)
    background = TaskSupervisor(structlog.get_logger("api"))
    background.start("event feed", feed.run)
    # Started now, and not with the first request, which must be answered within two seconds.
    background.start("publisher", publisher.keep_connected)
    pressure.start()
    try:
        # Remote, as payloads that endpoints publish come from clients.
        jobs = JobPublisher(
            registry,
            ledger,
            publisher,
            remote=True,
            pressure=pressure,
            fair_from=settings.fair_from,
        )
        yield BrokerSide(publisher, jobs, pressure, feed)
    finally:
        await background.close()
        await pressure.close()
        await publisher.close()


def state_of(request: Request) -> ApiState:
    """Return the shared state."""
    state: ApiState = request.app.state.api
    return state


async def _state(request: Request) -> ApiState:
    """`state_of` as a dependency: one that is not async would be run in a thread."""
    return state_of(request)


Shared = Annotated[ApiState, Depends(_state)]
"""The state as a parameter: `async def handler(state: Shared)`. A job's `State` is another
thing."""

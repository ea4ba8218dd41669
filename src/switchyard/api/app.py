"""Put the application of the HTTP API together. Start reading here.

uvicorn --factory switchyard.api.app:create_app        # or `jobctl api`, which also stops well
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from switchyard.api.dashboard.views import ROUTERS as DASHBOARD_ROUTERS
from switchyard.api.dashboard.views import open_dashboard
from switchyard.api.engine import (
    admin,
    backfills,
    contract,
    dead,
    events,
    health,
    job_actions,
    jobs,
    pauses,
    pressure,
    schedules,
    webhooks,
)
from switchyard.api.http import errors, openapi
from switchyard.api.llm import llm_endpoints, openai_batch_endpoints, openai_endpoints
from switchyard.api.middleware.access import check_keys
from switchyard.api.middleware.bodies import BodyLimits
from switchyard.api.middleware.openai_error_rewriter import OpenAiErrors
from switchyard.api.middleware.request_middleware import RequestMiddleware
from switchyard.api.pipeline import crawls, documents, extract, graph, references, samples, search
from switchyard.api.state import open_state
from switchyard.services.common.instance_ids import new_instance_id
from switchyard.services.common.settings import Settings
from switchyard.services.common.tracing import tracer
from switchyard.services.engine.access.rate_limit import RateLimiter
from switchyard.services.engine.monitoring.loop_watch import LoopWatch, save_in_ledger
from switchyard.services.engine.monitoring.sibling_metrics import Siblings
from switchyard.services.pipeline.documents.document_service import open_document_services

ROUTERS = (
    job_actions.router,
    jobs.router,
    events.router,
    llm_endpoints.router,
    llm_endpoints.spending_router,
    openai_endpoints.router,
    openai_batch_endpoints.router,
    documents.router,
    samples.router,
    extract.router,
    references.router,
    references.results_router,
    search.router,
    search.index_router,
    graph.router,
    backfills.router,
    crawls.router,
    schedules.router,
    pauses.router,
    pressure.router,
    contract.router,
    dead.router,  # before `/admin/dead/{letter_id}`
    admin.router,
    health.router,
    webhooks.router,
    *DASHBOARD_ROUTERS,
)

PROBE_RATE, PROBE_BURST = 50.0, 200
"""Requests for `/health…` of one address: per second, and at once."""
DESCRIPTION = """Jobs in, status and results out.

Send an API key as `Authorization: Bearer KEY` or as `X-API-Key: KEY`. Errors are problem details
(RFC 9457); `GET /problems` lists their kinds."""


def create_app(settings: Settings | None = None, siblings: Siblings | None = None) -> FastAPI:
    """Make the application. It opens ledger and broker when it starts and closes them when it
    stops. `siblings`: the processes that share its port.

    Its start raises KeysMissing, LedgerError (the tables are not right) or RegistryError.
    """
    settings = settings or Settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_state(settings, lambda: app.state.stop(), siblings) as state:
            await check_keys(state)
            publisher = state.broker.jobs if state.broker is not None else None
            watch = LoopWatch(
                new_instance_id(),
                save_in_ledger(settings.ledger_url),
                clock=state.ledger.clock.time,
            )
            state.metrics.add_source(watch.metric_samples)
            async with (
                watch.watching(),
                open_document_services(
                    settings, state.registry, state.ledger, publisher, state.metrics
                ) as document_services,
                open_dashboard(app, state),
            ):
                app.state.api = state
                app.state.document_services = document_services
                app.state.health = health.rate_limited_checks(state)
                yield

    app = FastAPI(
        title="Switchyard",
        version=version("switchyard"),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        openapi_url=None,  # `openapi.install`
        redirect_slashes=False,  # to an address made of whatever `Host` says
    )
    app.state.stop = lambda: None  # the server replaces this with what stops it
    openapi.install(app)
    app.router.routes.extend(route for router in ROUTERS for route in router.routes)
    errors.install(app)
    # The last one added is the outermost.
    app.add_middleware(BodyLimits, settings=settings)
    limiter = RateLimiter(settings.api_rate_limit, settings.api_rate_burst)
    probes = RateLimiter(PROBE_RATE, PROBE_BURST)
    app.add_middleware(RequestMiddleware, limiter=limiter, probes=probes, tracer=tracer())
    app.add_middleware(OpenAiErrors)
    return app

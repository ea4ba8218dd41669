"""The metrics of a process that is not the API: `/metrics`, `/health/live` and `/health/ready`.

No key is asked for; so it listens on this machine only, unless somebody says otherwise, and tells
nothing that names a job.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from switchyard.api.middleware.connections import bounded_http
from switchyard.api.waiting_server import WaitingServer
from switchyard.broker.task_supervisor import end_tasks
from switchyard.services.common.errors import Misconfigured
from switchyard.services.engine.access.rate_limit import Rationed
from switchyard.services.engine.monitoring.metrics import CONTENT_TYPE, Metrics

MAX_CONNECTIONS = 100
"""Open at once; a process has few that ask."""
SCRAPE_RATE, SCRAPE_BURST = 2.0, 10
"""Times a second, and at once, that metrics are collected; further requests get the last ones. No
key is asked for, and a worker has other work."""


class PortTaken(Misconfigured):
    """The metrics' address can't be listened on."""


def _application(metrics: Metrics, is_ready: Callable[[], bool]) -> Starlette:
    scraped = Rationed(metrics.scrape, SCRAPE_RATE, SCRAPE_BURST)

    async def show(_: Request) -> Response:
        return Response(await scraped.get(), media_type=CONTENT_TYPE)

    async def live(_: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def ready(_: Request) -> Response:
        if is_ready():
            return PlainTextResponse("ready\n")
        return PlainTextResponse("not ready\n", status_code=503)

    application = Starlette(
        routes=[
            Route("/metrics", show),
            Route("/health/live", live),
            Route("/health/ready", ready),
        ]
    )
    application.router.redirect_slashes = False  # to an address made of whatever `Host` says
    return application


@asynccontextmanager
async def showing(
    metrics: Metrics, host: str, port: int | None, is_ready: Callable[[], bool]
) -> AsyncIterator[int | None]:
    """Show them there as long as the context lasts; gives the port, which 0 leaves to the machine.
    Without a port nothing is shown. Raises PortTaken."""
    if port is None:
        yield None
        return
    config = uvicorn.Config(
        _application(metrics, is_ready),
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=1,
        ws="none",
        http=bounded_http(most=MAX_CONNECTIONS),
        proxy_headers=False,
    )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise PortTaken(f"can't show metrics on {host}:{port}: {error.strerror}") from error
    server = WaitingServer(config)
    chosen = listening.getsockname()[1]
    structlog.get_logger("metrics").info("showing metrics", host=host, port=chosen)
    async with _serve(server, listening):
        yield chosen


@asynccontextmanager
async def _serve(server: WaitingServer, listening: socket.socket) -> AsyncIterator[None]:
    task = asyncio.create_task(server.serve([listening]), name="metrics")
    try:
        yield
    finally:
        server.stop()
        await asyncio.wait((task,), timeout=3)
        await end_tasks(task)
        listening.close()

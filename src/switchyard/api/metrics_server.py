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
from switchyard.services.engine.access.rate_limit import RateLimitedCall
from switchyard.services.engine.monitoring.metrics import CONTENT_TYPE, Metrics

MAX_CONNECTIONS = 100
"""Connections open at once: only a few programs scrape the metrics of one process."""
SCRAPE_RATE, SCRAPE_BURST = 2.0, 10
"""How often metrics are collected, per second and in a burst; further requests get the latest
result. No key is asked for, so anybody could keep a worker from its jobs otherwise."""


class PortTaken(Misconfigured):
    """The metrics' address can't be listened on."""


def _application(metrics: Metrics, is_ready: Callable[[], bool]) -> Starlette:
    scraped = RateLimitedCall(metrics.scrape, SCRAPE_RATE, SCRAPE_BURST)

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
    # It would redirect to any `Host` that a client sends.
    application.router.redirect_slashes = False
    return application


@asynccontextmanager
async def serve_metrics(
    metrics: Metrics, host: str, port: int | None, is_ready: Callable[[], bool]
) -> AsyncIterator[int | None]:
    """Serve a process's metrics on `host` and `port` until the context ends, and yield the port; 0
    lets the system choose one. With None, serve nothing. Raises PortTaken."""
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
        http=bounded_http(max_connections=MAX_CONNECTIONS),
        proxy_headers=False,
    )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise PortTaken(f"can't show metrics on {host}:{port}: {error.strerror}") from error
    server = WaitingServer(config)
    chosen_port = listening.getsockname()[1]
    structlog.get_logger("metrics").info("showing metrics", host=host, port=chosen_port)
    async with _serve(server, listening):
        yield chosen_port


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

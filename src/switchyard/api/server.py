"""Serving the application: uvicorn, with a stop that open streams of events do not hold up."""

from __future__ import annotations

import socket
from collections.abc import Callable

import structlog
import uvicorn
from fastapi import FastAPI

from switchyard.api.app import create_app
from switchyard.api.dashboard.pages import Dashboard
from switchyard.api.middleware.connections import bounded_http
from switchyard.api.state import ApiState
from switchyard.api.waiting_server import WaitingServer
from switchyard.services.common.settings import Settings
from switchyard.services.engine.monitoring.sibling_metrics import Siblings

DRAIN_TIMEOUT = 10
"""Seconds that requests under way get to be answered after `stop`."""


class ApiServer(WaitingServer):
    """The application, served."""

    def __init__(
        self,
        settings: Settings,
        siblings: Siblings | None = None,
        started: Callable[[], None] = lambda: None,
    ) -> None:
        """`siblings`: the processes that share its port; `started` is called once it serves."""
        self.app: FastAPI = create_app(settings, siblings)
        """The application that is served."""
        self._tell_started = started
        self.app.state.stop = self.stop
        super().__init__(
            uvicorn.Config(
                self.app,
                host=settings.api_host,
                port=settings.api_port,
                lifespan="off",  # see `serve`
                access_log=False,  # the application writes its own
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=DRAIN_TIMEOUT,
                ws="none",
                http=bounded_http(proxies=settings.api_trusted_proxies),
                ssl_certfile=settings.api_tls_cert,
                ssl_keyfile=settings.api_tls_key,
                # Off unless asked for: else anyone on this machine could choose their address.
                proxy_headers=bool(settings.api_trusted_proxies),
                forwarded_allow_ips=list(settings.api_trusted_proxies),
            )
        )

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `stop`. Raises what the application's start raises, OSError when certificate
        or key can't be read, and SystemExit when the address can't be listened on."""
        self.config.load()
        # Not by uvicorn, which would write a traceback and end the process.
        async with self.app.router.lifespan_context(self.app):
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in (each for server in self.servers for each in server.sockets):
            host, port, *_ = listening.getsockname()
            structlog.get_logger("api").info("serving", host=host, port=port)
        self._tell_started()

    def stop(self) -> None:
        super().stop()
        state: ApiState | None = getattr(self.app.state, "api", None)
        if state is not None and state.broker is not None:
            # Clients that follow events come again, perhaps to another process.
            state.broker.feed.end()
        pages: Dashboard | None = getattr(self.app.state, "dashboard", None)
        if pages is not None:
            pages.feeds.end()

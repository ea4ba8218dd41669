"""`jobctl api`: the HTTP API, until it is told to stop."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from switchyard.cli.base.common import IncludeOption, load_settings
from switchyard.cli.base.errors import CommandFailed, WrongUsage

if TYPE_CHECKING:
    from switchyard.cli.process.prefork import ForkedChild
    from switchyard.services.common.settings import Settings

MAX_PROCESSES: Final = 64
BACKLOG: Final = 2048
"""Connections that wait to be accepted, as uvicorn has it."""


def api(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: JOBS_API_HOST.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on. Default: JOBS_API_PORT."),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            max=MAX_PROCESSES,
            help="Processes behind the port: one uses one processor core.",
        ),
    ] = 1,
    include: IncludeOption = None,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C.

    Requests from other machines need an API key: `jobctl keys create`. See docs/api.md.

    Example:

    ```
    jobctl api --host 0.0.0.0 --port 8080 --processes 2
    ```
    """
    from switchyard.services.common.logs import configure

    settings = load_settings()
    changes = {"api_host": host, "api_port": port}
    settings = settings.model_copy(
        update={name: value for name, value in changes.items() if value is not None}
        | {"modules": (*settings.modules, *(include or ()))}
    )
    configure(settings.log_level, settings.log_format)
    if processes == 1:
        _run(settings)
    else:
        _run_several(settings, processes)


def _run(settings: Settings, shared_port: SharedPort | None = None) -> None:
    import uvloop

    from switchyard.services.common.tracing import tracing

    with tracing("api"):
        uvloop.run(_serve(settings, shared_port))


@dataclass(frozen=True, slots=True)
class SharedPort:
    """A port that several processes share, as one of them has it."""

    listener: socket.socket
    sockets: Path
    """The directory in which they tell each other their metrics."""
    child: ForkedChild


def _run_several(settings: Settings, processes: int) -> None:
    from switchyard.cli.process.prefork import fork_children

    if settings.amqp_url is None:
        raise WrongUsage(
            "without JOBS_AMQP_URL the API runs the jobs itself, in one process: "
            "leave out --processes"
        )
    # What all of them need is loaded once, before they are forked.
    import uvloop  # noqa: F401

    import switchyard.api.server  # noqa: F401

    first = os.getpid()
    sockets = Path(tempfile.mkdtemp(prefix="switchyard-api-"))
    try:
        with _listen(settings) as listener:
            child = fork_children(processes, listener.close)
            _run(settings, SharedPort(listener, sockets, child))
    finally:
        # Also in a process that has outlived the first one, which was killed.
        if os.getpid() == first or os.getppid() != first:
            shutil.rmtree(sockets, ignore_errors=True)


def _listen(settings: Settings) -> socket.socket:
    """Open the socket on which the API listens. Raises CommandFailed."""
    family = socket.AF_INET6 if ":" in settings.api_host else socket.AF_INET
    try:
        return socket.create_server(
            (settings.api_host, settings.api_port), family=family, backlog=BACKLOG
        )
    except OSError as error:
        raise _port_taken_error(settings) from error


def _port_taken_error(settings: Settings) -> CommandFailed:
    return CommandFailed(
        f"can't listen on {settings.api_host}:{settings.api_port}: is something else there?"
    )


async def _serve(settings: Settings, shared_port: SharedPort | None) -> None:
    from switchyard.api.server import ApiServer
    from switchyard.cli.base.long_running import settle_memory
    from switchyard.cli.base.stopping import stop_on_signals
    from switchyard.services.engine.monitoring.sibling_metrics import Siblings

    settle_memory()
    if shared_port is None:
        server = ApiServer(settings)
    else:
        siblings = Siblings(shared_port.sockets, shared_port.child.number)
        server = ApiServer(settings, siblings, shared_port.child.tell_ready)
    stop_on_signals(server.stop)
    try:
        await server.serve(None if shared_port is None else [shared_port.listener])
    except OSError as error:  # ssl.SSLError is one
        raise CommandFailed(
            f"can't use JOBS_API_TLS_CERT ({settings.api_tls_cert}) with JOBS_API_TLS_KEY: {error}"
        ) from error
    except SystemExit as error:
        raise _port_taken_error(settings) from error

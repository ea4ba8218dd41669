"""`jobctl api`: the HTTP API, until it is told to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.cli.base.common import IncludeOption, load_settings
from switchyard.cli.base.errors import CommandFailed

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings


def api(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: JOBS_API_HOST.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on. Default: JOBS_API_PORT."),
    ] = None,
    include: IncludeOption = None,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C.

    Requests from other machines need an API key: `jobctl keys create`. See docs/api.md.

    Example:

    ```
    jobctl api --host 0.0.0.0 --port 8080
    ```
    """
    import uvloop

    from switchyard.services.common.logs import configure
    from switchyard.services.common.tracing import tracing

    settings = load_settings()
    changes = {"api_host": host, "api_port": port}
    settings = settings.model_copy(
        update={name: value for name, value in changes.items() if value is not None}
        | {"modules": (*settings.modules, *(include or ()))}
    )
    configure(settings.log_level, settings.log_format)
    with tracing("api"):
        uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    from switchyard.api.server import ApiServer
    from switchyard.cli.base.long_running import settle_memory
    from switchyard.cli.base.stopping import stop_on_signals

    settle_memory()
    server = ApiServer(settings)
    stop_on_signals(server.stop)
    try:
        await server.serve()
    except OSError as error:  # ssl.SSLError is one
        raise CommandFailed(
            f"can't use JOBS_API_TLS_CERT ({settings.api_tls_cert}) with JOBS_API_TLS_KEY: {error}"
        ) from error
    except SystemExit as error:
        raise CommandFailed(
            f"can't listen on {settings.api_host}:{settings.api_port}: is something else there?"
        ) from error

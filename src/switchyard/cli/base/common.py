"""Open settings, job types, ledger and broker for all commands, in one place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from switchyard.cli.base.durations import reset_age_clock, set_age_clock
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.base.output import say

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.ledger import Ledger

T = TypeVar("T")

IncludeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        metavar="MODULE",
        help="Python module with your own job types, in addition to JOBS_MODULES; repeatable.",
    ),
]

NotifyOption = Annotated[
    str | None,
    typer.Option(
        "--notify",
        metavar="URL",
        help="Send a signed HTTP POST to this address at the end: docs/notices.md.",
    ),
]

PriorityOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=10,
        help="Priority within the lane; a higher number runs first. Default: the lane's.",
    ),
]

MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Port for metrics and health checks. Default: JOBS_METRICS_PORT.",
    ),
]
MetricsHostOption = Annotated[
    str | None,
    typer.Option(help="Address to listen on for --metrics-port. Default: JOBS_METRICS_HOST."),
]


def with_metrics_at(settings: Settings, host: str | None, port: int | None) -> Settings:
    """Return the settings, with host and port of the metrics replaced where they are given."""
    changes = {"metrics_host": host, "metrics_port": port}
    return settings.model_copy(
        update={name: value for name, value in changes.items() if value is not None}
    )


def load_settings() -> Settings:
    """Read the settings from the environment. Raises CommandFailed, naming the variables."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from switchyard.services.common.settings import Settings

    try:
        return Settings()
    except ValidationError as error:
        raise CommandFailed(
            f"settings: {_describe_problems(error.errors(include_url=False))}"
        ) from error
    except SettingsError as error:
        raise CommandFailed(f"settings: {_describe_invalid_json(error)}") from error


def _describe_invalid_json(error: Exception) -> str:
    """Return pydantic's message for a variable that is no JSON, with the variable's name."""
    field = str(error).partition('"')[2].partition('"')[0]
    return (
        f"JOBS_{field.upper()}: it is not valid JSON ({error.__cause__})" if field else str(error)
    )


def _describe_problems(problems: Iterable[Any]) -> str:
    # The values are left out: one of them may be a password.
    from switchyard.broker.patterns import describe_field_error

    return "; ".join(
        f"{_variable_name(problem['loc'])}: {describe_field_error(problem)}"
        if problem["loc"]
        else describe_field_error(problem)
        for problem in problems
    )


def _variable_name(location: tuple[str | int, ...]) -> str:
    """Name the variable of a setting, and the location in its JSON:
    `JOBS_LLM_PROVIDERS[0].weight`."""
    inside = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in location[1:])
    return f"JOBS_{str(location[0]).upper()}{inside}"


def load_registry(settings: Settings, include: Iterable[str] | None = None) -> Registry:
    """Load the built-in job types and those of JOBS_MODULES and `--include`. Raises
    RegistryError."""
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.wings import job_modules

    registry = Registry.load(dict.fromkeys((*job_modules(), *settings.modules, *(include or ()))))
    registry.process = "this command"
    return registry


def require_broker(settings: Settings) -> str:
    """Return the AMQP address. Raises CommandFailed when none is set."""
    try:
        return settings.require_amqp_url()
    except ValueError as error:
        raise CommandFailed(
            f"{error}; `jobctl up` starts one and writes its address into "
            f"{settings.data_dir / 'env'}"
        ) from error


def require_ledger(settings: Settings) -> None:
    """Raise LedgerMissing if the file of the default ledger is missing. This is checked before the
    database libraries are loaded, which takes most of a command's time."""
    from switchyard.services.engine.records.errors import LedgerMissing

    if settings.database_url is not None:
        return
    file = settings.ledger_file.absolute()
    try:
        file.stat()
    except FileNotFoundError as error:
        raise LedgerMissing(str(file)) from error
    except OSError:
        return  # opening it reports why it can't be used


@asynccontextmanager
async def open_ledger(
    settings: Settings, registry: Registry | None = None, *, wait: bool = False
) -> AsyncIterator[Ledger]:
    """Open the ledger, and check its tables. With `wait`, wait until it answers; without, the
    command says when it waits for a ledger that is frozen, locked or busy. The registry learns the
    job types that workers have registered.

    Raises LedgerError, which says `jobctl db upgrade`.
    """
    if not wait:
        require_ledger(settings)
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.monitoring.startup import wait_until_available

    async def open_checked() -> Ledger:
        on_wait = None if wait else _say_waiting
        return await Ledger.open(settings.ledger_url, check=True, on_wait=on_wait)

    ledger = await (wait_until_available("ledger", open_checked) if wait else open_checked())
    set_age_clock(ledger.clock.time)
    try:
        if registry is not None:
            from switchyard.services.engine.jobs.registered_types import learn_types

            await learn_types(registry, ledger)
        yield ledger
    finally:
        await ledger.close()


def _say_waiting(ledger: str) -> None:
    say(f"waiting for the ledger at {ledger} …")


def quiet_logs(level: str = "error") -> None:
    """Hide log lines of lower layers from a command's output, as the command reports failures
    itself."""
    from switchyard.services.common.logs import configure

    configure(level)


def run(command: Coroutine[Any, Any, T], *, endures_exits: bool = False) -> T:
    """Run a command's coroutine to its end. `age` uses the clock of the ledger that it opens.

    `endures_exits`: see `stopping.run_enduring`.
    """
    from switchyard.cli.base import stopping

    reset_age_clock()
    return stopping.run_enduring(command) if endures_exits else stopping.run(command)


def current_user() -> str:
    """Return who runs this command, for the record: `name@host`."""
    import getpass
    import socket

    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # no such user in this container
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


async def require_queues(url: str, names: Iterable[str]) -> None:
    """Raise CommandFailed, which names missing queues, or BrokerUnavailable."""
    from switchyard.broker.wire.depths import query_queues

    depths = await query_queues(url, names)
    missing = [name for name, waiting in depths.items() if waiting is None]
    if missing:
        raise CommandFailed(
            f"the broker has no queue {', '.join(missing)}: run `jobctl topology apply`"
        )

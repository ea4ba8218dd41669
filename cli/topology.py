"""`jobctl topology`: what must exist on the broker, what differs there, and making it so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

if TYPE_CHECKING:
    from broker.reconcile import Difference, Report
    from broker.topology import Topology
    from services.settings import Settings

app = typer.Typer(
    no_args_is_help=True, help="Exchanges, queues, bindings and policies on the broker."
)

ProfileOption = Annotated[
    Literal["classic", "quorum"] | None,
    typer.Option(help="How lanes are made; JOBS_PROFILE where it is not given."),
]
IncludeOption = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="MODULE", help="A module with job types; repeatable."),
]


@app.command()
def render(
    profile: ProfileOption = None,
    include: IncludeOption = None,
    vhost: Annotated[
        str | None, typer.Option(help="Virtual host; that of JOBS_AMQP_URL where not given.")
    ] = None,
) -> None:
    """Print the topology as RabbitMQ definitions (JSON), for import or for `load_definitions`."""
    from broker.topology import render_text

    settings = _settings()
    if vhost is None:
        vhost = settings.vhost if settings.amqp_url is not None else "/"
    typer.echo(render_text(_declared(settings, profile, include), vhost=vhost), nl=False)


@app.command()
def diff(
    profile: ProfileOption = None,
    include: IncludeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the broker with the topology. Exit code 0: the same; 1: it differs."""
    settings = _settings()
    differences = _run_diff(settings, _declared(settings, profile, include))
    if as_json:
        _print_json(differences)
    elif differences:
        _print_table(differences)
    else:
        typer.echo("The broker is as declared.")
    if differences:
        raise typer.Exit(1)


@app.command()
def apply(profile: ProfileOption = None, include: IncludeOption = None) -> None:
    """Change the broker into what is declared; running it again does no harm.

    Deletes no exchange, queue or policy. Exit code 1: something can't be changed in place.
    """
    settings = _settings()
    report = _run_apply(settings, _declared(settings, profile, include))
    for line in report.done:
        typer.echo(line)
    for difference in report.extras:
        typer.echo(f"left alone: {difference.text}")
    if not report.done and not report.left:
        typer.echo("The broker is as declared: nothing to do.")
    for difference in report.blocked:
        typer.echo(f"not changed: {difference.text}", err=True)
    if report.blocked:
        _fail(
            "the broker is not as declared: see docs/topology.md, “What can't be changed in place”"
        )


def _settings() -> Settings:
    from pydantic import ValidationError

    from broker.message import describe
    from services.settings import Settings

    try:
        return Settings()
    except ValidationError as error:
        _fail(f"settings: {describe(error)}: correct the variable JOBS_…")


def _declared(settings: Settings, profile: str | None, include: list[str] | None) -> Topology:
    from broker.topology import build
    from services.registry import BUILT_IN_MODULES, Registry, RegistryError

    modules = dict.fromkeys((*BUILT_IN_MODULES, *settings.modules, *(include or ())))
    try:
        return build(
            "quorum" if (profile or settings.profile) == "quorum" else "classic",
            Registry.load(modules).routes,
            retry_delays=settings.retry_delays,
        )
    except (RegistryError, ValueError) as error:
        _fail(str(error))


def _run_diff(settings: Settings, topology: Topology) -> list[Difference]:
    import asyncio

    from broker.errors import ManagementError
    from broker.management import ManagementClient
    from broker.reconcile import diff as compare

    async def run() -> list[Difference]:
        async with ManagementClient(settings.require_management_url(), settings.vhost) as client:
            return compare(topology, await client.fetch())

    try:
        return asyncio.run(run())
    except (ManagementError, ValueError) as error:
        _fail(str(error))


def _run_apply(settings: Settings, topology: Topology) -> Report:
    import asyncio

    from broker.errors import ManagementError
    from broker.management import ManagementClient
    from broker.reconcile import apply as make_so

    async def run() -> Report:
        async with ManagementClient(settings.require_management_url(), settings.vhost) as client:
            return await make_so(client, topology)

    try:
        return asyncio.run(run())
    except (ManagementError, ValueError) as error:
        _fail(str(error))


def _print_json(differences: list[Difference]) -> None:
    import json

    rows = [
        {
            "problem": difference.problem.value,
            "kind": difference.kind,
            "name": difference.name,
            "text": difference.text,
            "fixable": difference.fixable,
        }
        for difference in differences
    ]
    typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))


def _print_table(differences: list[Difference]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("Problem", "What", "apply", title=f"{len(differences)} differences")
    for difference in differences:
        what = "reports it" if not difference.blocking else "can't change it"
        verdict = "changes it" if difference.fixable else what
        table.add_row(difference.problem.value, escape(difference.text), verdict)
    Console().print(table)


def _fail(message: str) -> NoReturn:
    typer.echo(f"jobctl: {message}", err=True)
    raise typer.Exit(1)

"""`jobctl topology`: show what must exist on the broker, compare it with the broker, and apply
it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from switchyard.cli.base.common import (
    IncludeOption,
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    run,
)
from switchyard.cli.base.errors import FAILED, CommandFailed
from switchyard.cli.base.output import JsonOption, console, echo, print_json, say, table
from switchyard.cli.system.printed_users import RenewOption, print_users
from switchyard.cli.system.system import require_own_broker
from switchyard.cli.system.topology_migrate import migrate

if TYPE_CHECKING:
    from switchyard.broker.management.client import ManagementClient
    from switchyard.broker.management.model import Topology
    from switchyard.broker.settings import Profile
    from switchyard.broker.topology.differences import Difference
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.records.errors import LedgerError

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    help="Exchanges, queues, bindings and policies: compare with the broker and apply.",
)

app.command()(migrate)

ProfileOption = Annotated[
    Literal["classic", "quorum"] | None,
    typer.Option(help="Type of the queues: classic or quorum. Default: JOBS_PROFILE."),
]


@app.command()
def render(
    profile: ProfileOption = None,
    include: IncludeOption = None,
    vhost: Annotated[
        str | None, typer.Option(help="Virtual host. Default: that of JOBS_AMQP_URL.")
    ] = None,
) -> None:
    """Print the topology as RabbitMQ definitions (JSON), for import or for `load_definitions`."""
    from switchyard.broker.topology.definitions import render_text

    quiet_logs()
    settings = load_settings()
    if vhost is None:
        vhost = settings.vhost if settings.amqp_url is not None else "/"
    echo(render_text(declared_topology(settings, profile, include), vhost=vhost), nl=False)


@app.command()
def diff(
    profile: ProfileOption = None, include: IncludeOption = None, as_json: JsonOption = False
) -> None:
    """Compare the broker with the declared topology. Exit code 1: there are differences."""
    from switchyard.broker.topology import differences as topology_differences

    quiet_logs()
    settings = load_settings()
    topology = declared_topology(settings, profile, include)

    async def compare(client: ManagementClient) -> list[Difference]:
        return topology_differences.diff(topology, await client.fetch())

    differences = _run_on_broker(settings, compare)
    if as_json:
        print_json([_to_json(difference) for difference in differences])
    elif differences:
        _print_table(differences)
    else:
        echo("The broker is as declared.")
    if differences:
        raise typer.Exit(FAILED)


@app.command()
def apply(profile: ProfileOption = None, include: IncludeOption = None) -> None:
    """Change the broker to match the declared topology. Can be repeated safely.

    Deletes no exchange, queue or policy. Exit code 1: something cannot be changed in place.
    """
    from switchyard.broker.topology import reconcile

    quiet_logs()
    settings = load_settings()
    topology = declared_topology(settings, profile, include)
    ledger_error = run(require_own_broker(settings))
    report = _run_on_broker(settings, lambda client: reconcile.apply(client, topology))
    for line in report.done:
        echo(line)
    for difference in report.extras:
        echo(f"left alone: {difference.text}")
    if ledger_error is not None:  # not asked again: a frozen database is waited for once
        _say_not_marked(ledger_error)
    elif (system := run(_mark_broker(settings))) is not None:
        echo(f"marked the broker as that of the system {system}")
    if not report.done and not report.left:
        echo("The broker is as declared: nothing to do.")
    for difference in report.blocked:
        say(f"not changed: {difference.text}")
    for advice in _advice(report.blocked):
        say(advice)
    if report.blocked:
        raise CommandFailed(
            "the broker is not as declared: see docs/topology.md, “Changing a live broker”"
        )


@app.command()
def users(
    prefix: Annotated[
        str,
        typer.Option(
            help="Prefix of the user names: PREFIX-publisher, PREFIX-worker, PREFIX-admin."
        ),
    ] = "switchyard",
    renew: RenewOption = False,
    as_json: JsonOption = False,
) -> None:
    """Create broker users for publishers, workers and administration, with minimal permissions.

    Prints the JOBS_AMQP_URL of each user with its password; passwords are shown only once.
    A password from JOBS_PUBLISHER_PASSWORD, JOBS_WORKER_PASSWORD or JOBS_ADMIN_PASSWORD is used as
    it is, and not printed. JOBS_MANAGEMENT_URL must name a user with the tag administrator.
    """
    from switchyard.broker.topology.users import make_users

    quiet_logs()
    settings = load_settings()
    passwords = settings.role_passwords
    made_users = _run_on_broker(
        settings, lambda client: make_users(client, prefix, renew=renew, passwords=passwords)
    )
    print_users(made_users, settings.require_amqp_url, passwords, as_json=as_json)


async def _mark_broker(settings: Settings) -> str | None:
    """Mark a broker that no system has marked. Return the system that it is marked for now; None
    where nothing was marked."""
    from switchyard.broker.topology.system_mark import MarkUnreadable
    from switchyard.services.engine.identity.broker import mark_broker
    from switchyard.services.engine.records.errors import LedgerError

    try:
        async with open_ledger(settings) as ledger:
            if await mark_broker(settings, ledger):
                return str(await ledger.system.system())
    except LedgerError as error:
        _say_not_marked(error)
    except MarkUnreadable as error:
        say(f"the broker is not marked: {error}")
    return None


def _say_not_marked(error: LedgerError) -> None:
    say(
        f"the broker is not marked as that of a system: {error}. Once the ledger answers, run "
        "`jobctl topology apply` again"
    )


def declared_topology(
    settings: Settings, profile: Profile | None, include: list[str] | None
) -> Topology:
    """Return what must exist on the broker. Raises CommandFailed, RegistryError."""
    from switchyard.broker.topology.build import build

    routes = load_registry(settings, include).routes
    try:
        return build(profile or settings.profile, routes, retry_delays=settings.retry_delays)
    except ValueError as error:
        raise CommandFailed(str(error)) from error


def _run_on_broker(settings: Settings, action: Callable[[ManagementClient], Awaitable[T]]) -> T:
    from switchyard.broker.management.client import ManagementClient

    try:
        url, vhost = settings.require_management_url(), settings.vhost
    except ValueError as error:
        raise CommandFailed(str(error)) from error

    async def act() -> T:
        async with ManagementClient(url, vhost) as client:
            return await action(client)

    return run(act())


def _to_json(difference: Difference) -> dict[str, str | bool]:
    return {
        "problem": difference.problem.value,
        "kind": difference.kind,
        "name": difference.name,
        "text": difference.text,
        "fixable": difference.fixable,
        "advice": difference.advice,
    }


def _print_table(differences: list[Difference]) -> None:
    from rich.markup import escape

    listing = table("problem", "what", "apply")
    listing.columns[1].no_wrap = False  # the whole text is wanted, over several lines
    for difference in differences:
        verdict = "can't change it" if difference.blocking else "reports it"
        if difference.fixable:
            verdict = "changes it"
        listing.add_row(difference.problem.value, escape(difference.text), verdict)
    console().print(listing)
    for advice in _advice(differences):
        say(advice)


def _advice(differences: Iterable[Difference]) -> list[str]:
    """Return the advice for these differences, each piece once, as lines."""
    advices = dict.fromkeys(each.advice for each in differences if each.advice)
    return [f"{text[:1].upper()}{text[1:]}." for text in advices]

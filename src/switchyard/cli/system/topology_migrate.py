"""`jobctl topology migrate`: live queues from one profile to the other."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from switchyard.broker.wording import pluralize
from switchyard.cli.base.common import (
    IncludeOption,
    load_registry,
    load_settings,
    require_broker,
    run,
)
from switchyard.cli.base.durations import DURATION_HELP, parse_duration
from switchyard.cli.base.errors import FAILED, WrongUsage
from switchyard.cli.base.output import (
    JsonOption,
    YesOption,
    confirm,
    console,
    echo,
    print_json,
    say,
    table,
)
from switchyard.cli.system.system import require_own_broker

if TYPE_CHECKING:
    from switchyard.broker.management.model import Topology
    from switchyard.broker.topology.migrate import MigratedQueue, QueueMigration
    from switchyard.services.common.settings import Settings

MIN_TIMEOUT = 1.0


def migrate(
    to: Annotated[
        Literal["classic", "quorum"], typer.Option(help="Type that the queues will have.")
    ],
    include: IncludeOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Change nothing; list the queues that would be changed."),
    ] = False,
    timeout: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help=f"Time that the running jobs of a queue have to end, {DURATION_HELP}.",
        ),
    ] = "10m",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Change the type of the queues (classic or quorum), one queue after the other.

    Publishers and workers continue. New jobs of a queue wait until its running jobs have ended, at
    least 11 s. If the command is killed, run it again. Exit code 1: the running jobs of a queue did
    not end in time; that queue is unchanged.
    """
    from switchyard.cli.base.stopping import stop_by_interrupt

    seconds = parse_duration(timeout)
    if seconds < MIN_TIMEOUT:
        raise WrongUsage(f"--timeout {timeout}: give at least {MIN_TIMEOUT:g}s")
    settings = load_settings()
    require_broker(settings)
    target = _target_topology(settings, to, include)
    run(require_own_broker(settings))
    steps = run(_plan_steps(settings, target))
    if dry_run or not steps:
        if as_json:
            print_json([_to_json(step) for step in steps])
        elif steps:
            _print(steps)
        else:
            echo(f"All queues are as the profile {to} wants them: nothing to do.")
        return
    if not yes:
        _print(steps, stderr=True)
        # Also on the way to classic: a publisher of that profile leaves it to the broker to keep
        # what a full hot lane refuses, which a quorum queue does not do.
        say("Run all processes with JOBS_PROFILE=quorum while this goes on.")
        confirm(f"Remake {pluralize(len(steps), 'queue')}?", abort=True)
    stop_by_interrupt()
    try:
        ended = run(_run_steps(settings, target, steps, seconds, quiet=as_json))
    except KeyboardInterrupt:
        say("Interrupted; nothing is lost. Run it again to continue.")
        raise
    if as_json:
        print_json([{"name": e.name, "moved": e.moved, "done": e.done} for e in ended])
    if not all(each.done for each in ended):
        raise typer.Exit(FAILED)
    if not as_json:
        echo(f"Done. Set JOBS_PROFILE={to} everywhere, and see `jobctl topology diff`.")


def _print(steps: Iterable[QueueMigration], *, stderr: bool = False) -> None:
    from rich.markup import escape

    listing = table("lane", "queue", "from", "to", "messages", right=("messages",))
    for step in steps:
        row = _to_json(step)
        again = " (goes on)" if step.begun else ""
        listing.add_row(
            escape(step.lane),
            escape(step.name) + again,
            row["from"],
            row["to"],
            str(step.messages),
        )
    console(stderr=stderr).print(listing)


def _to_json(step: QueueMigration) -> dict[str, Any]:
    return {
        "lane": step.lane,
        "name": step.name,
        "from": step.live_type or "deleted",
        "to": step.queue.type,
        "messages": step.messages,
        "begun": step.begun,
    }


def _target_topology(
    settings: Settings, to: Literal["classic", "quorum"], include: Any
) -> Topology:
    from switchyard.broker.topology.build import build

    routes = load_registry(settings, include).routes
    return build(to, routes, retry_delays=settings.retry_delays)


async def _plan_steps(settings: Settings, target: Topology) -> list[QueueMigration]:
    from switchyard.broker.management.client import ManagementClient
    from switchyard.broker.topology.migrate import plan

    async with ManagementClient(settings.require_management_url(), settings.vhost) as client:
        return await plan(client, target)


async def _run_steps(
    settings: Settings,
    target: Topology,
    steps: Iterable[QueueMigration],
    wait: float,
    *,
    quiet: bool,
) -> list[MigratedQueue]:
    from switchyard.broker.management.client import ManagementClient
    from switchyard.broker.topology.migrate import Migration, exclusive_migration
    from switchyard.broker.wire.connection import connected, underlying

    ended: list[MigratedQueue] = []
    async with (
        ManagementClient(settings.require_management_url(), settings.vhost) as client,
        connected(settings.require_amqp_url(), "topology migrate") as connection,
        exclusive_migration(underlying(connection)),
    ):
        migration = Migration(client, underlying(connection), target, drain_timeout=wait)
        for lane, of_lane in groupby(steps, key=lambda step: step.lane):
            say(f"{lane} …")
            async for each in migration.migrate_lane(list(of_lane)):
                ended.append(each)
                if each.done and not quiet:
                    moved = pluralize(each.moved, "message")
                    echo(f"{each.name}: remade as {target.profile}, {moved} moved")
                elif not each.done:
                    say(
                        f"{each.name}: jobs still ran after {wait:g} s; the queue is unchanged. "
                        "Run it again with a longer --timeout, or when none runs: "
                        "`jobctl jobs list --state running`"
                    )
    return ended

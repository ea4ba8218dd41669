"""The commands that all kinds of operations share: list, show, watch, pause."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from switchyard.cli.base.common import load_settings, open_ledger, run
from switchyard.cli.base.errors import FAILED
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    console,
    print_json,
    print_json_line,
    say,
    table,
)
from switchyard.cli.base.shared_options import LimitOption
from switchyard.cli.engine.bulk.view import BulkDisplay, BulkListing

if TYPE_CHECKING:
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkOperation

IdArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Id, as printed at the start or by `list`; its first six digits are enough.",
    ),
]
WATCH_INTERVAL = 1.0

T = TypeVar("T")


def add_commands(app: typer.Typer, view: BulkDisplay[Any]) -> None:
    """Add the commands that all kinds share to a group of commands."""

    @app.command(name="list", help=f"List {view.noun}s, newest first.")
    def list_command(limit: LimitOption = 20, as_json: JsonOption = False) -> None:
        list_operations(view, limit, as_json=as_json)

    @app.command(help=f"Show who started a {view.noun}, why, its progress and its results.")
    def show(operation_id: IdArgument, as_json: JsonOption = False) -> None:
        seen = run(_read_operation(view, operation_id))
        if as_json:
            print_json(view.to_model(seen))
        else:
            view.report(seen)

    @app.command(
        help=f"Follow a {view.noun} until it ends. Ctrl-C ends only the watching.\n\n"
        "Exit code 1: not everything was done."
    )
    def watch(operation_id: IdArgument, as_json: JsonOption = False) -> None:

        async def follow_it() -> bool:
            registry = _registry()
            async with open_ledger(load_settings(), registry) as ledger:
                return await follow(view, ledger, registry, operation_id, as_json=as_json)

        if not run(follow_it()):
            raise typer.Exit(FAILED)

    @app.command(
        help=f"Pause a {view.noun} within a second, until it is resumed. Published jobs still run."
    )
    def pause(operation_id: IdArgument, as_json: JsonOption = False) -> None:

        async def work(ledger: Ledger) -> BulkOperation:
            from switchyard.services.engine.bulk import control as bulk_control

            return await bulk_control.pause(ledger, operation_id, kinds=view.kinds)

        message = f"is paused; go on with `{view.command} resume {{id}}`"
        change(view, work, message, as_json=as_json)


def change(
    view: BulkDisplay[T],
    work: Callable[[Ledger], Awaitable[BulkOperation]],
    message: str,
    *,
    as_json: bool,
) -> None:
    """Change an operation, and print it as JSON, or its id and `message`, in which `{id}` stands
    for the id."""

    async def act() -> tuple[BulkOperation, T]:
        registry = _registry()
        async with open_ledger(load_settings(), registry) as ledger:
            operation = await work(ledger)
            return operation, await _read(view, ledger, registry, operation)

    operation, seen = run(act())
    if as_json:
        print_json(view.to_model(seen))
    else:
        say(f"{operation.id} {message.format(id=operation.id)}")


def change_limits(
    view: BulkDisplay[T],
    operation_id: str,
    changes: Mapping[str, float | int | None],
    *,
    as_json: bool,
) -> None:
    """Change the limits of an operation, and print it."""

    async def work(ledger: Ledger) -> BulkOperation:
        from switchyard.services.engine.bulk.control import set_limits

        return await set_limits(ledger, operation_id, changes, kinds=view.kinds)

    change(view, work, "has its new limits", as_json=as_json)


def list_operations(view: BulkListing[T], limit: int, *, as_json: bool) -> None:
    """Print the operations of a kind, the newest first."""

    async def read() -> list[T]:
        registry = _registry()
        async with open_ledger(load_settings(), registry) as ledger:
            page = await ledger.bulk.list_bulk(*view.kinds, limit=limit)
            return [await _read(view, ledger, registry, each) for each in page.items]

    operations = run(read())
    if as_json:
        print_json([view.to_model(each) for each in operations])
        return
    if not operations:
        say(view.empty_text)
        return
    rows = table(*view.columns, flexible=("WHAT", "WHY"), right=view.right)
    for each in operations:
        add_row(rows, *view.row(each))
    console().print(rows)


async def follow(
    view: BulkDisplay[T],
    ledger: Ledger,
    registry: Registry,
    operation_id: str,
    *,
    as_json: bool,
) -> bool:
    """Show an operation until it is over, then print its report. Return whether it has done
    everything."""
    import asyncio

    from rich.live import Live

    from switchyard.services.engine.bulk.control import require_bulk

    async def read_repeatedly() -> AsyncIterator[T]:
        while True:
            began = time.monotonic()
            seen = await _read(
                view, ledger, registry, await require_bulk(ledger, operation_id, *view.kinds)
            )
            took = time.monotonic() - began
            yield seen
            if view.is_over(seen):
                return
            # To count a million jobs takes seconds, and the ledger has other work to do.
            await asyncio.sleep(max(WATCH_INTERVAL, 10 * took))

    screen = console(stderr=True)
    is_live = screen.is_terminal and not as_json
    last_text = ""
    live_view = Live(console=screen, auto_refresh=False, transient=True)
    with live_view if is_live else nullcontext() as live:
        async for seen in read_repeatedly():
            if as_json:
                print_json_line(view.to_model(seen))
            elif live is not None:
                live.update(view.picture(seen), refresh=True)
            elif not view.is_over(seen) and (line := view.one_line(seen)) != last_text:
                screen.print(line)
                last_text = line
    if not as_json:
        view.report(seen)
    return view.succeeded(seen)


async def _read_operation(view: BulkDisplay[T], operation_id: str) -> T:
    """Read an operation. Raises UnknownBulkOperation, also for an operation of another kind."""
    from switchyard.services.engine.bulk.control import require_bulk

    registry = _registry()
    async with open_ledger(load_settings(), registry) as ledger:
        operation = await require_bulk(ledger, operation_id, *view.kinds)
        return await _read(view, ledger, registry, operation)


async def _read(
    view: BulkListing[T], ledger: Ledger, registry: Registry, operation: BulkOperation
) -> T:
    """Read an operation with its progress; the secrets of its record are hidden."""
    from switchyard.services.engine.bulk.shown import shown_operation

    return await view.read(ledger, shown_operation(registry, operation))


def _registry() -> Registry:
    """Return a registry for the types that are registered in the ledger."""
    from switchyard.services.engine.jobs.registry import Registry

    return Registry()

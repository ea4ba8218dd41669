"""Print results to stdout and everything else to stderr; listings as a table or as JSON.

A table is for people; `--json` is for programs: it prints models of `api/models/`, made in
`api/views/`. Commands print only with the functions of this module, so all that they print has
passed `services/common/printable.py`. Ruff refuses every other way to print (`banned-api` in
pyproject.toml).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.cli.base.errors import WrongUsage
from switchyard.services.common.printable import printable, printable_json, to_json

if TYPE_CHECKING:
    from rich.console import Console  # noqa: TID251
    from rich.table import Table

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of text; its keys are in docs/cli.md.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

_LINE_END = re.compile(" +\n")
PIPE_WIDTH = 10_000
"""Width, in characters, of a table that goes to a file or a pipe, so that nothing is cut off."""

STATE_STYLES = {
    "succeeded": "green",
    "ok": "green",
    "alive": "green",
    "completed": "green",
    "running": "cyan",
    "draining": "cyan",
    "waiting": "dim",
    "paused": "yellow",
    "halted": "red",
    "failed": "red",
    "retrying": "yellow",
    "scheduled": "dim",
    "joining": "dim",
    "warning": "yellow",
    "dead": "red",
    "silent": "red",
    "wrong": "red",
    "cancelled": "dim",
    "stopped": "dim",
}


def console(*, stderr: bool = False) -> Console:
    """Return a console on stdout or stderr; wide enough for everything when it is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return _safe_console()(
        stderr=stderr,
        highlight=False,
        emoji=False,
        width=None if stream.isatty() else PIPE_WIDTH,
    )


@cache
def _safe_console() -> type[Console]:
    """Return the class of consoles; made when it is needed, as importing rich takes a while."""
    from rich.console import Console, ConsoleOptions, RenderableType  # noqa: TID251
    from rich.segment import Segment
    from rich.text import Text

    class SafeConsole(Console):
        """Make every text printable on its way to the terminal, whatever it is part of, and cut off
        the spaces with which rich fills columns up to the line's end."""

        def render_str(self, text: str, *args: Any, **options: Any) -> Text:
            # Before it is measured, so that a table has room for the printable form.
            return super().render_str(printable(text), *args, **options)

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            trailing_spaces: list[Segment] = []  # spaces that may be the end of a line
            for segment in super().render(renderable, options):
                if segment.control:  # rich's control codes, for the cursor of a live display
                    yield segment
                    continue
                text = _LINE_END.sub("\n", printable(segment.text))
                if text.startswith("\n"):
                    trailing_spaces.clear()
                visible = text.rstrip(" ")
                if visible:
                    yield from trailing_spaces
                    trailing_spaces.clear()
                    yield segment if visible == segment.text else Segment(visible, segment.style)
                if visible != text:
                    trailing_spaces.append(Segment(text[len(visible) :], segment.style))
            yield from trailing_spaces

    return SafeConsole


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text, with control characters made harmless."""
    typer.echo(printable(text), err=err, nl=nl)  # noqa: TID251


def say(text: str) -> None:
    """Print a message that is not part of the result: to stderr."""
    echo(text, err=True)


def confirm(question: str, *, default: bool = False, abort: bool = False) -> bool:
    """Ask on stderr; with `abort`, a no raises typer.Abort."""
    return typer.confirm(printable(question), default=default, abort=abort, err=True)  # noqa: TID251


def require_answer(verb: str) -> None:
    """Raise WrongUsage where there is no terminal on which `confirm` could ask."""
    if not sys.stdin.isatty():
        raise WrongUsage(f"to {verb} without a terminal to ask at, give --yes")


def table(*columns: str, flexible: Sequence[str] = (), right: Sequence[str] = ()) -> Table:
    """Make a table without borders; fill it with `add_row`. A row is one line, never wrapped.

    Where the terminal is too narrow, the columns in `flexible` are cut off, the others never;
    those in `right` are aligned to the right.
    """
    from rich.table import Table

    new_table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        new_table.add_column(
            name, no_wrap=name not in flexible, justify="right" if name in right else "left"
        )
    return new_table


def add_row(rows: Table, *cells: str) -> None:
    """Add a row of cells in rich markup."""
    from rich.text import Text

    rich_cells = []
    for cell_text, column in zip(cells, rows.columns, strict=True):
        text = Text.from_markup(printable(cell_text), emoji=False, overflow="ellipsis")
        text.no_wrap = True
        text.justify = column.justify
        rich_cells.append(text)
    rows.add_row(*rich_cells)


def styled(state: str) -> str:
    """Return a state in its colour, as rich markup."""
    style = STATE_STYLES.get(state)
    return f"[{style}]{state}[/]" if style else cell(state)


def cell(text: str | None) -> str:
    """Return text from elsewhere for a table's cell: in one line, brackets in it are no markup."""
    from rich.markup import escape

    return escape(printable(" ".join((text or "").split())))


def print_json(value: Any) -> None:
    """Print one JSON document: a model of `api/models/` as the HTTP API answers it, a list of them,
    or plain JSON."""
    echo(indented_json(_dump_models(value)))


def _dump_models(value: Any) -> Any:
    if isinstance(value, list):
        return [_dump_models(each) for each in value]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def indented_json(value: Any) -> str:
    """Write a JSON document over several lines, for people and programs: valid, whatever it
    contains."""
    return printable_json(to_json(value, indent=2, default=str))


def inline_json(value: Any) -> str:
    """Write a JSON document in one line."""
    return printable_json(to_json(value))


def print_json_line(value: Any) -> None:
    """Print one line of JSON Lines; the value as for `print_json`."""
    echo(inline_json(_dump_models(value)))


def print_rows(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line; pairs without a value are left out."""
    from rich.markup import escape
    from rich.table import Table

    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if value:
            grid.add_row(name, escape(value))
    console().print(grid)


def page_ranges(pages: Sequence[int]) -> str:
    """Return page numbers, which ascend, as people write them: `pages 3–5, 9`; empty for none."""
    ranges: list[list[int]] = []
    for page in pages:
        if ranges and page == ranges[-1][1] + 1:
            ranges[-1][1] = page
        else:
            ranges.append([page, page])
    written = [f"{first}–{last}" if first < last else str(first) for first, last in ranges]
    name = "pages " if len(pages) > 1 else "page "
    return name + ", ".join(written) if written else ""

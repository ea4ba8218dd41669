"""Import a command's module when the command is used, and find users' modules in the current
directory.

`jobctl --help` needs only names and summaries: with the modules of all commands it would take
half as long again.
"""

from __future__ import annotations

import sys
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from switchyard.cli.base.help_page import write_help

SHORT_TYPES = {
    "bool": "",
    "int": "N",
    "float": "N",
    "str": "TEXT",
    "list[str]": "TEXT",
    "datetime": "DATE",
}


class LazyCommand(TyperCommand):
    """A command or group of commands, known by name and summary until somebody uses it.

    `reference` names the command's function, or a `typer.Typer` with commands of its own, as
    `module:name`: `cli.pipeline.search:search`. `summary` repeats the first line of its help; a
    test checks that both are equal.
    """

    def __init__(self, name: str, summary: str, *, reference: str, panel: str) -> None:
        super().__init__(name=name, help=summary, rich_help_panel=panel)
        self._reference = reference

    @cached_property
    def loaded(self) -> Any:
        """The command, which is imported when it is first used."""
        return self.load()

    def load(self) -> Any:
        """Import the command."""
        module_name, _, attribute = self._reference.partition(":")
        module = import_module(f"switchyard.{module_name}")
        command = getattr(module, attribute)
        parent = typer.Typer(callback=_group, add_completion=False)
        if isinstance(command, typer.Typer):
            parent.add_typer(command, name=self.name)
        else:
            kind = getattr(module, "COMMAND_CLASS", TyperCommand)
            parent.command(name=self.name, cls=kind)(command)
        group = cast("TyperGroup", typer.main.get_command(parent))
        return with_plain_help(group.commands[self.name or ""])

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Make the context of the loaded command, which is what runs from here on."""
        return self.loaded.make_context(info_name, args, parent=parent, **extra)


def with_plain_help(command: Any) -> Any:
    """Return the command, and those in it, with the page of help_page.py, and the types of its
    parameters as docs/cli.md writes them.

    Nothing for a flag, which takes no value, `N` for a number, `TEXT` for text, `a|b` for a
    choice: the description of an option needs the room at 80 columns. Nothing for an argument:
    its name says what it is. In the line of usage it is `ID`, as everywhere, and not `{ID}`.
    """
    for inner in getattr(command, "commands", {}).values():
        with_plain_help(inner)
    command.format_help = partial(write_help, command)
    context = typer.Context(command)
    for each in (*command.params, command.get_help_option(context)):
        if isinstance(each, TyperArgument):
            argument = cast("Any", each)
            argument.display_type_rich = _no_type
            argument.get_usage_pieces = partial(_usage_pieces, argument)
        elif isinstance(each, TyperOption) and each.metavar is None:
            each.metavar = SHORT_TYPES.get(each.bare_type(), _choices(each, context))
    return command


def _choices(option: TyperOption, context: typer.Context) -> str | None:
    """Return the choices of an option as `a|b`, without typer's brackets: it writes `<a|b>`, and
    `<list[a|b]>` where the option may be repeated."""
    if not option.type_descriptor.is_choice:
        return None
    return option.display_type(context).strip("<>").removeprefix("list[").removesuffix("]")


def _no_type(ctx: object) -> None:
    """Show no type beside the name of an argument."""


def _usage_pieces(argument: TyperArgument, _ctx: object) -> list[str]:
    """Write an argument in the line of usage: `ID`, `[ID]` for an optional one, `ID...` for one
    that may be repeated."""
    name = argument.display_name_raw if argument.required else f"[{argument.display_name_raw}]"
    return [name if argument.nargs == 1 else f"{name}..."]


def _group() -> None:
    """Do nothing: with a callback, typer makes a group even of a single command."""


def find_modules_here() -> None:
    """Let JOBS_MODULES and `--include` name a file in the current directory.

    At the end of the path: a file of the user's must not take the place of a library.
    """
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        return  # it was removed: there is nothing to find
    if here not in sys.path:
        sys.path.append(here)

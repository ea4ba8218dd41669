"""A command that imports its module when it is used.

`jobctl --help` needs only names and summaries: with the modules of all commands it would take
half as long again.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal, cast

import typer
from typer.core import TyperCommand, TyperGroup

MARKUP: Literal["markdown"] = "markdown"


class Later(TyperCommand):
    """A command or group of commands, known by name and summary until somebody uses it.

    `place` is where it is, as in `cli.look.search:search`: a function, or a `typer.Typer` with
    commands of its own. `summary` repeats the first line of its help; a test holds them equal.
    """

    def __init__(self, name: str, summary: str, *, place: str, panel: str) -> None:
        super().__init__(name=name, help=summary, rich_help_panel=panel, rich_markup_mode=MARKUP)
        self._place = place

    def load(self) -> Any:
        """The command itself."""
        module_name, _, attribute = self._place.partition(":")
        module = import_module(f"switchyard.{module_name}")
        found = getattr(module, attribute)
        parent = typer.Typer(rich_markup_mode=MARKUP, callback=_group, add_completion=False)
        if isinstance(found, typer.Typer):
            parent.add_typer(found, name=self.name)
        else:
            kind = getattr(module, "COMMAND_CLASS", TyperCommand)
            parent.command(name=self.name, cls=kind)(found)
        group = cast("TyperGroup", typer.main.get_command(parent))
        return group.commands[self.name or ""]

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """The loaded command's: it is what the context's owner calls from here on."""
        return self.load().make_context(info_name, args, parent=parent, **extra)


def _group() -> None:
    """A callback makes a group also of a single command."""

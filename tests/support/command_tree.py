"""The whole of `jobctl`, each command imported: for tests that walk it."""

from typing import Any

from switchyard.cli.base.lazy_command import LazyCommand
from switchyard.cli.main import commands


def command_tree() -> Any:
    """Return `jobctl` as a group whose `commands` are the real ones, at every level."""
    tree: Any = commands()
    for name, command in tree.commands.items():
        if isinstance(command, LazyCommand):
            tree.commands[name] = command.load()
    return tree

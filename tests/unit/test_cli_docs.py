"""docs/cli.md and docs/settings.md describe every command, option and setting."""

import re
from pathlib import Path

import pytest

from switchyard.cli.system.settings_page import page as settings_page
from tests.support.command_tree import command_tree

DOCS = Path(__file__).parents[2] / "docs"


def _leaves(command, path=("jobctl",)):
    """Yield the name and the command of each command that is no group."""
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        yield " ".join(path), command
    for name, each in (subcommands or {}).items():
        yield from _leaves(each, (*path, name))


COMMANDS = dict(_leaves(command_tree()))


def _split_cli_page() -> tuple[str, dict[str, str]]:
    """Return the text before the first section, and the sections by their titles."""
    parts = re.split(r"^## (.+)$", (DOCS / "cli.md").read_text(), flags=re.MULTILINE)
    return parts[0], dict(zip(parts[1::2], parts[2::2], strict=True))


def _documentation_of(name: str) -> str:
    """Return a command's section, with the texts for options of several commands: the introduction
    and the sections that the command's section links to."""
    introduction, sections = _split_cli_page()
    linked = re.findall(r"\(#([\w-]+)\)", sections[name])
    titles = {title.lower().replace(" ", "-"): title for title in sections}
    return "".join(
        [
            sections[name],
            introduction,
            *(sections[titles[each]] for each in linked if each in titles),
        ]
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    documentation = _documentation_of(name)
    options = [
        option
        for parameter in COMMANDS[name].params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("-") and option != "--help"
    ]
    assert [option for option in options if f"`{option}" not in documentation] == []


def test_every_documented_command_exists() -> None:
    _, sections = _split_cli_page()
    assert set(sections) == {*COMMANDS, "Options of every backfill"}


def test_the_settings_page_is_up_to_date() -> None:
    assert (DOCS / "settings.md").read_text() == settings_page(), (
        "write it again: python -m switchyard.cli.system.settings_page > docs/settings.md"
    )

"""docs/cli.md and docs/settings.md name everything that there is."""

import re
from pathlib import Path

import pytest

from switchyard.cli.system.settings_page import page
from tests.support.command_tree import command_tree

DOCS = Path(__file__).parents[2] / "docs"


def _leaves(command, path=("jobctl",)):
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path), command
    for name, each in (inner or {}).items():
        yield from _leaves(each, (*path, name))


COMMANDS = dict(_leaves(command_tree()))


def _sections() -> dict[str, str]:
    """By command, with the options that all backfills share."""
    parts = re.split(r"^## (.+)$", (DOCS / "cli.md").read_text(), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    shared = sections.pop("Options of every backfill")
    for name in sections:
        if name.startswith("jobctl backfill start "):
            sections[name] += shared
    return sections


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    section = _sections()[name]
    options = [
        option
        for parameter in COMMANDS[name].params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("-") and option != "--help"
    ]
    assert [option for option in options if f"`{option}" not in section] == []


def test_no_command_is_documented_that_there_is_not() -> None:
    assert set(_sections()) == set(COMMANDS)


def test_settings_page_is_that_of_the_settings() -> None:
    assert (DOCS / "settings.md").read_text() == page(), (
        "make it anew: python -m switchyard.cli.system.settings_page > docs/settings.md"
    )

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


def _parts() -> tuple[str, dict[str, str]]:
    """Return what stands before the commands, and the sections by their titles."""
    parts = re.split(r"^## (.+)$", (DOCS / "cli.md").read_text(), flags=re.MULTILINE)
    return parts[0], dict(zip(parts[1::2], parts[2::2], strict=True))


def _documentation_of(name: str) -> str:
    """Return a command's section, and what describes options of several commands: the list before
    all commands, and the sections that this one links to."""
    introduction, sections = _parts()
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


def test_no_command_is_documented_that_there_is_not() -> None:
    _, sections = _parts()
    assert set(sections) == {*COMMANDS, "Options of every backfill"}


def test_settings_page_is_that_of_the_settings() -> None:
    assert (DOCS / "settings.md").read_text() == page(), (
        "make it anew: python -m switchyard.cli.system.settings_page > docs/settings.md"
    )

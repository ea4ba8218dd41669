"""Every `jobctl` and `make` that a page prints can be typed as it stands: the command, its options
and its targets exist, and a whole line is read by the real command line."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.support.command_tree import command_tree
from tests.support.docs import BLOCK, CODE, PAGES, ROOT

COMMAND_PAGES = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
USAGE_ERROR: Any = typer.BadParameter.__base__
"""Of whichever click it is that typer brings."""
ENDS = {"|", "||", "&&", "&", ";", ">", ">>", "<", "2>"}


@cache
def tree() -> Any:
    return command_tree()


def commands_of(line: str) -> Iterator[list[str]]:
    """The words of each `jobctl` or `make` of a shell's line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.wordchars += "…%:,[]{}@^+"
    lexer.commenters = "#"
    words: list[str] = []
    try:
        found = [*lexer, ";"]
    except ValueError:  # a quote that goes on in the next line
        return
    for word in found:
        if word in ENDS:
            while words and (re.fullmatch(r"[A-Z_]+=.*", words[0]) or words[0] == "export"):
                words.pop(0)
            for start in ("jobctl", "make"):
                if start in words[:5]:
                    yield words[words.index(start) :]
                    break
            words = []
        else:
            words.append(word)


def lines(page: Path) -> Iterator[tuple[str, bool]]:
    """Code of the page that may be a command, and whether it is a whole line."""
    text = page.read_text()
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            yield line, True
    for quoted in CODE.findall(BLOCK.sub("", text)):
        yield quoted, False


def mistake(words: list[str], *, whole: bool) -> str | None:
    if words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
        unknown = [each for each in targets if each not in TARGETS]
        return f"no target {unknown}" if unknown else None
    command, rest = tree(), words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    if getattr(command, "commands", None):
        named = rest and rest[0] != "…" and not rest[0].startswith("-")
        return f"no command {rest[0]}" if named else None
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {
        "--help"
    }
    asked = {word.partition("=")[0] for word in rest if word.startswith("--")}
    if not asked <= known:
        return f"no option {asked - known}"
    if whole and "…" not in words and "--help" not in words:
        try:
            command.make_context("jobctl", list(rest))
        except USAGE_ERROR as error:
            return error.format_message()
    return None


@pytest.mark.parametrize("page", COMMAND_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_can_be_typed(page: Path) -> None:
    mistakes = [
        f"{' '.join(words)}: {found}"
        for line, whole in lines(page)
        for words in commands_of(line)
        if (found := mistake(words, whole=whole))
    ]
    assert mistakes == []


def test_mistakes_are_found() -> None:
    assert mistake(["jobctl", "lanes", "--wtach"], whole=False) == "no option {'--wtach'}"
    assert mistake(["jobctl", "dead", "redirve"], whole=False) == "no command redirve"
    assert mistake(["make", "tets"], whole=False) == "no target ['tets']"
    assert mistake(["jobctl", "publish"], whole=True)
    assert [*commands_of("A=1 jobctl lanes --json | jq . && make up  # to see")] == [
        ["jobctl", "lanes", "--json"],
        ["make", "up"],
    ]

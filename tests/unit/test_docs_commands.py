"""Every `jobctl` and `make` command on a page is valid: the command, its options and its targets
exist, and the real command line parses a whole line."""

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
"""The base of usage errors in the click that typer uses."""
COMMAND_ENDS = {"|", "||", "&&", "&", ";", ">", ">>", "<", "2>"}


@cache
def cached_command_tree() -> Any:
    return command_tree()


def commands_of(line: str) -> Iterator[list[str]]:
    """Yield the words of each `jobctl` or `make` command in a line of shell code."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.wordchars += "…%:,[]{}@^+"
    lexer.commenters = "#"
    words: list[str] = []
    try:
        tokens = [*lexer, ";"]
    except ValueError:  # a quote that goes on in the next line
        return
    for word in tokens:
        if word in COMMAND_ENDS:
            while words and (re.fullmatch(r"[A-Z_]+=.*", words[0]) or words[0] == "export"):
                words.pop(0)
            for start in ("jobctl", "make"):
                if start in words[:5]:
                    yield words[words.index(start) :]
                    break
            words = []
        else:
            words.append(word)


def code_lines(page: Path) -> Iterator[tuple[str, bool]]:
    """Yield the page's code that may be a command, and whether it is a whole line."""
    text = page.read_text()
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            yield line, True
    for quoted in CODE.findall(BLOCK.sub("", text)):
        yield quoted, False


def find_mistake(words: list[str], *, is_whole_line: bool) -> str | None:
    """Return what is wrong with a command, None if nothing is."""
    if words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
        unknown = [each for each in targets if each not in TARGETS]
        return f"no target {unknown}" if unknown else None
    command, arguments = cached_command_tree(), words[1:]
    while arguments and arguments[0] in getattr(command, "commands", {}):
        command = command.commands[arguments.pop(0)]
    if getattr(command, "commands", None):
        names_command = arguments and arguments[0] != "…" and not arguments[0].startswith("-")
        return f"no command {arguments[0]}" if names_command else None
    known_options = {
        option for each in command.params for option in (*each.opts, *each.secondary_opts)
    } | {"--help"}
    options = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    if not options <= known_options:
        return f"no option {options - known_options}"
    if is_whole_line and "…" not in words and "--help" not in words:
        try:
            command.make_context("jobctl", list(arguments))
        except USAGE_ERROR as error:
            return error.format_message()
    return None


@pytest.mark.parametrize("page", COMMAND_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_valid(page: Path) -> None:
    mistakes = [
        f"{' '.join(words)}: {mistake}"
        for line, is_whole_line in code_lines(page)
        for words in commands_of(line)
        if (mistake := find_mistake(words, is_whole_line=is_whole_line))
    ]
    assert mistakes == []


def test_a_mistake_is_found() -> None:
    assert (
        find_mistake(["jobctl", "lanes", "--wtach"], is_whole_line=False) == "no option {'--wtach'}"
    )
    assert find_mistake(["jobctl", "dead", "redirve"], is_whole_line=False) == "no command redirve"
    assert find_mistake(["make", "tets"], is_whole_line=False) == "no target ['tets']"
    assert find_mistake(["jobctl", "publish"], is_whole_line=True)
    assert [*commands_of("A=1 jobctl lanes --json | jq . && make up  # to see")] == [
        ["jobctl", "lanes", "--json"],
        ["make", "up"],
    ]

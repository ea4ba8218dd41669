"""`jobctl --help` imports nothing heavy, and every command says what it does."""

import json
import subprocess
import sys

import pytest
import typer

from switchyard.cli.jobs.jobs import StateName
from switchyard.cli.main import app
from switchyard.services.records import State

HEAVY = (
    "aio_pika", "aiormq", "alembic", "asyncio", "httpx", "lancedb", "multiprocessing", "pebble",
    "pika", "pydantic_settings", "pymupdf", "sqlalchemy", "structlog",
)  # fmt: skip
PROBE = """
import json, sys
from switchyard.cli.main import run
code = run(sys.argv[1:])
sys.stderr.write(json.dumps([code, sorted(sys.modules)]))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["publish", "--help"],
        ["dead", "--help"],
        ["up", "--help"],
        ["documents", "--help"],
    ],
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True
    )
    code, modules = json.loads(done.stderr)
    assert code == 0
    assert "Usage: jobctl" in done.stdout
    # typer itself reads the options of a command with pydantic.
    heavy = HEAVY if len(arguments) > 1 else (*HEAVY, "pydantic")
    assert [name for name in heavy if name in modules] == []


def test_every_command_has_a_summary_that_is_a_sentence() -> None:
    for path, command in _commands(typer.main.get_command(app)):
        summary = (command.help or "").split("\n")[0].strip()
        assert summary, path
        assert summary[0].isupper(), path
        assert summary[-1] in ".:", path


def test_states_of_the_command_line_are_those_of_the_ledger() -> None:
    assert [state.value for state in StateName] == [state.value for state in State]


def _commands(command, path=("jobctl",)):
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*path, name))

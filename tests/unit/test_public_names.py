"""`switchyard`: the names that users import, and which libraries each of them loads."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import switchyard
from switchyard.services.common.extras import MODULES_OF_EXTRAS
from switchyard.services.engine.jobs.registry import Registry

ROOT = Path(__file__).parents[2]
HEAVY_LIBRARIES = (
    "fastapi",
    "sqlalchemy",
    "aio_pika",
    "aiormq",
    "pika",
    "httpx",
    "pydantic_settings",
)
CLIENT_NAMES = ("AsyncClient", "Client")
LIBRARIES_OF_NAMES: dict[tuple[str, ...], set[str]] = {
    CLIENT_NAMES: {"httpx"},
    ("BlockingPublisher",): {"aio_pika", "aiormq", "pika", "pydantic_settings"},
    ("JobPublisher", "JobRequest", "LLMQueue"): {
        "aio_pika",
        "aiormq",
        "pydantic_settings",
        "sqlalchemy",
    },
}
"""The heavy libraries that these names may load; the other names may load none."""


@cache
def modules_after(code: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after running the code."""
    report = "\nimport json, sys; print(json.dumps(list(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code + report], capture_output=True, text=True, check=True
    )
    return set(json.loads(result.stdout))


def test_the_import_itself_loads_nothing() -> None:
    added = modules_after("import switchyard") - modules_after("import importlib, typing")
    assert added == {"switchyard"}


@pytest.mark.parametrize("names", LIBRARIES_OF_NAMES, ids=" ".join)
def test_a_name_loads_no_more_than_its_libraries(names: tuple[str, ...]) -> None:
    loaded = modules_after(f"from switchyard import {', '.join(names)}")
    assert {each for each in HEAVY_LIBRARIES if each in loaded} <= LIBRARIES_OF_NAMES[names]
    assert loaded & frozenset().union(*MODULES_OF_EXTRAS.values()) == set()


def test_all_other_names_load_no_heavy_library() -> None:
    names_with_libraries = {name for names in LIBRARIES_OF_NAMES for name in names}
    other_names = [name for name in switchyard.__all__ if name not in names_with_libraries]
    loaded = modules_after(f"from switchyard import {', '.join(other_names)}")
    assert {each for each in HEAVY_LIBRARIES if each in loaded} == set()


def test_outcomes_need_no_library_at_all() -> None:
    loaded = modules_after("from switchyard import Done, Job, Next, Outcome, Retry, Snooze")
    assert "pydantic" not in loaded
    assert "asyncio" not in loaded


def test_a_client_loads_few_modules() -> None:
    """It loads httpx, pydantic and our models of the API: half the modules of a server."""
    client = modules_after(f"from switchyard import {', '.join(CLIENT_NAMES)}")
    libraries = modules_after("import asyncio, httpx, pydantic; pydantic.BaseModel")
    assert len(client - libraries) < 250, sorted(client - libraries)


def test_every_name_is_there_and_listed() -> None:
    assert all(getattr(switchyard, name) is not None for name in switchyard.__all__)
    assert set(switchyard.__all__) <= set(dir(switchyard))
    names_of_modules = [name for names in switchyard._HOMES.values() for name in names]
    assert sorted(names_of_modules) == sorted(switchyard.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Jobb'"):
        switchyard.Jobb  # noqa: B018


def test_the_page_lists_the_public_names() -> None:
    page = (ROOT / "docs/python.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert sorted(documented) == sorted(switchyard.__all__)


def test_pages_import_public_names_only() -> None:
    imported = []
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        imported += re.findall(r"^from switchyard import (.+)$", page.read_text(), re.MULTILINE)
    names = {name for line in imported for name in line.split(", ")}
    assert {"Client", "JobPublisher", "job"} <= names <= set(switchyard.__all__)


def test_a_users_module_declares_a_job_type() -> None:
    """tests/support/users_module.py imports public names alone; mypy checks its types."""
    assert [each.name for each in Registry.load(["tests.support.users_module"])] == ["count_up"]

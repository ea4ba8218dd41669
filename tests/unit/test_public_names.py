"""`switchyard`: the names that users import, what each costs, and that type checkers see them."""

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
HEAVY = ("fastapi", "sqlalchemy", "aio_pika", "aiormq", "pika", "httpx", "pydantic_settings")
CLIENTS = ("AsyncClient", "Client")
COSTS: dict[tuple[str, ...], set[str]] = {
    CLIENTS: {"httpx"},
    ("BlockingPublisher",): {"aio_pika", "aiormq", "pika", "pydantic_settings"},
    ("JobPublisher", "JobRequest", "LLMQueue"): {
        "aio_pika",
        "aiormq",
        "pydantic_settings",
        "sqlalchemy",
    },
}
"""What of the heavy libraries these names may load; the others none."""


@cache
def modules_after(code: str) -> set[str]:
    """What a fresh interpreter has loaded when it has run that."""
    report = "\nimport json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + report], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def test_the_import_itself_loads_nothing() -> None:
    added = modules_after("import switchyard") - modules_after("import importlib, typing")
    assert added == {"switchyard"}


@pytest.mark.parametrize("names", COSTS, ids=" ".join)
def test_a_name_costs_what_it_needs_and_no_more(names: tuple[str, ...]) -> None:
    loaded = modules_after(f"from switchyard import {', '.join(names)}")
    assert {each for each in HEAVY if each in loaded} <= COSTS[names]
    assert loaded & frozenset().union(*MODULES_OF_EXTRAS.values()) == set()


def test_all_other_names_together_cost_nothing() -> None:
    costly = {name for names in COSTS for name in names}
    others = [name for name in switchyard.__all__ if name not in costly]
    loaded = modules_after(f"from switchyard import {', '.join(others)}")
    assert {each for each in HEAVY if each in loaded} == set()


def test_outcomes_need_no_library_at_all() -> None:
    loaded = modules_after("from switchyard import Done, Job, Next, Outcome, Retry, Snooze")
    assert "pydantic" not in loaded
    assert "asyncio" not in loaded


def test_a_client_is_light() -> None:
    """httpx and pydantic, and what of ours describes the API: half of what a server needs."""
    client = modules_after(f"from switchyard import {', '.join(CLIENTS)}")
    libraries = modules_after("import asyncio, httpx, pydantic; pydantic.BaseModel")
    assert len(client - libraries) < 250, sorted(client - libraries)


def test_every_name_is_there_and_listed() -> None:
    assert all(getattr(switchyard, name) is not None for name in switchyard.__all__)
    assert set(switchyard.__all__) <= set(dir(switchyard))
    homes = [name for names in switchyard._HOMES.values() for name in names]
    assert sorted(homes) == sorted(switchyard.__all__)


def test_another_name_is_an_error_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Jobb'"):
        switchyard.Jobb  # noqa: B018


def test_the_page_names_what_is_public_and_nothing_else() -> None:
    page = (ROOT / "docs/python.md").read_text()
    named = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert sorted(named) == sorted(switchyard.__all__)


def test_pages_import_from_switchyard_only_what_is_public() -> None:
    imported = []
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        imported += re.findall(r"^from switchyard import (.+)$", page.read_text(), re.MULTILINE)
    names = {name for line in imported for name in line.split(", ")}
    assert {"Client", "JobPublisher", "job"} <= names <= set(switchyard.__all__)


def test_a_module_of_these_names_alone_declares_a_job_type() -> None:
    """tests/support/users_module.py, in which mypy checks the types as well."""
    assert [each.name for each in Registry.load(["tests.support.users_module"])] == ["count_up"]

"""Declaring job types: what fits together, and what is refused with a reason."""

import sys
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Outcome
from switchyard.services.engine.jobs.registry import (
    InvalidPayload,
    JobType,
    Registry,
    RegistryError,
    UnknownJobType,
    job,
)
from switchyard.services.engine.wings import job_modules


class Page(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def _known(cls, value: int) -> int:
        if value < 0:
            raise KeyError(value)  # not an error that pydantic would take for invalid input
        return value


async def translate(payload: Page, ctx: JobContext) -> Outcome:
    return Done()


def crunch(payload: Page, ctx: JobContext) -> Outcome:
    return Done()


async def untyped(payload, ctx) -> Outcome:
    return Done()


async def plain(payload: int, ctx: JobContext) -> Outcome:
    return Done()


async def lonely(payload: Page) -> Outcome:
    return Done()


def declared(handler: Any = translate, name: str = "translate", **options: Any) -> JobType:
    settings: dict[str, Any] = {"worker": "llm", "lanes": ("hot", "backfill"), **options}
    marked = job(name, **settings)(handler)
    found: JobType = marked.__job_type__
    return found


def module_of(name: str, **members: Any) -> ModuleType:
    """An importable module in which these functions were defined."""
    module = ModuleType(name)
    for member, value in members.items():
        value.__module__ = name
        setattr(module, member, value)
    return module


def test_a_declaration_says_all_that_the_system_needs() -> None:
    job_type = declared(timeout=60, max_attempts=5)
    assert (job_type.name, job_type.worker) == ("translate", "llm")
    assert (job_type.timeout, job_type.max_attempts) == (60, 5)
    assert job_type.payload_model is Page
    assert [route.routing_key for route in job_type.routes] == [
        "hot.translate",
        "backfill.translate",
    ]
    assert {route.queue for route in job_type.routes} == {"hot.llm", "backfill.llm"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "Translate"}, "lower-case"),
        ({"name": ""}, "lower-case"),
        ({"name": "a.b"}, "lower-case"),
        ({"name": "x" * 65}, "lower-case"),
        ({"worker": "LLM"}, "lower-case"),
        ({"lanes": ()}, "no lane"),
        ({"lanes": ("tepid",)}, "tepid"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"memory_limit_mb": 512}, "isolation='process'"),
        ({"cpu_limit": 30}, "isolation='process'"),
        ({"handler": crunch, "isolation": "process", "cpu_limit": 0}, "1 or more"),
        ({"isolation": "process"}, "plain `def`"),
        ({"handler": crunch}, "async def"),
        ({"handler": untyped}, "pydantic model"),
        ({"handler": plain}, "pydantic model"),
        ({"handler": lonely}, "(payload, ctx)"),
    ],
)
def test_what_does_not_fit_together_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(RegistryError) as refused:
        declared(**options)
    assert text in str(refused.value)


def test_a_cpu_bound_handler_is_a_plain_function_and_may_have_a_memory_limit() -> None:
    job_type = declared(crunch, isolation="process", memory_limit_mb=512)
    assert (job_type.isolation, job_type.memory_limit_mb) == ("process", 512)


def test_two_handlers_of_one_name_are_refused() -> None:
    registry = Registry([declared()])
    registry.add(declared())  # the same once more is no harm
    with pytest.raises(RegistryError, match="declared twice"):
        registry.add(declared(worker="embed"))


def test_an_unknown_type_is_answered_with_those_there_are() -> None:
    registry = Registry([declared(), declared(name="summarize")])
    with pytest.raises(UnknownJobType, match="summarize, translate"):
        registry.get("translat")
    with pytest.raises(UnknownJobType, match="none"):
        Registry().get("translate")
    assert "translate" in registry
    assert "translat" not in registry


@pytest.mark.parametrize(
    ("payload", "text"),
    [({}, "number"), ({"number": "three"}, "number"), ([], "translate"), ({"number": -1}, "Key")],
)
def test_a_payload_that_does_not_fit_is_refused_by_field_and_without_its_values(
    payload: Any, text: str
) -> None:
    with pytest.raises(InvalidPayload) as refused:
        declared().validate(payload)
    assert text in str(refused.value)
    assert "three" not in str(refused.value)


def test_a_payload_that_fits_becomes_its_model() -> None:
    assert declared().validate({"number": 3, "unknown": 1}) == Page(number=3)


def test_a_registry_collects_what_its_modules_declare_and_not_what_they_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = job("mine", worker="llm", lanes=["hot"])(lambda_of("mine"))
    other = job("other", worker="llm", lanes=["hot"])(lambda_of("other"))
    monkeypatch.setitem(sys.modules, "my_jobs", module_of("my_jobs", mine=mine))
    imported = module_of("their_jobs", other=other)
    imported.mine = mine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_jobs", imported)
    assert [each.name for each in Registry.load(["my_jobs"])] == ["mine"]
    assert [each.name for each in Registry.load(["their_jobs"])] == ["other"]
    assert [each.name for each in Registry.load(["my_jobs", "their_jobs"])] == ["mine", "other"]


def lambda_of(name: str) -> Any:
    async def handler(payload: Page, ctx: JobContext) -> Outcome:
        return Done({"name": name})

    return handler


def test_a_module_that_can_not_be_imported_is_named() -> None:
    with pytest.raises(RegistryError, match="no_such_module"):
        Registry.load(["no_such_module"])


def test_routes_and_lanes_follow_from_what_is_declared() -> None:
    registry = Registry(
        [
            declared(name="b", lanes=("backfill", "hot")),
            declared(name="a", lanes=("maintenance",)),
            declared(name="c", lanes=("hot",), worker="embed"),
        ]
    )
    assert [each.name for each in registry] == ["a", "b", "c"]
    assert registry.lanes_of("llm") == ("hot", "maintenance", "backfill")
    assert registry.lanes_of("embed") == ("hot",)
    assert registry.lanes_of("ocr") == ()
    assert {route.routing_key for route in registry.routes} == {
        "maintenance.a",
        "backfill.b",
        "hot.b",
        "hot.c",
    }


def test_the_built_in_job_types_load() -> None:
    registry = Registry.load(job_modules())
    assert "summarize_content" in registry
    assert registry.get("summarize_content").worker == "llm"


async def test_hints_of_other_parameters_need_not_be_resolvable() -> None:
    async def handler(payload: Page, ctx: JobContext) -> Outcome:
        return Done()

    handler.__annotations__ = {"payload": "Page", "ctx": "Nowhere", "return": "NowhereElse"}
    job("page", worker="ingest", lanes=("hot",))(handler)


async def test_a_payload_that_only_type_checkers_know_is_refused_with_advice() -> None:
    async def handler(payload: Page, ctx: JobContext) -> Outcome:
        return Done()

    handler.__annotations__ = {"payload": "Nowhere", "ctx": JobContext}
    with pytest.raises(RegistryError, match="import it outside of TYPE_CHECKING"):
        job("page", worker="ingest", lanes=("hot",))(handler)

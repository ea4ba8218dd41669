"""Declarations of job types, the registry that collects them, and the reasons of refusals."""

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
    def _refuse_negative(cls, value: int) -> int:
        if value < 0:
            raise KeyError(
                value
            )  # pydantic passes this error on, instead of calling the input invalid
        return value


async def translate(payload: Page, ctx: JobContext) -> Outcome:
    return Done()


def crunch(payload: Page, ctx: JobContext) -> Outcome:
    return Done()


async def untyped(payload, ctx) -> Outcome:
    return Done()


async def not_a_model(payload: int, ctx: JobContext) -> Outcome:
    return Done()


async def without_context(payload: Page) -> Outcome:
    return Done()


def declare(handler: Any = translate, name: str = "translate", **options: Any) -> JobType:
    settings: dict[str, Any] = {"worker": "llm", "lanes": ("hot", "backfill"), **options}
    handler_with_type = job(name, **settings)(handler)
    job_type: JobType = handler_with_type.__job_type__
    return job_type


def make_module(name: str, **members: Any) -> ModuleType:
    """Return a module that defines these functions, and can be imported."""
    module = ModuleType(name)
    for member, value in members.items():
        value.__module__ = name
        setattr(module, member, value)
    return module


def test_a_declaration_has_routes_queues_and_limits() -> None:
    job_type = declare(timeout=60, max_attempts=5)
    assert (job_type.name, job_type.worker) == ("translate", "llm")
    assert (job_type.timeout, job_type.max_attempts) == (60, 5)
    assert job_type.payload_model is Page
    assert [route.routing_key for route in job_type.routes] == [
        "hot.translate",
        "backfill.translate",
    ]
    assert {route.queue for route in job_type.routes} == {"hot.llm", "backfill.llm"}


@pytest.mark.parametrize(
    ("options", "message"),
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
        ({"handler": not_a_model}, "pydantic model"),
        ({"handler": without_context}, "(payload, ctx)"),
    ],
)
def test_an_invalid_declaration_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RegistryError) as refused:
        declare(**options)
    assert message in str(refused.value)


def test_a_cpu_bound_handler_is_a_plain_function_and_may_have_a_memory_limit() -> None:
    job_type = declare(crunch, isolation="process", memory_limit_mb=512)
    assert (job_type.isolation, job_type.memory_limit_mb) == ("process", 512)


def test_two_handlers_of_one_name_are_refused() -> None:
    registry = Registry([declare()])
    registry.add(declare())  # the same declaration again is allowed
    with pytest.raises(RegistryError, match="declared twice"):
        registry.add(declare(worker="embed"))


def test_the_error_for_an_unknown_type_names_the_known_ones() -> None:
    registry = Registry([declare(), declare(name="summarize")])
    with pytest.raises(UnknownJobType, match="summarize, translate"):
        registry.get("translat")
    with pytest.raises(UnknownJobType, match="none"):
        Registry().get("translate")
    assert "translate" in registry
    assert "translat" not in registry


@pytest.mark.parametrize(
    ("payload", "message"),
    [({}, "number"), ({"number": "three"}, "number"), ([], "translate"), ({"number": -1}, "Key")],
)
def test_an_invalid_payload_is_refused_by_field_without_its_values(
    payload: Any, message: str
) -> None:
    with pytest.raises(InvalidPayload) as refused:
        declare().validate(payload)
    assert message in str(refused.value)
    assert "three" not in str(refused.value)


def test_a_valid_payload_becomes_its_model() -> None:
    assert declare().validate({"number": 3, "unknown": 1}) == Page(number=3)


def test_a_registry_collects_job_types_that_its_modules_declare_not_imported_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = job("mine", worker="llm", lanes=["hot"])(make_handler("mine"))
    theirs = job("theirs", worker="llm", lanes=["hot"])(make_handler("theirs"))
    monkeypatch.setitem(sys.modules, "my_jobs", make_module("my_jobs", mine=mine))
    their_module = make_module("their_jobs", theirs=theirs)
    their_module.mine = mine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_jobs", their_module)
    assert [each.name for each in Registry.load(["my_jobs"])] == ["mine"]
    assert [each.name for each in Registry.load(["their_jobs"])] == ["theirs"]
    assert [each.name for each in Registry.load(["my_jobs", "their_jobs"])] == ["mine", "theirs"]


def make_handler(name: str) -> Any:
    async def handler(payload: Page, ctx: JobContext) -> Outcome:
        return Done({"name": name})

    return handler


def test_a_module_that_can_not_be_imported_is_named() -> None:
    with pytest.raises(RegistryError, match="no_such_module"):
        Registry.load(["no_such_module"])


def test_routes_and_lanes_are_derived_from_the_declarations() -> None:
    registry = Registry(
        [
            declare(name="b", lanes=("backfill", "hot")),
            declare(name="a", lanes=("maintenance",)),
            declare(name="c", lanes=("hot",), worker="embed"),
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


async def test_other_annotations_than_the_payloads_need_not_be_resolvable() -> None:
    async def handler(payload: Page, ctx: JobContext) -> Outcome:
        return Done()

    handler.__annotations__ = {"payload": "Page", "ctx": "Nowhere", "return": "NowhereElse"}
    job("page", worker="ingest", lanes=("hot",))(handler)


async def test_a_payload_model_imported_for_type_checkers_alone_is_refused() -> None:
    async def handler(payload: Page, ctx: JobContext) -> Outcome:
        return Done()

    handler.__annotations__ = {"payload": "Nowhere", "ctx": JobContext}
    with pytest.raises(RegistryError, match="import it outside of TYPE_CHECKING"):
        job("page", worker="ingest", lanes=("hot",))(handler)

"""Fields that only a program on the system's own hosts may set: paths, storage keys, addresses.

A field of a payload, or of a backfill source's options, is marked where it is declared:

    class Convert(BaseModel):
        path: Annotated[str, LocalOnly("send the file to POST /documents")]

A program with the ledger's and the broker's credentials (`jobctl`, or one on a host) may set it. A
request over HTTP may not, at any endpoint: `JobType.validate_remote` and `Sources.open` check it
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import AliasChoices, AliasPath, BaseModel, GetJsonSchemaHandler, RootModel
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from switchyard.services.engine.records.job_types import ANY_KEY

MARK = "x-local-only"
"""Keyword in a JSON Schema; its value says what a remote caller does instead of setting the
field."""
_MISSING = object()


class KeyMarkedPayload(BaseModel):
    """Base of payloads without declared fields: their local fields are known by key."""

    local_keys: ClassVar[Mapping[str, str]] = {}
    """What a remote caller does instead of setting a key, by key; ANY_KEY stands for all keys."""


@dataclass(frozen=True, slots=True)
class LocalOnly:
    """Marks a type or a field: `Annotated[str, LocalOnly()]`. A field that has a marked part
    anywhere within, in a list or another model, is local as a whole."""

    instead: str = "ask somebody with access to the host"
    """What a remote caller does instead: completes the sentence after a colon."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(core_schema), MARK: self.instead}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A field that a remote caller may not set."""

    field: str
    message: str


@lru_cache(maxsize=1024)
def local_fields(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the model's local fields by their Python names, and what a caller does instead.

    Raises what pydantic raises for a model that has no JSON Schema.
    """
    schema = model.model_json_schema(by_alias=False)
    definitions = schema.get("$defs", {})
    if "$ref" in schema:  # a model that contains itself
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    properties = {"root": schema} if issubclass(model, RootModel) else schema.get("properties", {})
    fields = {}
    for name in model.model_fields:
        # A field that is missing in the schema counts as local.
        field_schema = properties.get(name, {MARK: LocalOnly().instead})
        instead = next(_find_marks(field_schema, definitions, set()), None)
        if instead is not None:
            fields[name] = instead
    return fields


def refusals(
    payload: BaseModel, raw: Mapping[str, Any], vouched: Mapping[str, Any]
) -> tuple[Refusal, ...]:
    """Return the refusals of a payload from outside: one for each local field that it sets.

    `raw` is the input of `payload`. A field with the same value in `vouched` is allowed: this
    system has set it, or it was there before.
    """
    if isinstance(payload, KeyMarkedPayload):
        return tuple(
            each
            for each in refusals_in_part(type(payload), raw)
            if raw[each.field] != vouched.get(each.field, _MISSING)
        )
    return tuple(
        _refusal(name, instead)
        for name, instead in local_fields(type(payload)).items()
        if name in payload.model_fields_set
        and getattr(payload, name) is not None
        and not _is_vouched(keys_of(name, type(payload).model_fields[name]), raw, vouched)
    )


def refusals_in_part(model: type[BaseModel], part: Mapping[str, Any]) -> tuple[Refusal, ...]:
    """Return the refusals of a part of a payload, whatever the rest of it is."""
    if issubclass(model, KeyMarkedPayload):
        marks = model.local_keys
        return tuple(
            _refusal(key, marks.get(key, marks.get(ANY_KEY, "")))
            for key, value in part.items()
            if value is not None and (key in marks or ANY_KEY in marks)
        )
    return tuple(
        _refusal(name, instead)
        for name, instead in local_fields(model).items()
        if any(part.get(key) is not None for key in keys_of(name, model.model_fields[name]))
    )


def local_keys(model: type[BaseModel]) -> dict[str, str]:
    """Return the keys of a payload under which its local fields may come, and what a caller does
    instead. Raises what `local_fields` raises."""
    if issubclass(model, RootModel):
        return dict.fromkeys(local_fields(model) and (ANY_KEY,), LocalOnly().instead)
    return {
        key: instead
        for name, instead in local_fields(model).items()
        for key in keys_of(name, model.model_fields[name])
    }


def _refusal(name: str, instead: str) -> Refusal:
    return Refusal(name, f"{name} can't be set from outside of the system's hosts: {instead}")


def _is_vouched(keys: Iterable[str], raw: Mapping[str, Any], vouched: Mapping[str, Any]) -> bool:
    pairs = [(raw.get(key, _MISSING), vouched.get(key, _MISSING)) for key in keys]
    return all(value == other for value, other in pairs) and any(
        value is not _MISSING for value, _ in pairs
    )


def keys_of(name: str, field: FieldInfo) -> set[str]:
    """Return all names under which a field's value may be given."""
    return {name, *_first_steps(field.alias), *_first_steps(field.validation_alias)}


def _first_steps(alias: str | AliasPath | AliasChoices | None) -> Iterator[str]:
    if isinstance(alias, AliasChoices):
        for choice in alias.choices:
            yield from _first_steps(choice)
    elif isinstance(alias, AliasPath):
        yield str(alias.path[0])
    elif alias is not None:
        yield alias


def _find_marks(schema: Any, definitions: Mapping[str, Any], seen: set[str]) -> Iterator[str]:
    """Yield the marks within a schema, and within the schemas that it refers to."""
    if isinstance(schema, list):
        for each in schema:
            yield from _find_marks(each, definitions, seen)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == MARK and isinstance(value, str):
                yield value
            elif key == "$ref" and isinstance(value, str) and value not in seen:
                seen.add(value)
                yield from _find_marks(definitions.get(value.rpartition("/")[2]), definitions, seen)
            else:
                yield from _find_marks(value, definitions, seen)

"""Fields that only a program on the system's own hosts may set: paths, storage keys, addresses.

A field of a payload, or of a backfill source's options, is marked where it is declared:

    class Convert(BaseModel):
        path: Annotated[str, LocalOnly("send the file to POST /documents")]

Whoever has the ledger's and the broker's credentials (`jobctl`, a program of the host) may set it.
What comes over HTTP may not, whichever endpoint it takes: `JobType.validate_remote` and
`Sources.open` ask here.
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
    """Base of payloads whose fields are not declared here: what is local is known by key."""

    local_keys: ClassVar[Mapping[str, str]] = {}
    """What a remote caller does instead, by the payload's key; ANY_KEY stands for all keys."""


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
    """A field that a caller from elsewhere may not set."""

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
        # What is not in the schema can't be seen to be harmless.
        at = properties.get(name, {MARK: LocalOnly().instead})
        instead = next(_marks(at, definitions, set()), None)
        if instead is not None:
            fields[name] = instead
    return fields


def refusals(
    payload: BaseModel, raw: Mapping[str, Any], vouched: Mapping[str, Any]
) -> tuple[Refusal, ...]:
    """Return the local fields that are set, each with a text; none where all is well.

    `raw` is what `payload` was made of. A field passes that stands in `vouched` with the same
    value: what this system has put there itself, or what was there before.
    """
    if isinstance(payload, KeyMarkedPayload):
        return tuple(
            each
            for each in named(type(payload), raw)
            if raw[each.field] != vouched.get(each.field, _MISSING)
        )
    return tuple(
        _refusal(name, instead)
        for name, instead in local_fields(type(payload)).items()
        if name in payload.model_fields_set
        and getattr(payload, name) is not None
        and not _is_same(keys_of(name, type(payload).model_fields[name]), raw, vouched)
    )


def named(model: type[BaseModel], part: Mapping[str, Any]) -> tuple[Refusal, ...]:
    """Return the local fields that a part of a payload would set, whatever the rest of it is."""
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


def _is_same(keys: Iterable[str], raw: Mapping[str, Any], vouched: Mapping[str, Any]) -> bool:
    pairs = [(raw.get(key, _MISSING), vouched.get(key, _MISSING)) for key in keys]
    return all(value == other for value, other in pairs) and any(
        value is not _MISSING for value, _ in pairs
    )


def keys_of(name: str, field: FieldInfo) -> set[str]:
    """Return every name under which a field's value may come."""
    return {name, *_first_steps(field.alias), *_first_steps(field.validation_alias)}


def _first_steps(alias: str | AliasPath | AliasChoices | None) -> Iterator[str]:
    if isinstance(alias, AliasChoices):
        for choice in alias.choices:
            yield from _first_steps(choice)
    elif isinstance(alias, AliasPath):
        yield str(alias.path[0])
    elif alias is not None:
        yield alias


def _marks(schema: Any, definitions: Mapping[str, Any], seen: set[str]) -> Iterator[str]:
    """The marks within a schema, those of what it refers to included."""
    if isinstance(schema, list):
        for each in schema:
            yield from _marks(each, definitions, seen)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == MARK and isinstance(value, str):
                yield value
            elif key == "$ref" and isinstance(value, str) and value not in seen:
                seen.add(value)
                yield from _marks(definitions.get(value.rpartition("/")[2]), definitions, seen)
            else:
                yield from _marks(value, definitions, seen)

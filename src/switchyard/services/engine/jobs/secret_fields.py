"""Fields of payloads that nobody is shown: tokens, passwords, signed addresses.

    class Deliver(BaseModel):
        token: Annotated[str, Secret()]

The mark is JSON Schema's `writeOnly`, which pydantic's SecretStr has, too: whoever knows the schema
of a job type knows its secrets, with the type's module or without. Messages and handlers have the
values; whatever shows a payload to people asks here first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema, from_json

from switchyard.services.engine.jobs.local_fields import keys_of

MARK = "writeOnly"
HIDDEN = "[hidden]"
"""What is shown in the place of a secret."""
CHANGED = "[hidden, another value]"
"""What is shown where a payload is compared with another one whose secret there is not the same."""
_ABSENT = object()
_WAYS = ("anyOf", "oneOf", "allOf", "if", "then", "else")
"""Keywords whose schemas are about the same value."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Marks a type or a field whose values are never shown: `Annotated[str, Secret()]`. A list or
    model that is marked is hidden as a whole."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(core_schema), MARK: True}


@lru_cache(maxsize=1024)
def secret_schema(model: type[BaseModel]) -> Mapping[str, Any] | None:
    """Return a payload's JSON Schema where it marks anything as secret, with all names of its
    fields; None where it doesn't. Raises what pydantic raises for a model without a schema."""
    schema = model.model_json_schema()
    if not has_mark(schema):
        return None
    reference = schema.get("$ref", "")  # a model that contains itself
    own = schema["$defs"][reference.rpartition("/")[2]] if reference else schema
    properties = own.get("properties", {})
    for name, field in model.model_fields.items():
        keys = keys_of(name, field)
        for known in [properties[key] for key in keys if key in properties]:
            for key in keys:
                properties.setdefault(key, known)
    return schema


def hidden(payload: Any, schema: Mapping[str, Any] | None, before: Any = _ABSENT) -> Any:
    """Return a payload of that schema with HIDDEN for its secrets; with CHANGED for those that are
    not the same in `before`, where a payload before a change is given."""

    def hide(value: Any, was: Any) -> Any:
        return HIDDEN if before is _ABSENT or value == was else CHANGED

    return payload if schema is None else _replaced(payload, before, [schema], schema, hide)


def revealed(payload: Any, schema: Mapping[str, Any] | None, before: Any) -> Any:
    """Return a changed payload with the secrets of `before` where it says HIDDEN: somebody has
    edited what they were shown."""

    def reveal(value: Any, was: Any) -> Any:
        return was if value == HIDDEN and was is not _ABSENT else value

    return payload if schema is None else _replaced(payload, before, [schema], schema, reveal)


def has_hidden(payload: Any, schema: Mapping[str, Any] | None) -> bool:
    """Whether a payload says HIDDEN in the place of a secret, as one that was copied from a page
    does."""
    found = False

    def look(value: Any, was: Any) -> Any:
        nonlocal found
        found = found or value == HIDDEN
        return value

    if schema is not None:
        _replaced(payload, _ABSENT, [schema], schema, look)
    return found


def hidden_message(body: bytes, schema_of: Callable[[str], Mapping[str, Any] | None]) -> bytes:
    """Return the body of a job's message with its secrets hidden; as it is where there are none.
    `schema_of` gives what `secret_schema` does, for a job type's name."""
    try:
        message = from_json(body, allow_inf_nan=False)
    except ValueError:
        return body
    if not isinstance(message, dict) or not isinstance(message.get("job_type"), str):
        return body
    schema = schema_of(message["job_type"])
    if schema is None:
        return body
    shown = message | {"payload": hidden(message.get("payload"), schema)}
    return json.dumps(shown, ensure_ascii=True).encode()


def has_mark(schema: Any) -> bool:
    """Whether a JSON Schema marks anything as secret."""
    if isinstance(schema, Mapping):
        return schema.get(MARK) is True or any(has_mark(each) for each in schema.values())
    return isinstance(schema, list) and any(has_mark(each) for each in schema)


def _replaced(
    value: Any,
    was: Any,
    schemas: Iterable[Any],
    root: Mapping[str, Any],
    replace: Callable[[Any, Any], Any],
) -> Any:
    """Return a value of all these schemas with its secrets replaced. Where only some of several
    ways to read it have a secret there, it counts as one."""
    known = _about_same_value(schemas, root)
    if any(each.get(MARK) is True for each in known):
        return value if value is None else replace(value, was)
    if isinstance(value, Mapping):
        old = was if isinstance(was, Mapping) else {}
        return {
            name: _replaced(inner, old.get(name, _ABSENT), _of_member(name, known), root, replace)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        before = was if isinstance(was, list) else []
        return [
            _replaced(
                inner,
                before[place] if place < len(before) else _ABSENT,
                _of_item(place, known),
                root,
                replace,
            )
            for place, inner in enumerate(value)
        ]
    return value


def _about_same_value(schemas: Iterable[Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return these schemas, and all that they refer to or are made of; each once."""
    found: dict[int, Mapping[str, Any]] = {}
    left = list(schemas)
    while left:
        schema = left.pop()
        if isinstance(schema, list):
            left.extend(schema)
        elif isinstance(schema, Mapping) and id(schema) not in found:
            found[id(schema)] = schema
            left.extend(schema[way] for way in _WAYS if way in schema)
            reference = schema.get("$ref")
            if reference == "#":
                left.append(root)
            elif isinstance(reference, str):
                left.append(root.get("$defs", {}).get(reference.rpartition("/")[2]))
    return list(found.values())


def _of_member(name: str, schemas: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    for schema in schemas:
        properties = schema.get("properties", {})
        if name in properties:
            yield properties[name]
            continue
        # Without a look at the patterns: rather hidden once too often.
        yield from schema.get("patternProperties", {}).values()
        yield schema.get("additionalProperties")


def _of_item(place: int, schemas: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    for schema in schemas:
        first = schema.get("prefixItems", [])
        yield first[place] if place < len(first) else schema.get("items")

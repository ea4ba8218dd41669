"""Hide secret fields of payloads: tokens, passwords, signed addresses.

    class Deliver(BaseModel):
        token: Annotated[str, Secret()]

The mark is JSON Schema's `writeOnly`, which pydantic's SecretStr has, too: so the secrets of a job
type are known from its schema, even without the type's module. Messages and handlers have the
values; all code that shows payloads to people hides them here first.

In doubt, values are hidden: a member that the schema does not know, in an object with secrets (a
misspelt name, or one of an older version), and a value of another shape than the schema has for a
position with secrets.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema, from_json

from switchyard.services.common.json_values import dict_in

MARK = "writeOnly"
OTHER_NAMES = "x-other-names"
"""Keyword in the JSON Schema of an object: schemas by the other names under which its fields may
come, which `properties` lacks."""
HIDDEN = "[hidden]"
"""Text shown in place of a secret."""
CHANGED = "[hidden, another value]"
"""Text shown in place of a secret that differs from the one in the payload before."""
MIN_SCRUBBED = 4
"""Characters of the shortest secret that is searched for in other texts: shorter ones occur in
every text."""
MAX_SCRUBBED = 1_000
"""Secrets of one payload that are searched for in other texts, at most."""
_CUT_LENGTH = 20
"""Characters at the start and end of a long secret that are searched for, too, as texts may shorten
it."""
_ABSENT = object()
_SAME_VALUE_KEYWORDS = ("anyOf", "oneOf", "allOf", "if", "then", "else", "not", OTHER_NAMES)
"""Keywords whose schemas are about the same value."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Marks a type or a field whose values are never shown: `Annotated[str, Secret()]`. A list or
    model that is marked is hidden as a whole."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(core_schema), MARK: True}


@dataclass(frozen=True, slots=True, eq=False)
class SecretSchema:
    """The JSON Schema of a payload that has secrets."""

    root: Mapping[str, Any]
    with_secrets: frozenset[int]
    """Ids (`id`) of its parts that mark a secret, or contain or refer to one that does."""

    @classmethod
    def from_schema(cls, root: Mapping[str, Any]) -> SecretSchema:
        """Find the secrets in a JSON Schema, which must not be changed afterwards."""
        return cls(root, frozenset(_schemas_with_marks(root)))


class _AllNamesGenerator(GenerateJsonSchema):
    """Generates schemas with all names of each field, at any depth."""

    def model_fields_schema(self, schema: core_schema.ModelFieldsSchema) -> JsonSchemaValue:
        return self._add_names(super().model_fields_schema(schema), schema["fields"])

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return self._add_names(super().typed_dict_schema(schema), schema["fields"])

    def dataclass_args_schema(self, schema: core_schema.DataclassArgsSchema) -> JsonSchemaValue:
        fields = {field["name"]: field for field in schema["fields"]}
        return self._add_names(super().dataclass_args_schema(schema), fields)

    def _add_names(self, schema: JsonSchemaValue, fields: Mapping[str, Any]) -> JsonSchemaValue:
        properties = schema.get("properties", {})
        others = []
        for name, field in fields.items():
            paths = _field_paths(name, field)
            known = next((path[0] for path in paths if path[0] in properties), None)
            if known is not None:
                others += [
                    _wrap_in_path(path, properties[known]) for path in paths if path != [known]
                ]
        return {**schema, OTHER_NAMES: others} if others else schema


def _field_paths(name: str, field: Mapping[str, Any]) -> list[list[str | int]]:
    """Return the paths under which a field's value may be given, as steps into the object; single
    names first."""
    paths: list[list[str | int]] = [[name]]
    for alias in (field.get("validation_alias"), field.get("serialization_alias")):
        if isinstance(alias, str):
            paths.append([alias])
        elif alias:
            paths.extend(alias if isinstance(alias[0], list) else [alias])
    return sorted(paths, key=len)


def _wrap_in_path(path: Sequence[str | int], schema: Any) -> Any:
    """Return a schema that has the given one at a path."""
    wrapped = deepcopy(schema)
    for step in reversed(path):
        if isinstance(step, str):
            wrapped = {"type": "object", "properties": {step: wrapped}}
        else:
            wrapped = {"type": "array", "items": wrapped}
    return wrapped


@lru_cache(maxsize=1024)
def secret_schema(model: type[BaseModel]) -> SecretSchema | None:
    """Return a payload's JSON Schema where it marks anything as secret, with all names of its
    fields; None where it doesn't. Raises what pydantic raises for a model without a schema."""
    schema = model.model_json_schema(schema_generator=_AllNamesGenerator)
    return SecretSchema.from_schema(schema) if has_mark(schema) else None


def hide_secrets(payload: Any, secrets: SecretSchema | None, before: Any = _ABSENT) -> Any:
    """Return a payload with HIDDEN in place of its secrets; if `before` is given, with CHANGED for
    secrets that differ there."""

    def hide(value: Any, was: Any) -> Any:
        return HIDDEN if before is _ABSENT or value == was else CHANGED

    return _replace_secrets(payload, before, secrets, hide)


def hide_secrets_in_part(part: Any, secrets: SecretSchema) -> Any:
    """Hide the secrets of a value that may be a part of a payload of that schema: only marked
    values."""
    return _replace_secrets(part, _ABSENT, secrets, lambda value, was: HIDDEN, is_strict=False)


def reveal_secrets(payload: Any, secrets: SecretSchema | None, before: Any) -> Any:
    """Return an edited payload with the secrets of `before` in place of HIDDEN. HIDDEN stays where
    the secret is ambiguous, as in a list that has lost one of two items that look the same."""

    def reveal(value: Any, was: Any) -> Any:
        return was if value == HIDDEN and was is not _ABSENT else value

    return _replace_secrets(payload, before, secrets, reveal)


def has_hidden_secrets(payload: Any, secrets: SecretSchema | None) -> bool:
    """Tell whether a payload has HIDDEN in place of a secret, as if it was copied from a page."""
    is_found = False

    def compare(value: Any, was: Any) -> Any:
        nonlocal is_found
        is_found = is_found or value == HIDDEN
        return value

    _replace_secrets(payload, _ABSENT, secrets, compare)
    return is_found


def hide_secrets_in_message(body: bytes, schema_of: Callable[[str], SecretSchema | None]) -> bytes:
    """Return the body of a job's message with its secrets hidden; unchanged where there are none.
    `schema_of` returns the `secret_schema` of a job type by its name."""
    try:
        message = from_json(body, allow_inf_nan=False)
    except ValueError:
        return body
    if not isinstance(message, dict) or not isinstance(message.get("job_type"), str):
        return body
    secrets = schema_of(message["job_type"])
    if secrets is None:
        return body
    shown = message | {"payload": hide_secrets(message.get("payload"), secrets)}
    return json.dumps(shown, ensure_ascii=True).encode()


@dataclass(frozen=True, slots=True)
class Scrubber:
    """Removes the secrets of one payload from other texts, such as error messages."""

    pattern: re.Pattern[str] | None
    """The secrets, as they are and as texts quote them; None where there are none."""
    hides_all: bool = False
    """Whether all text is hidden, as there are too many secrets to search for."""

    @classmethod
    def from_payload(cls, payload: Any, secrets: SecretSchema | None) -> Scrubber:
        """Make a scrubber of the secrets of a payload."""
        if secrets is None:
            return cls(None)
        values = secret_texts(payload, secrets)
        if len(values) > MAX_SCRUBBED:
            return cls(None, hides_all=True)
        forms = {form for value in values for form in _forms(value)}
        if not forms:
            return cls(None)
        longest_first = sorted(forms, key=len, reverse=True)
        return cls(re.compile("|".join(map(re.escape, longest_first))))

    def scrub(self, text: str) -> str:
        """Return the text without the secrets."""
        if self.hides_all and text:
            return HIDDEN
        return text if self.pattern is None else self.pattern.sub(HIDDEN, text)


def secret_texts(payload: Any, secrets: SecretSchema) -> set[str]:
    """Return the secrets of a payload as texts, without those that are too short to be searched
    for, or hidden already."""
    texts: set[str] = set()

    def collect(value: Any, was: Any) -> Any:
        texts.update(_texts(value))
        return value

    _replace_secrets(payload, _ABSENT, secrets, collect)
    texts.discard(HIDDEN)
    return {text for text in texts if len(text) >= MIN_SCRUBBED}


def exposes_secrets(
    before: Any, before_secrets: SecretSchema | None, after: Any, after_secrets: SecretSchema | None
) -> bool:
    """Tell whether a changed payload would show a secret that the payload before hides."""
    if before_secrets is None:
        return False
    values = secret_texts(before, before_secrets)
    if not values:
        return False
    was_shown = "\n".join(_texts(hide_secrets(before, before_secrets)))
    is_shown = "\n".join(_texts(hide_secrets(after, after_secrets)))
    return any(value in is_shown and value not in was_shown for value in values)


def has_mark(schema: Any) -> bool:
    """Tell whether a JSON Schema marks anything as secret."""
    if isinstance(schema, Mapping):
        return schema.get(MARK) is True or any(has_mark(each) for each in schema.values())
    return isinstance(schema, list) and any(has_mark(each) for each in schema)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _forms(value: str) -> Iterator[str]:
    """Yield a secret as it is, and as it is written in messages, addresses and JSON."""
    yield from (value, repr(value)[1:-1], quote(value, safe=""), quote_plus(value))
    yield json.dumps(value)[1:-1]
    if len(value) > 2 * _CUT_LENGTH:
        yield from (value[:_CUT_LENGTH], value[-_CUT_LENGTH:])


def _schemas_with_marks(root: Mapping[str, Any]) -> set[int]:
    """Return the ids of all parts of a schema that have a mark, or that contain or refer to a part
    that has one."""
    parents: dict[int, list[int]] = defaultdict(list)
    pending: list[Any] = [root]
    seen: set[int] = set()
    marked: list[int] = []
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        inner = list(node.values() if isinstance(node, Mapping) else node)
        if isinstance(node, Mapping):
            if node.get(MARK) is True:
                marked.append(id(node))
            if isinstance(node.get("$ref"), str):
                inner.append(_resolve(root, node["$ref"]))
        for each in inner:
            if isinstance(each, Mapping | list):
                parents[id(each)].append(id(node))
                pending.append(each)
    found: set[int] = set()
    while marked:
        node_id = marked.pop()
        if node_id not in found:
            found.add(node_id)
            marked.extend(parents[node_id])
    return found | {id(_UNKNOWN)}


_ANYTHING: dict[str, Any] = {}
_UNKNOWN: dict[str, Any] = {MARK: True}
"""Schema in place of a reference that can't be resolved: its value counts as secret."""


def _resolve(root: Any, reference: str) -> Any:
    """Return what a reference within a schema refers to."""
    if not reference.startswith("#"):
        return _UNKNOWN
    node = root
    for step in reference[1:].split("/")[1:] if reference != "#" else ():
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and name in node:
            node = node[name]
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        else:
            return _UNKNOWN
    return _UNKNOWN if node is root and reference != "#" else node


def _replace_secrets(
    payload: Any,
    before: Any,
    secrets: SecretSchema | None,
    replace: Callable[[Any, Any], Any],
    *,
    is_strict: bool = True,
) -> Any:
    """Return a payload with its secrets replaced. `replace` is called with each secret, and the
    value at its position in `before`, or _ABSENT."""
    if secrets is None:
        return payload
    if isinstance(payload, Mapping):
        payload = dict(payload)
    return _SecretReplacer(replace, is_strict).replace_in(
        payload, before, _PayloadPosition(secrets, [secrets.root])
    )


class _PayloadPosition:
    """A position in payloads, with the schemas of the value there."""

    def __init__(self, secrets: SecretSchema, schemas: Iterable[Any]) -> None:
        """`schemas` are those of the position; the schemas that they refer to or combine are
        added."""
        self._secrets = secrets
        self._schemas = list(_schemas_of_same_value(schemas, secrets.root))
        self.has_secrets = any(map(self._has_secrets, self._schemas))
        self.is_secret = any(each.get(MARK) is True for each in self._schemas)
        self._members: dict[str, _PayloadPosition | None] = {}
        self._items: dict[int, _PayloadPosition] = {}
        prefixes = (each.get("prefixItems") for each in self._schemas)
        self._prefix_length = max(
            (len(each) for each in prefixes if isinstance(each, list)), default=0
        )
        """Items of a list that have schemas of their own."""

    def member(self, name: str) -> _PayloadPosition | None:
        """Return the position of a member; None where no schema knows it."""
        if name not in self._members:
            schemas = list(_member_schemas(name, self._schemas))
            self._members[name] = _PayloadPosition(self._secrets, schemas) if schemas else None
        return self._members[name]

    def item(self, number: int) -> _PayloadPosition:
        """Return the position of an item of a list."""
        number = min(number, self._prefix_length)
        if number not in self._items:
            schemas = _item_schemas(number, self._schemas)
            self._items[number] = _PayloadPosition(self._secrets, schemas)
        return self._items[number]

    def has_inseparable_secrets(self, value: Any) -> bool:
        """Tell whether a value has secrets that can't be replaced one by one: in the names of its
        members, or in a JSON text."""
        keyword = "propertyNames" if isinstance(value, dict) else "contentSchema"
        return isinstance(value, dict | str) and any(
            self._has_secrets(each.get(keyword)) for each in self._schemas
        )

    def accepts(self, value: Any) -> bool:
        """Tell whether a value has a shape that the schemas allow here."""
        return any(_accepts(value, each) for each in self._schemas)

    def _has_secrets(self, schema: Any) -> bool:
        return id(schema) in self._secrets.with_secrets


@dataclass(frozen=True, slots=True)
class _SecretReplacer:
    """Replaces the secrets of a payload."""

    replace: Callable[[Any, Any], Any]
    is_strict: bool
    """Whether doubtful values are replaced, too."""

    def replace_in(self, value: Any, was: Any, position: _PayloadPosition | None) -> Any:
        """Return a value with its secrets replaced. A value that is secret by only some of its
        schemas counts as secret."""
        if value is None or (position is None and not self.is_strict):
            return value
        if position is None:
            return self.replace(value, was)
        if not position.has_secrets:
            return value
        if position.is_secret or position.has_inseparable_secrets(value):
            return self.replace(value, was)
        if self.is_strict and not position.accepts(value):
            return self.replace(value, was)
        if isinstance(value, dict):
            old = was if isinstance(was, dict) else {}
            return {
                name: self.replace_in(inner, old.get(name, _ABSENT), position.member(name))
                for name, inner in value.items()
            }
        if isinstance(value, list):
            return [
                self.replace_in(inner, old, position.item(number))
                for number, (inner, old) in enumerate(
                    zip(value, self._counterparts(value, was, position), strict=True)
                )
            ]
        return value

    def _counterparts(
        self, items: Sequence[Any], was: Any, position: _PayloadPosition
    ) -> Sequence[Any]:
        """Return, for each item of a list, the item of the list before that has its secrets: the
        one that looks the same with secrets hidden, or else, in a list of the same length, the one
        at the same place. _ABSENT where there is none, or it is ambiguous."""
        if not isinstance(was, list):
            return [_ABSENT] * len(items)
        hider = _SecretReplacer(lambda value, was: HIDDEN, self.is_strict)
        looks, looks_before = (
            [
                json.dumps(hider.replace_in(each, _ABSENT, position.item(number)), sort_keys=True)
                for number, each in enumerate(each_list)
            ]
            for each_list in (items, was)
        )
        if looks == looks_before:
            return was
        by_look = defaultdict(list)
        for number, look in enumerate(looks_before):
            by_look[look].append(was[number])
        # Items that look the same are ambiguous, unless they are equal.
        unambiguous = {
            look: each[0] for look, each in by_look.items() if all(part == each[0] for part in each)
        }
        is_as_long = len(items) == len(was)
        remaining = set(looks)
        counterparts = []
        for number, look in enumerate(looks):
            is_edited = look not in by_look and is_as_long and looks_before[number] not in remaining
            if is_edited or (is_as_long and look == looks_before[number]):
                counterparts.append(was[number])
            else:
                counterparts.append(unambiguous.get(look, _ABSENT))
        return counterparts


def _schemas_of_same_value(
    schemas: Iterable[Any], root: Mapping[str, Any]
) -> Iterable[dict[str, Any]]:
    """Return these schemas, and all that they refer to or combine, each once."""
    by_value: dict[int, dict[str, Any]] = {}
    pending = list(schemas)
    while pending:
        schema = pending.pop()
        if isinstance(schema, list):
            pending.extend(schema)
        elif isinstance(schema, dict) and id(schema) not in by_value:
            by_value[id(schema)] = schema
            pending.extend(schema[key] for key in _SAME_VALUE_KEYWORDS if key in schema)
            pending.extend(dict_in(schema.get("dependentSchemas")).values())
            if isinstance(reference := schema.get("$ref"), str):
                pending.append(_resolve(root, reference))
    return by_value.values()


def _accepts(value: Any, schema: Mapping[str, Any]) -> bool:
    """Tell whether a schema, without those that it refers to, allows values of that shape."""
    allowed = schema.get("type")
    if allowed is None:
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(choices, list):
            return value in choices
        # An empty schema is for any value; one that refers to others, for their values.
        return "$ref" not in schema and not any(key in schema for key in _SAME_VALUE_KEYWORDS)
    shapes = allowed if isinstance(allowed, list) else [allowed]
    return any(_is_shaped(value, shape) for shape in shapes)


def _is_shaped(value: Any, shape: Any) -> bool:
    """Tell whether a value is of one of JSON Schema's types."""
    match shape:
        case "object":
            return isinstance(value, Mapping)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer" | "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
    return False


def _member_schemas(name: str, schemas: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    """Return the schemas of a member; none where no schema knows it."""
    for schema in schemas:
        properties = dict_in(schema.get("properties"))
        if name in properties:
            yield properties[name]
            continue
        # The patterns are not matched: in doubt, values are hidden.
        yield from dict_in(schema.get("patternProperties")).values()
        for keyword in ("additionalProperties", "unevaluatedProperties"):
            others = schema.get(keyword, False)
            if others is not False:
                yield _ANYTHING if others is True else others


def _item_schemas(position: int, schemas: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    for schema in schemas:
        first = schema.get("prefixItems")
        if isinstance(first, list) and position < len(first):
            yield first[position]
        else:
            yield schema.get("items")
            yield schema.get("unevaluatedItems")
        yield schema.get("contains")

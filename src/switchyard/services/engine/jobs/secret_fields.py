"""Fields of payloads that nobody is shown: tokens, passwords, signed addresses.

    class Deliver(BaseModel):
        token: Annotated[str, Secret()]

The mark is JSON Schema's `writeOnly`, which pydantic's SecretStr has, too: whoever knows the schema
of a job type knows its secrets, with the type's module or without. Messages and handlers have the
values; whatever shows a payload to people asks here first.

What can't be told is hidden: a member that the schema does not know, in an object that has secrets
(a misspelt name, or that of an older version), and a value of another shape than a place with
secrets has.
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
"""Text shown in place of a secret that differs from the one in the payload that is compared."""
MIN_SCRUBBED = 4
"""Characters of the shortest secret that is looked for in other texts: shorter ones are in every
text."""
MAX_SCRUBBED = 1_000
"""Secrets of one payload that are looked for in other texts."""
_CUT = 20
"""Characters at its start and end by which a long secret is known that a text has shortened."""
_ABSENT = object()
_WAYS = ("anyOf", "oneOf", "allOf", "if", "then", "else", "not", OTHER_NAMES)
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
    reaching: frozenset[int]
    """Ids of the schemas within that have a secret at their value or beneath it."""

    @classmethod
    def from_schema(cls, root: Mapping[str, Any]) -> SecretSchema:
        """Find where a JSON Schema has secrets. It must not be changed afterwards."""
        return cls(root, frozenset(_schemas_with_marks(root)))


class _AllNames(GenerateJsonSchema):
    """Makes schemas with all names that a field may come under, at whatever depth."""

    def model_fields_schema(self, schema: core_schema.ModelFieldsSchema) -> JsonSchemaValue:
        return self._named(super().model_fields_schema(schema), schema["fields"])

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return self._named(super().typed_dict_schema(schema), schema["fields"])

    def dataclass_args_schema(self, schema: core_schema.DataclassArgsSchema) -> JsonSchemaValue:
        fields = {field["name"]: field for field in schema["fields"]}
        return self._named(super().dataclass_args_schema(schema), fields)

    def _named(self, named: JsonSchemaValue, fields: Mapping[str, Any]) -> JsonSchemaValue:
        properties = named.get("properties", {})
        others = []
        for name, field in fields.items():
            paths = _paths(name, field)
            known = next((path[0] for path in paths if path[0] in properties), None)
            if known is not None:
                others += [_at(path, properties[known]) for path in paths if path != [known]]
        return {**named, OTHER_NAMES: others} if others else named


def _paths(name: str, field: Mapping[str, Any]) -> list[list[str | int]]:
    """Return where a field's value may come, as steps into the object; single names first."""
    paths: list[list[str | int]] = [[name]]
    for alias in (field.get("validation_alias"), field.get("serialization_alias")):
        if isinstance(alias, str):
            paths.append([alias])
        elif alias:
            paths.extend(alias if isinstance(alias[0], list) else [alias])
    return sorted(paths, key=len)


def _at(path: Sequence[str | int], schema: Any) -> Any:
    """Return a schema that has the given one at a path."""
    found_schema = deepcopy(schema)
    for step in reversed(path):
        if isinstance(step, str):
            found_schema = {"type": "object", "properties": {step: found_schema}}
        else:
            found_schema = {"type": "array", "items": found_schema}
    return found_schema


@lru_cache(maxsize=1024)
def secret_schema(model: type[BaseModel]) -> SecretSchema | None:
    """Return a payload's JSON Schema where it marks anything as secret, with all names of its
    fields; None where it doesn't. Raises what pydantic raises for a model without a schema."""
    schema = model.model_json_schema(schema_generator=_AllNames)
    return SecretSchema.from_schema(schema) if has_mark(schema) else None


def hidden(payload: Any, secrets: SecretSchema | None, before: Any = _ABSENT) -> Any:
    """Return a payload of that schema with HIDDEN for its secrets; with CHANGED for those that are
    not the same in `before`, where a payload before a change is given."""

    def hide(value: Any, was: Any) -> Any:
        return HIDDEN if before is _ABSENT or value == was else CHANGED

    return _replace_secrets(payload, before, secrets, hide)


def hidden_part(part: Any, secrets: SecretSchema) -> Any:
    """`hidden` for what may be of a payload of that type, or not: only what is marked is hidden."""
    return _replace_secrets(part, _ABSENT, secrets, lambda value, was: HIDDEN, is_strict=False)


def revealed(payload: Any, secrets: SecretSchema | None, before: Any) -> Any:
    """Return a changed payload with the secrets of `before` where it says HIDDEN: somebody has
    edited what they were shown. HIDDEN stays where it can't be told which one was meant, such as
    in a list that has lost one of two items that look the same."""

    def reveal(value: Any, was: Any) -> Any:
        return was if value == HIDDEN and was is not _ABSENT else value

    return _replace_secrets(payload, before, secrets, reveal)


def has_hidden(payload: Any, secrets: SecretSchema | None) -> bool:
    """Whether a payload says HIDDEN in the place of a secret, as one that was copied from a page
    does."""
    is_hidden = False

    def look(value: Any, was: Any) -> Any:
        nonlocal is_hidden
        is_hidden = is_hidden or value == HIDDEN
        return value

    _replace_secrets(payload, _ABSENT, secrets, look)
    return is_hidden


def hidden_message(body: bytes, schema_of: Callable[[str], SecretSchema | None]) -> bytes:
    """Return the body of a job's message with its secrets hidden; as it is where there are none.
    `schema_of` gives what `secret_schema` does, for a job type's name."""
    try:
        message = from_json(body, allow_inf_nan=False)
    except ValueError:
        return body
    if not isinstance(message, dict) or not isinstance(message.get("job_type"), str):
        return body
    secrets = schema_of(message["job_type"])
    if secrets is None:
        return body
    shown = message | {"payload": hidden(message.get("payload"), secrets)}
    return json.dumps(shown, ensure_ascii=True).encode()


@dataclass(frozen=True, slots=True)
class Scrubber:
    """Takes the secrets of one payload out of other texts, such as those of errors."""

    pattern: re.Pattern[str] | None
    """The secrets, as they are and as texts quote them; None where there are none."""
    hides_all: bool = False
    """There are too many secrets to look for."""

    @classmethod
    def from_payload(cls, payload: Any, secrets: SecretSchema | None) -> Scrubber:
        """Scrub the secrets of a payload of that schema."""
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

    def scrubbed(self, text: str) -> str:
        """Return the text without the secrets."""
        if self.hides_all and text:
            return HIDDEN
        return text if self.pattern is None else self.pattern.sub(HIDDEN, text)


def secret_texts(payload: Any, secrets: SecretSchema) -> set[str]:
    """Return the secrets of a payload as texts; without those that are too short to be looked for,
    or were hidden already."""
    texts: set[str] = set()

    def collect(value: Any, was: Any) -> Any:
        texts.update(_texts(value))
        return value

    _replace_secrets(payload, _ABSENT, secrets, collect)
    texts.discard(HIDDEN)
    return {text for text in texts if len(text) >= MIN_SCRUBBED}


def moved_secrets(
    before: Any, before_secrets: SecretSchema | None, after: Any, after_secrets: SecretSchema | None
) -> bool:
    """Whether a secret of a payload is shown in what became of it, and was not before."""
    if before_secrets is None:
        return False
    values = secret_texts(before, before_secrets)
    if not values:
        return False
    was_shown = "\n".join(_texts(hidden(before, before_secrets)))
    is_shown = "\n".join(_texts(hidden(after, after_secrets)))
    return any(value in is_shown and value not in was_shown for value in values)


def has_mark(schema: Any) -> bool:
    """Whether a JSON Schema marks anything as secret."""
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
    """Return a secret as it is, and as messages, addresses and JSON write it."""
    yield from (value, repr(value)[1:-1], quote(value, safe=""), quote_plus(value))
    yield json.dumps(value)[1:-1]
    if len(value) > 2 * _CUT:
        yield from (value[:_CUT], value[-_CUT:])


def _schemas_with_marks(root: Mapping[str, Any]) -> set[int]:
    """Return the ids of all schemas within that have a mark, or refer to or contain one that has;
    and of the objects and lists in between."""
    users: dict[int, list[int]] = defaultdict(list)
    left: list[Any] = [root]
    seen: set[int] = set()
    marked: list[int] = []
    while left:
        node = left.pop()
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
                users[id(each)].append(id(node))
                left.append(each)
    reaching: set[int] = set()
    while marked:
        node_id = marked.pop()
        if node_id not in reaching:
            reaching.add(node_id)
            marked.extend(users[node_id])
    return reaching | {id(_UNKNOWN)}


_ANYTHING: dict[str, Any] = {}
_UNKNOWN: dict[str, Any] = {MARK: True}
"""Schema that stands for a reference that can't be resolved: a secret."""


def _resolve(root: Any, reference: str) -> Any:
    """Return what a reference within a schema refers to."""
    if not reference.startswith("#"):
        return _UNKNOWN
    at = root
    for step in reference[1:].split("/")[1:] if reference != "#" else ():
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(at, Mapping) and name in at:
            at = at[name]
        elif isinstance(at, list) and name.isdecimal() and int(name) < len(at):
            at = at[int(name)]
        else:
            return _UNKNOWN
    return _UNKNOWN if at is root and reference != "#" else at


def _replace_secrets(
    payload: Any,
    before: Any,
    secrets: SecretSchema | None,
    replace: Callable[[Any, Any], Any],
    *,
    is_strict: bool = True,
) -> Any:
    """Return a payload with its secrets replaced. `replace` gets each, and what stood there in
    `before`, or _ABSENT."""
    if secrets is None:
        return payload
    if isinstance(payload, Mapping):
        payload = dict(payload)
    return _Replacement(replace, is_strict).made(payload, before, _Place(secrets, [secrets.root]))


class _Place:
    """A place in payloads: what a schema says of the value there, found out once."""

    def __init__(self, secrets: SecretSchema, schemas: Iterable[Any]) -> None:
        """`schemas` are those that name the place; what they refer to or are made of is added."""
        self._secrets = secrets
        self.known = list(_about_same_value(schemas, secrets.root))
        self.has_secrets = any(map(self._reaches, self.known))
        self.is_secret = any(each.get(MARK) is True for each in self.known)
        self._members: dict[str, _Place | None] = {}
        self._items: dict[int, _Place] = {}
        firsts = (each.get("prefixItems") for each in self.known)
        self._named_items = max((len(each) for each in firsts if isinstance(each, list)), default=0)

    def member(self, name: str) -> _Place | None:
        """Return the place of a member; None where no schema knows it."""
        if name not in self._members:
            schemas = list(_of_member(name, self.known))
            self._members[name] = _Place(self._secrets, schemas) if schemas else None
        return self._members[name]

    def item(self, number: int) -> _Place:
        """Return the place of an item of a list."""
        number = min(number, self._named_items)
        if number not in self._items:
            self._items[number] = _Place(self._secrets, _of_item(number, self.known))
        return self._items[number]

    def hides_whole(self, value: Any) -> bool:
        """Whether a value has secrets that can't be replaced one by one: the names of its members,
        or what is in a JSON text."""
        keyword = "propertyNames" if isinstance(value, dict) else "contentSchema"
        return isinstance(value, dict | str) and any(
            self._reaches(each.get(keyword)) for each in self.known
        )

    def may_have(self, value: Any) -> bool:
        """Whether a value has a shape that belongs here."""
        return any(_may_be(value, each) for each in self.known)

    def _reaches(self, schema: Any) -> bool:
        return id(schema) in self._secrets.reaching


@dataclass(frozen=True, slots=True)
class _Replacement:
    """Replacement for the secrets of a payload."""

    replace: Callable[[Any, Any], Any]
    is_strict: bool
    """Whether values are replaced, too, of which it is unknown whether they are secret."""

    def made(self, value: Any, was: Any, place: _Place | None) -> Any:
        """Return a value with its secrets replaced. Where only some of several ways to read it have
        a secret there, it counts as one."""
        if value is None or (place is None and not self.is_strict):
            return value
        if place is None:
            return self.replace(value, was)
        if not place.has_secrets:
            return value
        if place.is_secret or place.hides_whole(value):
            return self.replace(value, was)
        if self.is_strict and not place.may_have(value):
            return self.replace(value, was)
        if isinstance(value, dict):
            old = was if isinstance(was, dict) else {}
            return {
                name: self.made(inner, old.get(name, _ABSENT), place.member(name))
                for name, inner in value.items()
            }
        if isinstance(value, list):
            return [
                self.made(inner, old, place.item(number))
                for number, (inner, old) in enumerate(
                    zip(value, self._counterparts(value, was, place), strict=True)
                )
            ]
        return value

    def _counterparts(self, items: Sequence[Any], was: Any, place: _Place) -> Sequence[Any]:
        """Return for each item of a list the one of the list before whose secrets are its own: that
        looks the same; or else, in lists of one length, the one at the same place."""
        if not isinstance(was, list):
            return [_ABSENT] * len(items)
        hiding = _Replacement(lambda value, was: HIDDEN, self.is_strict)
        now, then = (
            [
                json.dumps(hiding.made(each, _ABSENT, place.item(number)), sort_keys=True)
                for number, each in enumerate(each_list)
            ]
            for each_list in (items, was)
        )
        if now == then:
            return was
        alike = defaultdict(list)
        for number, look in enumerate(then):
            alike[look].append(was[number])
        # Of items that look the same it can't be told which is meant, unless they are the same.
        meant = {
            look: each[0] for look, each in alike.items() if all(part == each[0] for part in each)
        }
        is_as_long = len(items) == len(was)
        remaining = set(now)
        counterparts = []
        for number, look in enumerate(now):
            is_edited = look not in alike and is_as_long and then[number] not in remaining
            if is_edited or (is_as_long and look == then[number]):
                counterparts.append(was[number])
            else:
                counterparts.append(meant.get(look, _ABSENT))
        return counterparts


def _about_same_value(schemas: Iterable[Any], root: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Return these schemas, and all that they refer to or are made of; each once."""
    by_value: dict[int, dict[str, Any]] = {}
    left = list(schemas)
    while left:
        schema = left.pop()
        if isinstance(schema, list):
            left.extend(schema)
        elif isinstance(schema, dict) and id(schema) not in by_value:
            by_value[id(schema)] = schema
            left.extend(schema[way] for way in _WAYS if way in schema)
            left.extend(dict_in(schema.get("dependentSchemas")).values())
            if isinstance(reference := schema.get("$ref"), str):
                left.append(_resolve(root, reference))
    return by_value.values()


def _may_be(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a schema itself, without what it refers to, is for values of that shape."""
    allowed = schema.get("type")
    if allowed is None:
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(choices, list):
            return value in choices
        # One that says nothing at all is for any value; one that refers to others, for theirs.
        return "$ref" not in schema and not any(way in schema for way in _WAYS)
    shapes = allowed if isinstance(allowed, list) else [allowed]
    return any(_is_shaped(value, shape) for shape in shapes)


def _is_shaped(value: Any, shape: Any) -> bool:
    """Whether a value is of one of JSON Schema's types."""
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


def _of_member(name: str, schemas: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    """Return the schemas of a member; none where no schema knows it."""
    for schema in schemas:
        properties = dict_in(schema.get("properties"))
        if name in properties:
            yield properties[name]
            continue
        # Without a look at the patterns: rather hidden once too often.
        yield from dict_in(schema.get("patternProperties")).values()
        for keyword in ("additionalProperties", "unevaluatedProperties"):
            others = schema.get(keyword, False)
            if others is not False:
                yield _ANYTHING if others is True else others


def _of_item(place: int, schemas: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    for schema in schemas:
        first = schema.get("prefixItems")
        if isinstance(first, list) and place < len(first):
            yield first[place]
        else:
            yield schema.get("items")
            yield schema.get("unevaluatedItems")
        yield schema.get("contains")

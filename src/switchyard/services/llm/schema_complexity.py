"""Refuse JSON Schemas from outside that would cost a validator too much.

A schema of one kilobyte can keep a validator busy for ever: references to references,
each followed twice, double its work with every line. Such a schema is refused before it is
compiled. What validating an answer may cost is bounded in `services/llm/structured_answers.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from switchyard.services.common.json_values import dict_in, list_in

MAX_SCHEMA = 64 * 1024
"""Bytes of a schema, as JSON."""
MAX_PARTS = 5_000
"""Parts that may apply to one place of an answer, with all references followed."""
MAX_UNEVALUATED = 5_000
"""Sum of these parts over all subschemas with unevaluatedProperties or unevaluatedItems: the
validator compiles each of those separately."""
MAX_PATTERNS = 200
MAX_LEVELS = 200
"""Nested levels of a schema, each reference that is followed included."""

_LIST_KEYWORDS = ("allOf", "anyOf", "oneOf")
_SINGLE_KEYWORDS = ("not", "if", "then", "else")
_MAPPING_KEYWORDS = ("dependentSchemas", "dependencies")
# Keywords whose subschemas apply to deeper places of the answer.
_DEEPER_KEYWORDS = (
    *("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems"),
    *("additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"),
)
_DEEPER_MAPPINGS = ("properties", "patternProperties")
_DEFINITIONS = ("$defs", "definitions")
_TOP_ONLY = ("$dynamicRef", "$recursiveRef", "$id", "$anchor", "$dynamicAnchor")


def refuse_costly(schema: Mapping[str, Any]) -> None:
    """Refuse a schema that is too costly to check: raise ValueError if it is too large or too deep,
    has a reference that leads out of it (only `#/…` is followed), or applies too many parts to one
    place of an answer."""
    try:
        schema_text = json.dumps(schema)
    except RecursionError as error:
        raise ValueError(f"a JSON Schema may have {MAX_LEVELS} levels") from error
    if len(schema_text) > MAX_SCHEMA:
        raise ValueError(f"a JSON Schema may have {MAX_SCHEMA:,} bytes")
    _SchemaComplexity(schema).count_all()


def count_schema_parts(schema: Mapping[str, Any]) -> int | None:
    """Count the parts of a schema that `refuse_costly` accepts, with its references followed; None
    if a part contains itself, or the levels exceed MAX_LEVELS."""
    return _SchemaComplexity(schema).count_with_references(schema, 0, {})


class _SchemaComplexity:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._counted: dict[int, int | None] = {}
        """Counts of `_count` by the part's `id()`; None while the part is being counted."""
        self._uncounted: list[tuple[Any, int]] = [(schema, 0)]
        self._unevaluated = 0
        self._patterns = 0

    def count_all(self) -> None:
        # Deeper parts are counted separately: they apply to another place.
        while self._uncounted:
            self._count(*self._uncounted.pop())

    def count_with_references(
        self, part: Any, level: int, known: dict[int, int | None]
    ) -> int | None:
        """Count a part and all parts below it, as `count_schema_parts` does. `known` has counts by
        the part's `id()`, None while the part is being counted."""
        if not isinstance(part, dict):
            return 1
        if id(part) not in known and level <= MAX_LEVELS:
            known[id(part)] = None
            total: int | None = 1
            for each in (*self._parts_in_place(part), *_used_deeper_parts(part)):
                below = self.count_with_references(each, level + 1, known)
                if below is None or total is None:
                    return None
                total += below
            known[id(part)] = total
        return known.get(id(part))

    def _count(self, part: Any, level: int) -> int:
        """Count the parts that apply to the same place of an answer as `part`, itself included."""
        if not isinstance(part, dict):
            return 1
        if level > MAX_LEVELS:
            raise ValueError(f"a JSON Schema may have {MAX_LEVELS} levels")
        counted = self._counted.get(id(part), 0)  # 0: not counted yet
        if counted is None:
            raise ValueError(
                "a part of the JSON Schema refers to itself without going deeper into the answer"
            )
        if counted:
            return counted
        self._counted[id(part)] = None
        parts = 1 + sum(self._count(each, level + 1) for each in self._parts_in_place(part))
        if parts > MAX_PARTS:
            raise ValueError(
                f"with its references followed, the JSON Schema applies more than {MAX_PARTS:,} "
                "parts to one place of the answer: simplify it"
            )
        self._counted[id(part)] = parts
        self._count_costly_keywords(part, parts)
        self._uncounted += [
            (each, level + 1) for each in _deeper_parts(part) if id(each) not in self._counted
        ]
        return parts

    def _count_costly_keywords(self, part: Mapping[str, Any], parts: int) -> None:
        if "unevaluatedProperties" in part or "unevaluatedItems" in part:
            self._unevaluated += parts
        self._patterns += ("pattern" in part) + len(dict_in(part.get("patternProperties")).values())
        if self._unevaluated > MAX_UNEVALUATED:
            raise ValueError(
                "the JSON Schema applies unevaluatedProperties or unevaluatedItems to more than "
                f"{MAX_UNEVALUATED:,} parts: simplify it"
            )
        if self._patterns > MAX_PATTERNS:
            raise ValueError(f"a JSON Schema may have {MAX_PATTERNS} patterns")

    def _parts_in_place(self, part: Mapping[str, Any]) -> Iterator[Any]:
        for name in _TOP_ONLY:
            if name in part and part is not self._schema:
                raise ValueError(
                    f"{name} is allowed only at the top of the JSON Schema: refer to its parts as "
                    "#/$defs/NAME"
                )
        if "$dynamicRef" in part or "$recursiveRef" in part:
            raise ValueError("$dynamicRef is not followed: refer to parts as #/$defs/NAME")
        for name in _LIST_KEYWORDS:
            yield from list_in(part.get(name))
        for name in _SINGLE_KEYWORDS:
            if name in part:
                yield part[name]
        for name in _MAPPING_KEYWORDS:
            yield from dict_in(part.get(name)).values()
        if "$ref" in part:
            yield self._resolve(part["$ref"])

    def _resolve(self, reference: Any) -> Any:
        if not isinstance(reference, str) or (reference != "#" and reference[:2] != "#/"):
            raise ValueError("$ref must lead to a part of the same schema: # or #/$defs/NAME")
        target: Any = self._schema
        for step in unquote(reference[1:]).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(step)] if isinstance(target, list) else target[step]
            except (LookupError, TypeError, ValueError):
                raise ValueError(f"$ref leads nowhere: {reference[:200]!r}") from None
        return target


def _deeper_parts(part: Mapping[str, Any]) -> Iterator[Any]:
    yield from _used_deeper_parts(part)
    for name in _DEFINITIONS:
        yield from dict_in(part.get(name)).values()


def _used_deeper_parts(part: Mapping[str, Any]) -> Iterator[Any]:
    for name in _DEEPER_KEYWORDS:
        if name in part:
            yield from part[name] if isinstance(part[name], list) else [part[name]]
    for name in _DEEPER_MAPPINGS:
        yield from dict_in(part.get(name)).values()

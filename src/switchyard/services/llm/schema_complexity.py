"""JSON Schemas from outside: what may be asked of an answer, and what would cost too much to ask.

A schema of one kilobyte can take a validator longer than the world lasts: references to references,
each followed twice, double its work with every line. Such a schema is refused before anybody
compiles it. What an answer then costs is another matter: `services/llm/structured_answers.py`.
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
"""Such parts of all places where it asks for what is unevaluated: each is compiled for itself."""
MAX_PATTERNS = 200
MAX_LEVELS = 200
"""Of a schema, and of references that lead to references."""

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_NAMED = ("dependentSchemas", "dependencies")
# These apply to other places of the answer.
_DEEPER = (
    *("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems"),
    *("additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"),
)
_NAMED_DEEPER = ("properties", "patternProperties")
_DEFINED = ("$defs", "definitions")
_FOREIGN = ("$dynamicRef", "$recursiveRef", "$id", "$anchor", "$dynamicAnchor")


def refuse_costly(schema: Mapping[str, Any]) -> None:
    """Refuse a schema that is too costly to check. Raises ValueError for one that is too large or
    too deep, that refers to something else than a part of its own (`#/…`), or that applies too much
    to one place of an answer."""
    try:
        written = json.dumps(schema)
    except RecursionError as error:
        raise ValueError(f"a JSON Schema may have {MAX_LEVELS} levels") from error
    if len(written) > MAX_SCHEMA:
        raise ValueError(f"a JSON Schema may have {MAX_SCHEMA:,} bytes")
    _SchemaComplexity(schema).count_all()


def parts_of(schema: Mapping[str, Any]) -> int | None:
    """Count the parts of a schema that `refuse_costly` lets pass, with its references followed;
    None where they are endless, or nearly so."""
    return _SchemaComplexity(schema).followed(schema, 0, {})


class _SchemaComplexity:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._counted: dict[int, int | None] = {}
        """By identity; None while it is being counted."""
        self._left: list[tuple[Any, int]] = [(schema, 0)]
        self._unevaluated = 0
        self._patterns = 0

    def count_all(self) -> None:
        # What is found deeper is counted for itself: it applies to another place.
        while self._left:
            self._count(*self._left.pop())

    def followed(self, part: Any, level: int, known: dict[int, int | None]) -> int | None:
        """Count as `parts_of` does; `known` by identity, None while it is being counted."""
        if not isinstance(part, dict):
            return 1
        if id(part) not in known and level <= MAX_LEVELS:
            known[id(part)] = None
            total: int | None = 1
            for each in (*self._in_place(part), *_used_deeper_parts(part)):
                more = self.followed(each, level + 1, known)
                if more is None or total is None:
                    return None
                total += more
            known[id(part)] = total
        return known.get(id(part))

    def _count(self, part: Any, level: int) -> int:
        """Count the parts that apply where this one does."""
        if not isinstance(part, dict):
            return 1
        if level > MAX_LEVELS:
            raise ValueError(f"a JSON Schema may have {MAX_LEVELS} levels")
        known = self._counted.get(id(part), 0)
        if known is None:
            raise ValueError(
                "a part of the JSON Schema refers to itself without going deeper into the answer"
            )
        if known:
            return known
        self._counted[id(part)] = None
        parts = 1 + sum(self._count(each, level + 1) for each in self._in_place(part))
        if parts > MAX_PARTS:
            raise ValueError(
                f"with its references followed, the JSON Schema applies more than {MAX_PARTS:,} "
                "parts to one place of the answer: simplify it"
            )
        self._counted[id(part)] = parts
        self._add_up(part, parts)
        self._left += [
            (each, level + 1) for each in _deeper_parts(part) if id(each) not in self._counted
        ]
        return parts

    def _add_up(self, part: Mapping[str, Any], parts: int) -> None:
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

    def _in_place(self, part: Mapping[str, Any]) -> Iterator[Any]:
        for name in _FOREIGN:
            if name in part and part is not self._schema:
                raise ValueError(f"{name} is not taken: refer to parts of it as #/$defs/NAME")
        if "$dynamicRef" in part or "$recursiveRef" in part:
            raise ValueError("$dynamicRef is not taken: refer to parts of it as #/$defs/NAME")
        for name in _LISTS:
            yield from list_in(part.get(name))
        for name in _SINGLE:
            if name in part:
                yield part[name]
        for name in _NAMED:
            yield from dict_in(part.get(name)).values()
        if "$ref" in part:
            yield self._target(part["$ref"])

    def _target(self, reference: Any) -> Any:
        if not isinstance(reference, str) or (reference != "#" and reference[:2] != "#/"):
            raise ValueError("$ref leads to a part of the same schema: # or #/$defs/NAME")
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
    for name in _DEFINED:
        yield from dict_in(part.get(name)).values()


def _used_deeper_parts(part: Mapping[str, Any]) -> Iterator[Any]:
    for name in _DEEPER:
        if name in part:
            yield from part[name] if isinstance(part[name], list) else [part[name]]
    for name in _NAMED_DEEPER:
        yield from dict_in(part.get(name)).values()

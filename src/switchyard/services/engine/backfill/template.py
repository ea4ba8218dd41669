"""Payload templates: JSON with `{field}` where a value of the item goes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from switchyard.broker.message import MAX_BODY_BYTES
from switchyard.services.common.errors import InvalidInput

MAX_SHOWN_FIELDS = 20

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


class Unfillable(InvalidInput):
    """The template can't be filled in with an item's values; the text says why."""


class MissingField(Unfillable):
    """The template names a field that the item does not have, or has a brace that names none."""


class PayloadTooLarge(Unfillable):
    """The template with the item's values is larger, or nested more deeply, than a job's payload
    may be."""


def render(template: Any, values: Mapping[str, Any]) -> Any:
    """Fill the item's values into the template.

    A text that is nothing but `{field}` becomes the value as it is, of whatever type; within a
    longer text it becomes text. `{a.b}` is field `b` of object `a`; `{{` and `}}` are braces.
    Raises MissingField, PayloadTooLarge.
    """
    try:
        return _TemplateFiller(values).fill(template)
    except RecursionError as error:
        raise PayloadTooLarge("the payload is nested too deeply") from error


@dataclass(slots=True)
class _TemplateFiller:
    """Fills a template with one item's values, and counts their characters: a small template may
    name a large field any number of times."""

    values: Mapping[str, Any]
    remaining_characters: int = MAX_BODY_BYTES
    """Characters of values that may still be added."""

    def fill(self, template: Any) -> Any:
        if isinstance(template, str):
            whole = _FIELD.fullmatch(template)
            if whole and whole[1]:
                return self._raw_value(whole[1])
            return _FIELD.sub(self._as_text, template)
        if isinstance(template, Mapping):
            return {key: self.fill(value) for key, value in template.items()}
        if isinstance(template, list):
            return [self.fill(value) for value in template]
        return template

    def _raw_value(self, path: str) -> Any:
        value = _look_up(path, self.values)
        if isinstance(value, str):
            self._count_characters(len(value))
        elif isinstance(value, Mapping | list):
            self._count_characters(
                len(json.dumps(value, separators=(",", ":"), ensure_ascii=False))
            )
        return value

    def _as_text(self, match: re.Match[str]) -> str:
        if not match[1]:
            if len(match[0]) == 1:
                raise MissingField(
                    f"{match.string!r} has a brace that names no field: write {{name}}, or "
                    f"{match[0] * 2} for a brace"
                )
            return match[0][0]
        value = _look_up(match[1], self.values)
        if isinstance(value, bool):
            return "true" if value else "false"
        text = "" if value is None else str(value)
        self._count_characters(len(text))
        return text

    def _count_characters(self, characters: int) -> None:
        self.remaining_characters -= characters
        if self.remaining_characters < 0:
            raise PayloadTooLarge(
                f"with the item's values the payload is larger than the {MAX_BODY_BYTES:,} bytes "
                "that a job may have"
            )


def _look_up(path: str, values: Mapping[str, Any]) -> Any:
    if path in values:
        return values[path]
    path = path.strip()
    value: Any = values
    for step in path.split("."):
        if not isinstance(value, Mapping) or step not in value:
            raise MissingField(f"the item has no field {path!r}; it has: {_list_names(values)}")
        value = value[step]
    return value


def _list_names(values: Mapping[str, Any]) -> str:
    names = ", ".join(map(str, islice(values, MAX_SHOWN_FIELDS)))
    return names if len(values) <= MAX_SHOWN_FIELDS else f"{names}, …"

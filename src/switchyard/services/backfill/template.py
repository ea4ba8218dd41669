"""Payload templates: JSON with `{field}` where a value of the item goes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

from switchyard.services.errors import InvalidInput

SHOWN_FIELDS = 20

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


class MissingField(InvalidInput):
    """The template names a field that the item does not have, or has a brace that names none."""


def render(template: Any, values: Mapping[str, Any]) -> Any:
    """The template with the item's values in it.

    A text that is nothing but `{field}` becomes the value as it is, of whatever type; within a
    longer text it becomes text. `{a.b}` is field `b` of object `a`; `{{` and `}}` are braces.
    Raises MissingField.
    """
    if isinstance(template, str):
        whole = _FIELD.fullmatch(template)
        if whole and whole[1]:
            return _look_up(whole[1], values)
        return _FIELD.sub(lambda found: _text(found, values), template)
    if isinstance(template, Mapping):
        return {key: render(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [render(value, values) for value in template]
    return template


def _text(found: re.Match[str], values: Mapping[str, Any]) -> str:
    if not found[1]:
        if len(found[0]) == 1:
            raise MissingField(
                f"{found.string!r} has a brace that names no field: write {{name}}, or "
                f"{found[0] * 2} for a brace"
            )
        return found[0][0]
    value = _look_up(found[1], values)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _look_up(path: str, values: Mapping[str, Any]) -> Any:
    if path in values:
        return values[path]
    path = path.strip()
    at: Any = values
    for step in path.split("."):
        if not isinstance(at, Mapping) or step not in at:
            raise MissingField(f"the item has no field {path!r}; it has: {_names(values)}")
        at = at[step]
    return at


def _names(values: Mapping[str, Any]) -> str:
    shown = ", ".join(map(str, islice(values, SHOWN_FIELDS)))
    return shown if len(values) <= SHOWN_FIELDS else f"{shown}, …"

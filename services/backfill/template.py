"""Payload templates: JSON with `{field}` where a value of the item goes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_FIELD = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_. -]*)\}")


class MissingField(ValueError):
    """The template names a field that the item does not have."""


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


def fields_of(template: Any) -> set[str]:
    """The fields that a template names."""
    if isinstance(template, str):
        return {found[1] for found in _FIELD.finditer(template) if found[1]}
    if isinstance(template, Mapping):
        template = list(template.values())
    if isinstance(template, list):
        return set().union(*map(fields_of, template))
    return set()


def _text(found: re.Match[str], values: Mapping[str, Any]) -> str:
    if not found[1]:
        return found[0][0]
    value = _look_up(found[1], values)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _look_up(path: str, values: Mapping[str, Any]) -> Any:
    if path in values:
        return values[path]
    at: Any = values
    for step in path.split("."):
        if not isinstance(at, Mapping) or step not in at:
            raise MissingField(f"the item has no field {path!r}; it has: {', '.join(values)}")
        at = at[step]
    return at

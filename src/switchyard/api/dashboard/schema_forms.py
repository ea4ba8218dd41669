"""Forms made from a JSON Schema: a plain field for a text, number, choice or boolean; a field of
JSON for lists and objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from switchyard.api.http.problems import Problem
from switchyard.api.models.base import is_finite
from switchyard.services.common.json_values import dict_in, list_in
from switchyard.services.engine.jobs.secret_fields import HIDDEN, MARK

PREFIX = "f."
"""Prefix of the fields' names in a form, so that they differ from the form's other names."""
OTHERS = "others"
"""Name, without the prefix, of the field for values that the schema does not know."""
MAX_LINE = 80
"""Characters from which a text gets more than one line."""
PLAIN_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}
NOT_GIVEN = object()


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a form."""

    name: str
    kind: str
    """line, lines, number, choice, or json."""
    value: str
    label: str
    hint: str
    required: bool
    choices: Sequence[str] = ()


def fields_of(
    schema: Mapping[str, Any], values: Mapping[str, Any], sent: Mapping[str, str] | None = None
) -> list[FormField]:
    """Return the fields of a form for values of the schema, filled with `values`, or with the texts
    that were `sent` in this form, where it is shown again."""
    properties = _properties(schema)
    required = list_in(schema.get("required"))
    fields = [
        _field(name, each, schema, values.get(name, NOT_GIVEN), required=name in required)
        for name, each in properties.items()
    ]
    others = {name: value for name, value in values.items() if name not in properties}
    if others or not properties:
        hint = "What the schema does not name, as JSON."
        fields.append(FormField(OTHERS, "json", _json(others), "Other fields", hint, False))
    if sent is not None:
        return [replace(each, value=sent.get(PREFIX + each.name, each.value)) for each in fields]
    return fields


def read_fields(
    schema: Mapping[str, Any], values: Mapping[str, Any], form: Mapping[str, str]
) -> dict[str, Any]:
    """Return the values of a form. An empty field is left out; a text that was empty, or null,
    before stays so. Raises Problem (422) for invalid JSON or numbers; the values are not validated
    against the schema here."""
    fields: dict[str, Any] = {}
    for field in fields_of(schema, values):
        text = form.get(PREFIX + field.name, "").replace("\r\n", "\n")
        was = values.get(field.name, NOT_GIVEN)
        if field.name == OTHERS and field.kind == "json":
            others = parsed_json(text, field.name) if text.strip() else {}
            if not isinstance(others, dict):
                raise Problem("invalid", "the other fields must be a JSON object")
            fields |= others
        elif text == field.value:
            if was is not NOT_GIVEN:
                fields[field.name] = was  # as it was, to the last bit
        elif not text.strip() and field.kind != "lines":
            if field.kind == "line" and was == "":
                fields[field.name] = was
        elif field.kind in ("line", "lines"):
            fields[field.name] = text
        elif field.kind == "choice":
            fields[field.name] = _chosen(text, field)
        else:
            fields[field.name] = parsed_json(text, field.name)
    return fields


def _field(
    name: str,
    property_schema: Mapping[str, Any],
    schema: Mapping[str, Any],
    value: Any,
    *,
    required: bool,
) -> FormField:
    own = _resolve(property_schema, schema)
    kind = own.get("type")
    choices: Sequence[str] = ()
    shown = "" if value is NOT_GIVEN or value is None else _json(value)
    python_type = PLAIN_KINDS.get(kind) if isinstance(kind, str) else None
    fits = value is NOT_GIVEN or value is None or _is_plain(value, python_type)
    if isinstance(own.get("enum"), list) and (value is NOT_GIVEN or value in (None, *own["enum"])):
        form_kind, choices = "choice", [_json(each) for each in own["enum"]]
    elif kind == "boolean" and fits:
        form_kind, choices = "choice", ("true", "false")
    elif kind == "string" and fits and _is_typable(value):
        text = value if isinstance(value, str) else ""
        form_kind = "lines" if "\n" in text or len(text) > MAX_LINE else "line"
        shown = text
    elif kind in ("integer", "number") and fits:
        form_kind = "number"
    else:
        form_kind = "json"
    hint = str(property_schema.get("description") or own.get("description") or "")
    if MARK in property_schema or MARK in own:
        hint = f"{hint} {HIDDEN}: it stays as it is.".strip()
    if own.get("format") == "date":
        hint = f"{hint} A day, as in 2024-12-31.".strip()
    if "default" in property_schema and property_schema["default"] not in (None, "", [], {}):
        hint = f"{hint} Default: {_json(property_schema['default'])}.".strip()
    return FormField(name, form_kind, shown, name, hint[:500], required, choices)


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = _resolve(schema, schema).get("properties")
    known = properties.items() if isinstance(properties, Mapping) else ()
    return {name: each for name, each in known if isinstance(each, Mapping) and name != OTHERS}


def _resolve(own: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema with its reference followed; of alternatives, the only one that is not
    null."""
    for _ in range(5):
        if isinstance(reference := own.get("$ref"), str):
            own = dict_in(dict_in(schema.get("$defs")).get(reference.rpartition("/")[2]))
            continue
        ways = [
            each
            for each in list_in(own.get("anyOf", own.get("oneOf", own.get("allOf"))))
            if isinstance(each, Mapping) and each.get("type") != "null"
        ]
        if len(ways) != 1 or "type" in own:
            break
        own = ways[0]
    return own


def _is_plain(value: Any, python_type: type | tuple[type, ...] | None) -> bool:
    return python_type is not None and (
        isinstance(value, bool) if python_type is bool else isinstance(value, python_type)
    )


def _is_typable(value: Any) -> bool:
    """Whether a browser sends a text back as it is."""
    if not isinstance(value, str):
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\r" not in value and "\x00" not in value


def _chosen(text: str, field: FormField) -> Any:
    if text not in field.choices:
        raise Problem("invalid", f"{field.name}: choose one of {', '.join(field.choices)[:200]}")
    return json.loads(text)


def parsed_json(text: str, name: str) -> Any:
    """Parse JSON that a user has written. Raises Problem (422), also for a number that some readers
    of JSON can't take."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Problem("invalid", f"{name[:100]}: this is no JSON: {error}") from error
    if not is_finite(value):
        raise Problem("invalid", f"{name[:100]}: NaN, Infinity and 1e309 are no numbers of JSON")
    return value


def _json(value: Any) -> str:
    indent = 2 if isinstance(value, dict | list) and value else None
    return json.dumps(value, indent=indent, ensure_ascii=False, default=str)

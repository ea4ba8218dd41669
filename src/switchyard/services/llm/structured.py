"""Answers that must fit a JSON Schema. Schemas and answers both come from outside.

Schemas are bounded in size, refer to nothing elsewhere, and their patterns are run by an engine
whose time is linear in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

MAX_SCHEMA = 64 * 1024
"""Bytes of a schema, as JSON."""
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)
"""What models like to put around JSON."""


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises ValueError for what is no JSON Schema, refers to another, or is too large."""
    if len(json.dumps(schema)) > MAX_SCHEMA:
        raise ValueError(f"a JSON Schema may have {MAX_SCHEMA:,} bytes")
    _validator(schema)


def fitting(text: str, schema: Mapping[str, Any]) -> Any:
    """The value that a model's answer stands for. Raises ValueError, which says what is wrong with
    it in words for the model."""
    fenced = _FENCE.match(text)
    try:
        value = json.loads(fenced[1] if fenced else text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {str(error)[:200]}") from error
    wrong = []
    for each in _validator(schema).iter_errors(value):
        where = "/".join(map(str, each.instance_path))
        wrong.append(f"{where or 'the whole'}: {each.message[:200]}")
        if len(wrong) == 5:
            break
    if wrong:
        raise ValueError("it does not fit the schema: " + "; ".join(wrong))
    return value


def _validator(schema: Mapping[str, Any]) -> Any:
    import jsonschema_rs

    try:
        return jsonschema_rs.Draft202012Validator(
            dict(schema),
            offline=True,  # nobody's schema makes this host fetch an address
            pattern_options=jsonschema_rs.RegexOptions(),
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is no JSON Schema: {' '.join(str(error).split())[:300]}") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")

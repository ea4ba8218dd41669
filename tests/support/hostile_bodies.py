"""Bodies of requests with one thing wrong in them: values of every kind in every place."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

MAX_STACK = 1_000
"""Levels of nesting that are too deep: as many as Python's stack has frames."""
VALUES = (
    "null", "true", "0", "-1", "-0.0", "0.5", '""', '"x"', "[]", "{}", "[null]", '[["a"]]',
    '{"": null}',
    "1e400", "-1e400", "NaN", "-Infinity", "1e-400", str(2**53 + 1), str(2**63), f"1{'0' * 400}",
    '"\\u0000"', '"a\\u0000b"', '"\\ud800"', '"\\udfff\\ud800"', '"\\u001b[2J\\r\\nX: y"',
    '"\\u202e\\ufeff"', '"{job_id}{0.__class__}"', '"../../etc/passwd"', '"%00"', '"\'; --"',
    json.dumps("A" * 70_000), json.dumps("\U00020000" * 30_000),
    "[" * MAX_STACK + "]" * MAX_STACK, '{"a":' * MAX_STACK + "1" + "}" * MAX_STACK,
    "[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300,
    "[" * 800 + "]" * 800, '{"a":' * 880 + "1" + "}" * 880,
    "[" + "{}," * 5_000 + "{}]", "{" + ",".join(f'"k{n}":0' for n in range(3_000)) + "}",
)  # fmt: skip
"""JSON texts that each field of a body is replaced by."""
_MARK = "\x00here\x00"


@dataclass(frozen=True)
class HostileBody:
    """A body with one change, which may make it invalid."""

    change: str
    """Description of the change."""
    content: bytes


def hostile_bodies(valid: Any) -> Iterator[HostileBody]:
    """Yield a body that is valid with each of its values replaced by each of VALUES, with a field
    too many, with a field twice, and with a field left out."""
    for keys in _key_paths(valid):
        path = ".".join(map(str, keys))
        for value in VALUES:
            yield HostileBody(f"{path} = {value[:40]}", _replace_value(valid, keys, value))
    for name in ("__proto__", "", "\ud800", "a" * 70_000):
        yield HostileBody(f"+{name[:20]!a}", json.dumps({**valid, name: 1}).encode())
    for name in valid:
        remaining = {each: valid[each] for each in valid if each != name}
        yield HostileBody(f"-{name}", json.dumps(remaining).encode())
        twice = f"{json.dumps(valid)[:-1]},{json.dumps(name)}:[1]}}"
        yield HostileBody(f"{name} twice", twice.encode())


def _key_paths(value: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield keys
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value[:2])
    yield from chain.from_iterable(_key_paths(each, (*keys, key)) for key, each in children)


def _replace_value(body: Any, keys: tuple[Any, ...], value: str) -> bytes:
    """Return the JSON of a body in which one value is another text."""
    if not keys:
        return value.encode()
    changed = copy.deepcopy(body)
    parent = changed
    for key in keys[:-1]:
        parent = parent[key]
    parent[keys[-1]] = _MARK
    return json.dumps(changed).replace(json.dumps(_MARK), value, 1).encode()

"""Bodies of requests with one thing wrong in them: values of every kind in every place."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

DEEP = 1_000
"""Levels of what is nested too deeply: as many as Python's stack has frames."""
VALUES = (
    "null", "true", "0", "-1", "-0.0", "0.5", '""', '"x"', "[]", "{}", "[null]", '[["a"]]',
    '{"": null}',
    "1e400", "-1e400", "NaN", "-Infinity", "1e-400", str(2**53 + 1), str(2**63), f"1{'0' * 400}",
    '"\\u0000"', '"a\\u0000b"', '"\\ud800"', '"\\udfff\\ud800"', '"\\u001b[2J\\r\\nX: y"',
    '"\\u202e\\ufeff"', '"{job_id}{0.__class__}"', '"../../etc/passwd"', '"%00"', '"\'; --"',
    json.dumps("A" * 70_000), json.dumps("\U00020000" * 30_000),
    "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP,
    "[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300,
    "[" * 800 + "]" * 800, '{"a":' * 880 + "1" + "}" * 880,
    "[" + "{}," * 5_000 + "{}]", "{" + ",".join(f'"k{n}":0' for n in range(3_000)) + "}",
)  # fmt: skip
"""What a field may be sent as, in the text of JSON."""
_MARK = "\x00here\x00"


@dataclass(frozen=True)
class HostileBody:
    """A body with one thing wrong in it, perhaps."""

    change: str
    """What is not as it was."""
    content: bytes


def hostile_bodies(valid: Any) -> Iterator[HostileBody]:
    """Yield a body that is valid with each of its values replaced by each of VALUES, with a field
    too many, with a field twice, and with a field left out."""
    for place in _places(valid):
        shown = ".".join(map(str, place))
        for value in VALUES:
            yield HostileBody(f"{shown} = {value[:40]}", _with(valid, place, value))
    for name in ("__proto__", "", "\ud800", "a" * 70_000):
        yield HostileBody(f"+{name[:20]!a}", json.dumps({**valid, name: 1}).encode())
    for name in valid:
        left = {each: valid[each] for each in valid if each != name}
        yield HostileBody(f"-{name}", json.dumps(left).encode())
        twice = f"{json.dumps(valid)[:-1]},{json.dumps(name)}:[1]}}"
        yield HostileBody(f"{name} twice", twice.encode())


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value[:2])
    yield from chain.from_iterable(_places(each, (*place, key)) for key, each in inner)


def _with(body: Any, place: tuple[Any, ...], value: str) -> bytes:
    """Return the JSON of a body in which one value is another text."""
    if not place:
        return value.encode()
    changed = copy.deepcopy(body)
    parent = changed
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = _MARK
    return json.dumps(changed).replace(json.dumps(_MARK), value, 1).encode()

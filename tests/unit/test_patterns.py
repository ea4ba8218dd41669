"""No error shows a regular expression: patterns are said in words at every door."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, Field, ValidationError

import switchyard
from switchyard.broker import patterns
from switchyard.broker.message import describe
from switchyard.services.common.files.uploads import INCOMING
from switchyard.services.engine.backfill.files import INPUT_PREFIX

SOURCES = Path(switchyard.__file__).parent


def fields_patterns() -> Iterator[tuple[str, str]]:
    """Where a field or parameter has a pattern, and as what it is written there."""
    for path in SOURCES.rglob("*.py"):
        text = path.read_text()
        if (
            "pattern=" not in text
            or path.is_relative_to(SOURCES / "broker" / "topology")
            or path.is_relative_to(SOURCES / "broker" / "management")
        ):
            continue  # a policy's pattern is the broker's
        for call in ast.walk(ast.parse(text)):
            for keyword in call.keywords if isinstance(call, ast.Call) else ():
                if keyword.arg == "pattern":
                    yield str(path.relative_to(SOURCES)), ast.unparse(keyword.value)


def test_every_field_with_a_pattern_has_one_that_is_said_in_words() -> None:
    others = {
        (place, written)
        for place, written in fields_patterns()
        if getattr(patterns, written.removeprefix("patterns."), None)
        not in patterns.ALLOWED_IN_WORDS
    }

    assert others == {("api/engine/bulk.py", "self.id_pattern")}


def test_each_pattern_is_one_and_is_said() -> None:
    declared = [
        value
        for name, value in vars(patterns).items()
        if name.isupper() and value != patterns._NAME
    ]
    named = [each for each in declared if isinstance(each, str)]

    assert sorted(named) == sorted(patterns.ALLOWED_IN_WORDS)
    for each in named:
        re.compile(each)
        assert each not in patterns.ALLOWED_IN_WORDS[each]


def test_keys_in_the_storage_begin_as_those_that_are_made() -> None:
    assert patterns.INCOMING_KEY.startswith(f"^{INCOMING}")
    assert patterns.INPUT_KEY.startswith(f"^{INPUT_PREFIX}/")


class Person(BaseModel):
    name: str = Field(default="a", pattern=patterns.DASHED_NAME)
    shirt: str = Field(default="xl", pattern="^x+l$")


def test_what_is_allowed_is_said_rather_than_how_it_is_checked() -> None:
    with pytest.raises(ValidationError) as failed:
        Person(name="Foo")

    assert describe(failed.value) == (
        "name: use lower-case letters, digits, _ and -, beginning with a letter, at most 64 "
        "characters"
    )


def test_a_pattern_of_somebody_elses_own_is_shown_as_it_is() -> None:
    with pytest.raises(ValidationError) as failed:
        Person(shirt="m")

    assert "^x+l$" in describe(failed.value)


WIDE_AND_COUNTED = re.compile(r"((?<!\\)\.|\\[wWsSdD]|\[(\^|[^\]]*\\[wWsSdD])[^\]]*\])\{")
"""Repeated so many times: any character, or one of all scripts."""


def test_what_a_pattern_counts_is_ascii_as_all_else_takes_megabytes_to_compile() -> None:
    for wide in (r"^(a|/.{1,4000})$", r"^[A-Za-z0-9][\w.-]{0,95}$", r"^[^\x00]{1,9}$", r"\d{4}"):
        assert WIDE_AND_COUNTED.search(wide), wide
    for pattern in patterns.ALLOWED_IN_WORDS:
        assert not WIDE_AND_COUNTED.search(pattern), pattern

"""Errors describe patterns of fields in words, and never show a regular expression."""

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


def patterns_of_fields() -> Iterator[tuple[str, str]]:
    """Yield the module and the source text of the pattern of each field and parameter."""
    for path in SOURCES.rglob("*.py"):
        text = path.read_text()
        if (
            "pattern=" not in text
            or path.is_relative_to(SOURCES / "broker" / "topology")
            or path.is_relative_to(SOURCES / "broker" / "management")
        ):
            continue  # policies have patterns of the broker's own
        for call in ast.walk(ast.parse(text)):
            for keyword in call.keywords if isinstance(call, ast.Call) else ():
                if keyword.arg == "pattern":
                    yield str(path.relative_to(SOURCES)), ast.unparse(keyword.value)


def test_every_pattern_of_a_field_is_described_in_words() -> None:
    without_words = {
        (module, source)
        for module, source in patterns_of_fields()
        if getattr(patterns, source.removeprefix("patterns."), None)
        not in patterns.ALLOWED_IN_WORDS
    }

    assert without_words == {("api/engine/bulk.py", "self.id_pattern")}


def test_each_pattern_is_valid_and_described() -> None:
    values = [
        value
        for name, value in vars(patterns).items()
        if name.isupper() and value != patterns._NAME
    ]
    all_patterns = [each for each in values if isinstance(each, str)]

    assert sorted(all_patterns) == sorted(patterns.ALLOWED_IN_WORDS)
    for each in all_patterns:
        re.compile(each)
        assert each not in patterns.ALLOWED_IN_WORDS[each]


def test_the_patterns_of_keys_begin_with_the_prefixes_in_use() -> None:
    assert patterns.INCOMING_KEY.startswith(f"^{INCOMING}")
    assert patterns.INPUT_KEY.startswith(f"^{INPUT_PREFIX}/")


class Person(BaseModel):
    name: str = Field(default="a", pattern=patterns.DASHED_NAME)
    shirt: str = Field(default="xl", pattern="^x+l$")


def test_the_error_describes_the_allowed_values_in_words() -> None:
    with pytest.raises(ValidationError) as failed:
        Person(name="Foo")

    assert describe(failed.value) == (
        "name: use lower-case letters, digits, _ and -, beginning with a letter, at most 64 "
        "characters"
    )


def test_a_pattern_of_another_program_is_shown_unchanged() -> None:
    with pytest.raises(ValidationError) as failed:
        Person(shirt="m")

    assert "^x+l$" in describe(failed.value)


WIDE_AND_COUNTED = re.compile(r"((?<!\\)\.|\\[wWsSdD]|\[(\^|[^\]]*\\[wWsSdD])[^\]]*\])\{")
"""Finds a counted repetition of any character, or of characters of all scripts."""


def test_only_ascii_is_repeated_a_counted_number_of_times_in_a_pattern() -> None:
    # A counted repetition of larger classes takes megabytes to compile.
    for wide in (r"^(a|/.{1,4000})$", r"^[A-Za-z0-9][\w.-]{0,95}$", r"^[^\x00]{1,9}$", r"\d{4}"):
        assert WIDE_AND_COUNTED.search(wide), wide
    for pattern in patterns.ALLOWED_IN_WORDS:
        assert not WIDE_AND_COUNTED.search(pattern), pattern

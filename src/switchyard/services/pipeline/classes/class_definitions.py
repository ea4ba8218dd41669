"""Read and check the file that says how documents are classified."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from switchyard.broker import patterns
from switchyard.broker.message import describe
from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.common.toml_file import InvalidToml, read_toml
from switchyard.services.pipeline.text.plain_text import words

MAX_KEYWORD_WORDS = 8
_METHODS = ("rules", "meaning")
"""Values of `by`."""
_MAX_KEYWORDS = 5_000
"""Keywords of one label."""
_MAX_DESCRIPTIONS = 1_000
"""Descriptions of all labels together."""

ClassName = Annotated[str, Field(pattern=patterns.SHORT_NAME)]
"""Name of a kind or a label."""
Description = Annotated[str, Field(min_length=1, max_length=2_000)]


class BadClasses(PermanentError):
    """The file of JOBS_CLASSES can't be used; the text says where it is wrong."""


class _StrictPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KeywordLabel(_StrictPart):
    """A label that a document gets by keywords."""

    at_least: float = Field(gt=0, le=1e6)
    """Points of its keywords, in all, from which a document gets it."""
    keywords: dict[Annotated[str, Field(max_length=200)], Annotated[float, Field(gt=0, le=1e6)]]
    """The points of each keyword, for each of its first three occurrences."""

    @field_validator("keywords")
    @classmethod
    def _check_keywords(cls, value: dict[str, float]) -> dict[str, float]:
        if not 1 <= len(value) <= _MAX_KEYWORDS:
            raise ValueError(f"a label has 1 to {_MAX_KEYWORDS:,} keywords, not {len(value):,}")
        for keyword in value:
            count = len(words(keyword))
            if not 1 <= count <= MAX_KEYWORD_WORDS:
                raise ValueError(
                    f"the keyword {keyword[:50]!r} has {count} words: 1 to {MAX_KEYWORD_WORDS} "
                    "can be looked for"
                )
            if "*" in keyword.rstrip("*"):
                raise ValueError(f"in the keyword {keyword[:50]!r}, * can only be the last letter")
        return value


class DescribedLabel(_StrictPart):
    """A label that a document gets by similarity to descriptions."""

    descriptions: list[Description] = Field(min_length=1, max_length=50)


class RuleKind(_StrictPart):
    """A kind of classes that are decided by keywords."""

    by: Literal["rules"]
    otherwise: ClassName | None = None
    """Label of a document that no label fits."""
    labels: dict[ClassName, KeywordLabel] = Field(min_length=1, max_length=100)
    """A document gets the first label that fits."""


class MeaningKind(_StrictPart):
    """A kind of classes that are decided by similarity."""

    by: Literal["meaning"]
    otherwise: ClassName | None = None
    """As in RuleKind; it may have a description of its own, among the labels."""
    at_least: float = Field(default=0.05, ge=0, le=2)
    """Least lead of a label's similarity over that of `otherwise`, or over the median of all labels
    where `otherwise` has no description."""
    several: int = Field(default=1, ge=1, le=20)
    """Most labels that a document gets."""
    labels: dict[ClassName, DescribedLabel] = Field(min_length=2, max_length=100)


class ClassDefinitions(_StrictPart):
    """All kinds, by name."""

    kinds: dict[ClassName, Annotated[RuleKind | MeaningKind, Field(discriminator="by")]] = Field(
        min_length=1, max_length=50
    )

    @model_validator(mode="after")
    def _check_number_of_descriptions(self) -> ClassDefinitions:
        described = sum(
            len(label.descriptions)
            for kind in self.kinds.values()
            if isinstance(kind, MeaningKind)
            for label in kind.labels.values()
        )
        if described > _MAX_DESCRIPTIONS:
            raise ValueError(
                f"there are {described:,} descriptions, {_MAX_DESCRIPTIONS:,} are allowed"
            )
        return self

    @property
    def hash(self) -> str:
        """Hash of the definitions: the same for the same rules, however the file is formatted."""
        return content_hash(self.model_dump(mode="json"))


def read_definitions(path: Path | None) -> ClassDefinitions:
    """Read the definitions in a file; the package's own where `path` is None. Raises BadClasses if
    the file is missing, too large, no TOML, or not valid."""
    if path is None:
        text = files(__package__).joinpath("classes.toml").read_text("utf-8")
        return _parse(tomllib.loads(text), "classes.toml")
    try:
        return _parse(read_toml(path), repr(str(path)))
    except InvalidToml as error:
        raise BadClasses(f"JOBS_CLASSES: {error}") from error


def _parse(tables: dict[str, Any], file: str) -> ClassDefinitions:
    try:
        return ClassDefinitions.model_validate(tables)
    except ValidationError as error:
        raise BadClasses(f"JOBS_CLASSES: {file}: {describe(error, _path_in_file)}") from error


def _path_in_file(steps: Sequence[str | int]) -> Sequence[str | int]:
    """Remove the step that pydantic adds behind a kind's name: the value of its `by`."""
    return (*steps[:2], *steps[3:]) if steps[2:3] and steps[2] in _METHODS else steps

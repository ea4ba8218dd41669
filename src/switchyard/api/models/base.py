"""The base classes of all models, and types that several models share: times, ids, JSON objects."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)

from switchyard.broker import patterns
from switchyard.broker import times as moments


class ApiModel(BaseModel):
    """JSON that goes in or out. A model is built when it is first used: a program that calls the
    API needs a few of a hundred, and each takes a millisecond."""

    model_config = ConfigDict(defer_build=True, from_attributes=True)

    @classmethod
    def from_record(cls, record: object, **others: Any) -> Self:
        """Make the model from the fields that the record has under the same names, and from
        `others`."""
        names = cls.model_fields.keys() - others.keys()
        common_fields = {name: getattr(record, name) for name in names if hasattr(record, name)}
        return cls.model_validate(common_fields | others)


def _check_finite(value: Any) -> Any:
    if not is_finite(value):
        raise ValueError("NaN and Infinity are not JSON")
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_check_finite)]
"""A JSON object in a request that is stored, passed on and read by programs in any language: no NaN
and no infinity."""


def _require_iso_8601(value: object) -> object:
    """Refuse a bare number as a time, as its unit is unknown: a time is text with a date and a
    time."""
    if not isinstance(value, str) or not re.match(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}", value):
        raise ValueError("write it as in 2026-01-05T09:00:00Z")
    return value


Moment = Annotated[
    AwareDatetime, AfterValidator(moments.check_moment), BeforeValidator(_require_iso_8601)
]
"""A moment in ISO 8601, with a time zone."""


def _from_seconds(value: object) -> object:
    return moments.to_datetime(value) if isinstance(value, int | float) else value


Timestamp = Annotated[datetime, BeforeValidator(_from_seconds)]
"""A moment in an answer; made of the seconds since the epoch in a record."""

EXAMPLE_JOB_ID = "0b0f6c1e-6a5e-4a0e-9a39-6a1f3b1f8f11"
"""The id of a job."""

DocumentIdField = Annotated[str, Field(pattern=patterns.DOCUMENT_ID)]


def is_finite(value: Any) -> bool:
    """Return whether no number in a JSON value is NaN or infinite."""
    unchecked: list[Any] = [[value]]
    while unchecked:
        part = unchecked.pop()
        for each in part.values() if isinstance(part, dict) else part:
            value_type = type(each)  # a body has up to a million values
            if value_type is float:
                if not math.isfinite(each):
                    return False
            elif value_type is dict or value_type is list:
                unchecked.append(each)
    return True

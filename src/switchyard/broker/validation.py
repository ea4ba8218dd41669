"""Bound what a value with very many errors costs. A body of two megabytes may have a million wrong
values, and pydantic lists all of its errors or none: for seconds, in which an event loop does
nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

MAX_ERRORS = 1_000
"""Errors of one value that are listed. A thousand take up to ten milliseconds."""
TOO_MANY_ERRORS = "too_many_errors"
"""The type of the one error that stands for more."""
_TEXT = "{count} values are wrong, too many to list"


def list_errors(error: ValidationError) -> Sequence[Mapping[str, Any]]:
    """Return the errors, without the offending values; one that stands for all if there are more
    than MAX_ERRORS."""
    if (count := error.error_count()) <= MAX_ERRORS:
        return error.errors(include_url=False, include_input=False)
    text = _TEXT.format(count=f"{count:,}")
    return [{"type": TOO_MANY_ERRORS, "loc": (), "msg": text}]


def bound_errors(error: ValidationError) -> Exception:
    """Return the error to raise in a validator instead of this one: itself, or one that stands for
    more than MAX_ERRORS, for code that lists all errors."""
    if (count := error.error_count()) <= MAX_ERRORS:
        return error
    return PydanticCustomError(TOO_MANY_ERRORS, _TEXT, {"count": f"{count:,}"})

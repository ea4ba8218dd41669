"""The errors of a value with very many of them are limited."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from switchyard.api.models.request_model import RequestModel
from switchyard.broker.message import JobMessage, describe
from switchyard.broker.validation import MAX_ERRORS, list_errors


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Body(RequestModel):
    model_config = ConfigDict(extra="forbid")


def unknown_fields(number: int) -> dict[str, Any]:
    return dict.fromkeys(map(str, range(number)), 0)


def error_of(model: type[BaseModel], values: dict[str, Any]) -> ValidationError:
    with pytest.raises(ValidationError) as raised:
        model.model_validate(values)
    return raised.value


def test_up_to_max_errors_are_listed() -> None:
    assert len(list_errors(error_of(Strict, unknown_fields(MAX_ERRORS)))) == MAX_ERRORS
    assert error_of(Body, unknown_fields(MAX_ERRORS)).error_count() == MAX_ERRORS


@pytest.mark.parametrize("model", [Strict, Body])
def test_more_errors_are_replaced_by_one(model: type[BaseModel]) -> None:
    (error,) = list_errors(error_of(model, unknown_fields(MAX_ERRORS + 1)))
    assert error["msg"] == "1,001 values are wrong, too many to list"
    assert describe(error_of(model, unknown_fields(MAX_ERRORS + 1))) == error["msg"]


def test_the_description_has_the_number_of_omitted_errors() -> None:
    assert describe(error_of(Strict, unknown_fields(7))).endswith(
        "4: there is no such field; and 2 more"
    )


def test_the_number_of_tags_is_checked_before_the_tags() -> None:
    metadata = {"tags": dict.fromkeys(map(str, range(17)), 0)}
    fields = {"job_id": "a", "job_type": "noop", "priority": 1, "payload": {}}
    error = error_of(JobMessage, {**fields, "metadata": metadata})
    assert "at most 16 tags" in describe(error)
    assert "tags.0" not in describe(error)

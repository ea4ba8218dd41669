"""A value with very many errors costs no more than one with a few."""

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


def unknown(number: int) -> dict[str, Any]:
    return dict.fromkeys(map(str, range(number)), 0)


def error_of(model: type[BaseModel], values: dict[str, Any]) -> ValidationError:
    with pytest.raises(ValidationError) as raised:
        model.model_validate(values)
    return raised.value


def test_as_many_errors_as_people_read_are_listed() -> None:
    assert len(list_errors(error_of(Strict, unknown(MAX_ERRORS)))) == MAX_ERRORS
    assert error_of(Body, unknown(MAX_ERRORS)).error_count() == MAX_ERRORS


@pytest.mark.parametrize("model", [Strict, Body])
def test_one_error_stands_for_more(model: type[BaseModel]) -> None:
    (only,) = list_errors(error_of(model, unknown(MAX_ERRORS + 1)))
    assert only["msg"] == "1,001 values are wrong, too many to list"
    assert describe(error_of(model, unknown(MAX_ERRORS + 1))) == only["msg"]


def test_a_text_of_errors_tells_how_many_are_left_out() -> None:
    assert describe(error_of(Strict, unknown(7))).endswith("4: there is no such field; and 2 more")


def test_tags_are_counted_before_they_are_read() -> None:
    metadata = {"tags": dict.fromkeys(map(str, range(17)), 0)}
    fields = {"job_id": "a", "job_type": "noop", "priority": 1, "payload": {}}
    error = error_of(JobMessage, {**fields, "metadata": metadata})
    assert "at most 16 tags" in describe(error)
    assert "tags.0" not in describe(error)

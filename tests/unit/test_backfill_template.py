from typing import Any

import pytest

from switchyard.broker.message import MAX_BODY_BYTES
from switchyard.services.engine.backfill.template import MissingField, PayloadTooLarge, render

ITEM = {"id": 7, "a b": "x", "$id": "y", "author": {"name": "Ada"}, "none": None}


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("{id}", 7),
        ("{ id }", 7),
        ("paper {id}", "paper 7"),
        ("{a b}/{$id}", "x/y"),
        ("{author.name}", "Ada"),
        ("{none}", None),
        ("<{none}>", "<>"),
        ("{{id}}", "{id}"),
        ("{{{id}}}", "{7}"),
        ({"x": ["{id}", 1]}, {"x": [7, 1]}),
    ],
)
def test_fields_become_the_values_of_the_item(template: Any, rendered: Any) -> None:
    assert render(template, ITEM) == rendered


@pytest.mark.parametrize("template", ["{}", "a {", "} b", "{id", "{{id}"])
def test_a_brace_without_a_field_name_is_refused(template: str) -> None:
    with pytest.raises(MissingField, match="names no field"):
        render(template, ITEM)


def test_an_item_with_many_fields_names_the_first() -> None:
    item = {f"field{number}": number for number in range(3_000)}
    with pytest.raises(MissingField, match=r"field19, …$"):
        render("{n}", item)


@pytest.mark.parametrize(
    "template",
    [
        "{text}" * 100_000,
        ["{text}"] * 100_000,
        {"a": ["{all}"] * 100_000},
        "{all}" * 100_000,
    ],
    ids=["text", "whole texts", "whole objects", "objects as text"],
)
def test_a_small_template_does_not_make_a_huge_payload_of_a_large_item(template: Any) -> None:
    item = {"text": "x" * 500_000, "all": {"text": "x" * 500_000}}
    with pytest.raises(PayloadTooLarge, match=r"larger than the 1,048,576 bytes"):
        render(template, item)


def test_a_payload_as_large_as_a_job_may_be_is_filled_in() -> None:
    text = "x" * (MAX_BODY_BYTES // 2)
    assert render(["{text}", "{text}"], {"text": text}) == [text, text]


def test_a_template_that_is_nested_too_deeply_is_refused() -> None:
    template: Any = "{n}"
    for _ in range(5_000):
        template = [template]
    with pytest.raises(PayloadTooLarge, match="nested too deeply"):
        render(template, {"n": 1})

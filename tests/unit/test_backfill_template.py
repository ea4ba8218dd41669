from typing import Any

import pytest

from switchyard.services.backfill.template import MissingField, render

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
def test_a_brace_that_names_no_field_is_no_text(template: str) -> None:
    with pytest.raises(MissingField, match="names no field"):
        render(template, ITEM)


def test_an_item_with_many_fields_names_the_first() -> None:
    item = {f"field{number}": number for number in range(3_000)}
    with pytest.raises(MissingField, match=r"field19, …$"):
        render("{n}", item)

"""Every field and parameter of the HTTP API says what it is."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from switchyard.api.app import create_app
from switchyard.api.http import openapi
from switchyard.api.http.field_descriptions import ANYWHERE, OF_MODEL


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app().openapi()


def silent(document: dict[str, Any]) -> Iterator[str]:
    """Fields as `Model.field`, and parameters as `get /path name`, without a description."""
    for model, schema in document["components"]["schemas"].items():
        for name, field in schema.get("properties", {}).items():
            if not field.get("description"):
                yield f"{model}.{name}"
    for path, item in document["paths"].items():
        for verb, operation in item.items():
            for parameter in operation.get("parameters", ()):
                if not parameter.get("description"):
                    yield f"{verb} {path} {parameter['name']}"


def test_the_document_is_made_without_a_warning() -> None:
    """In a process of its own: pydantic warns once, where a model is built for the first time."""
    program = "from switchyard.api.app import create_app; create_app().openapi()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_field_and_no_parameter_is_without_a_description(document: dict[str, Any]) -> None:
    assert list(silent(document)) == []


def test_no_description_is_left_of_a_field_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openapi, "fill_in", lambda document: None)
    needed = set(silent(create_app().openapi()))
    by_name = {each.replace(" ", ".").rsplit(".", 1)[-1] for each in needed - set(OF_MODEL)}

    assert set(OF_MODEL) - needed == set()
    assert set(ANYWHERE) - by_name == set()

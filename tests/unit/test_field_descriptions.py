"""Every field and parameter of the HTTP API has a description."""

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


def undescribed(document: dict[str, Any]) -> Iterator[str]:
    """Yield fields without a description as `Model.field`, and parameters as `get /path name`."""
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
    """Run in a new process, because pydantic warns only when it first builds a model."""
    program = "from switchyard.api.app import create_app; create_app().openapi()"
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_every_field_and_parameter_has_a_description(document: dict[str, Any]) -> None:
    assert list(undescribed(document)) == []


def test_every_description_is_of_an_existing_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openapi, "fill_in", lambda document: None)
    needed = set(undescribed(create_app().openapi()))
    by_name = {each.replace(" ", ".").rsplit(".", 1)[-1] for each in needed - set(OF_MODEL)}

    assert set(OF_MODEL) - needed == set()
    assert set(ANYWHERE) - by_name == set()

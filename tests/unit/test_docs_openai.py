"""docs/openai.md, "What is passed on": its table has each parameter and path that the package
`openai` knows, and each is treated as the table says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
from fastapi.routing import APIRoute
from openai.types import (
    batch_create_params,
    completion_create_params,
    embedding_create_params,
    file_create_params,
)
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from pydantic import ValidationError

from switchyard.api.llm import openai_batch_endpoints, openai_endpoints
from switchyard.api.models import openai as models
from switchyard.services.llm import endpoint_requests
from switchyard.services.llm.llm_requests import ChatRequest
from switchyard.services.llm.openai_form import ENDPOINTS
from tests.support.docs import CODE, ROOT

PARAMETERS: Mapping[str, set[str]] = {
    "/v1/chat/completions": {*chat_create_params.CompletionCreateParamsStreaming.__annotations__},
    "/v1/completions": {*completion_create_params.CompletionCreateParamsStreaming.__annotations__},
    "/v1/embeddings": {*embedding_create_params.EmbeddingCreateParams.__annotations__},
    "/v1/responses": {*response_create_params.ResponseCreateParamsStreaming.__annotations__},
    "/v1/batches": {*batch_create_params.BatchCreateParams.__annotations__},
    "/v1/files": {*file_create_params.FileCreateParams.__annotations__},
}
"""Parameters by endpoint."""
BODY_CLASS_AND_WRITER: Mapping[str, tuple[Any, Callable[[Any], dict[str, Any]]]] = {
    "/v1/chat/completions": (
        models.ChatCompletionBody,
        lambda payload: ChatRequest.model_validate(payload).question().request_body(),
    ),
    "/v1/completions": (
        models.CompletionBody,
        lambda payload: endpoint_requests.TextCompletionRequest.model_validate(payload).body(),
    ),
    "/v1/embeddings": (
        models.EmbeddingsBody,
        lambda payload: endpoint_requests.EmbeddingsRequest.model_validate(payload).body(),
    ),
    "/v1/responses": (
        models.ResponsesBody,
        lambda payload: endpoint_requests.ResponsesRequest.model_validate(payload).body(),
    ),
}
"""By endpoint: the class of the body of its requests, and what makes the server's body from a job's
payload."""
VALUES: Mapping[str, Any] = {
    "messages": [{"role": "user", "content": "x"}],
    "input": "x",
    "prompt": "x",
    "stream": True,
    "stream_options": {"include_usage": True},
    "encoding_format": "base64",
    "background": True,
    "model": "m",
}
"""Valid values of the parameters that do not accept just any value."""
ANY_VALUE = {"odd": [1, "x"]}
RESOURCE_CALL = re.compile(
    r'_(get|post|delete|get_api_list)\(\s*(?:path_template\(|f)?\s*"(/[^"?]*)', re.MULTILINE
)
METHODS = {"get": "GET", "get_api_list": "GET", "post": "POST", "delete": "DELETE"}


def table_rows() -> Iterator[tuple[str, str, str]]:
    """Return the endpoint, the parameters and the treatment of each row of the table."""
    page = (ROOT / "docs" / "openai.md").read_text()
    section = page.partition("## What is passed on\n")[2].partition("\n## ")[0]
    endpoint = ""
    for line in section.splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            first, names, treatment = (each.strip() for each in line.split("|")[1:4])
            endpoint = first or endpoint
            yield endpoint, names, treatment


def treatment_by_name(url: str) -> dict[str, str]:
    """Return the treatment of each parameter of an endpoint, by the table."""
    treatments: dict[str, str] = {}
    for endpoint, names, treatment in table_rows():
        if endpoint in ("all", f"`{url}`"):
            treatments |= dict.fromkeys(re.findall(r"`([a-z_]+)`", names), treatment)
    return treatments


def send_parameter(url: str, name: str) -> tuple[Any, dict[str, Any]]:
    """Return the value of a parameter in a request, and the body that a server gets."""
    input_name = ENDPOINTS[url].input_name
    request_body = {"model": "m", input_name: VALUES[input_name], name: VALUES.get(name, ANY_VALUE)}
    body_class, body_of = BODY_CLASS_AND_WRITER[url]
    body = body_class.model_validate(request_body)
    fields = {"model": body.model, input_name: request_body[input_name], **(body.model_extra or {})}
    return request_body[name], body_of(ENDPOINTS[url].payload(fields))


@pytest.mark.parametrize("url", PARAMETERS)
def test_the_table_names_every_parameter_of_the_package(url: str) -> None:
    assert PARAMETERS[url] <= treatment_by_name(url).keys()


@pytest.mark.parametrize("url", BODY_CLASS_AND_WRITER)
def test_every_parameter_is_treated_as_the_table_says(url: str) -> None:
    expected_treatments = treatment_by_name(url)
    for name in {*PARAMETERS[url], "unheard_of"}:
        treatment = expected_treatments.get(name, "passed on")
        if treatment.startswith("refused"):
            with pytest.raises(ValidationError):
                send_parameter(url, name)
            continue
        value, body = send_parameter(url, name)
        is_passed_on = treatment.startswith("passed on")
        assert is_passed_on or treatment.startswith("answered here"), (name, treatment)
        assert (body.get(name) == value) is is_passed_on, name


def test_the_table_names_every_path_of_the_package() -> None:
    folder = Path(openai.__file__).parent / "resources"
    package_paths = {
        (METHODS[method], f"/v1{re.sub(r'{[^}]*}', '{}', path)}")
        for file in folder.rglob("*.py")
        for method, path in RESOURCE_CALL.findall(file.read_text())
    }
    assert len(package_paths) > 100, "the package has changed: the paths are not found"
    served = {
        (method, re.sub(r"{[^}]*}", "{}", route.path))
        for router in (openai_endpoints.router, openai_batch_endpoints.router)
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    refused = {
        re.sub(r"{[^}]*}", "{}", path)
        for _, names, treatment in table_rows()
        if treatment.startswith("refused")
        for path in CODE.findall(names)
    }
    resources = {path.split("/")[2] for _, path in served}
    missing = set()
    for method, path in package_paths - served:
        first = path.split("/")[2]
        if first in resources:
            if path not in refused and f"{method} {path}" not in refused:
                missing.add(f"{method} {path}")
        elif f"/v1/{first}" not in refused:
            missing.add(f"/v1/{first}")
    assert not missing

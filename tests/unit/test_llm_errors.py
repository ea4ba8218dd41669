"""Errors of the `openai` package are translated, and a server's rate limits are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from switchyard.services.common.errors import PermanentError, RetryableError
from switchyard.services.llm.endpoint_requests import check_completions, check_embeddings
from switchyard.services.llm.llm_errors import (
    InvalidLlmResponse,
    LlmCut,
    LlmLimited,
    LlmRefused,
    LlmTimeout,
    LlmUnavailable,
    LlmUnreachable,
    translate,
)
from switchyard.services.llm.model_api import ModelApi
from switchyard.services.llm.records.llm_servers import WAIT_FOR_SERVER

REQUEST: Any = type("Request", (), {"url": "http://there/v1"})()
# HTTP statuses by what they mean for the job that asked.
PERMANENT_STATUSES = {400, 401, 403, 404, 405, 410, 413, 415, 422, 451}
WAIT_STATUSES = {402, 429, 503, 529}
RETRY_STATUSES = {408, 409, 425, 500, 501, 502, 504, 507, 599}


def fake_response(status: int, **headers: str) -> Any:
    """Return a response with only those attributes that the SDK's errors read."""
    http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    fields = {"status_code": status, "headers": http_headers, "request": REQUEST}
    return type("Response", (), fields)()


def status_error(
    kind: type[openai.APIStatusError], status: int, **headers: str
) -> openai.APIStatusError:
    return kind("no luck", response=fake_response(status, **headers), body={"message": "no luck"})


def error_classes() -> Iterator[type[openai.OpenAIError]]:
    """Yield all error classes of the package."""
    unvisited = [openai.OpenAIError]
    while unvisited:
        each = unvisited.pop()
        yield each
        unvisited.extend(each.__subclasses__())


def make_error(kind: type[openai.OpenAIError]) -> openai.OpenAIError:
    """Make an error of a class without its constructor."""
    error = kind.__new__(kind)
    Exception.__init__(error, "no luck")
    error.__dict__.update(message="no luck", body=None, code=None, request=REQUEST)
    if isinstance(error, openai.APIStatusError):
        status = getattr(kind, "status_code", None)
        fixed = status if isinstance(status, int) else 500
        error.__dict__.update(status_code=fixed, response=fake_response(fixed))
    return error


@pytest.mark.parametrize("kind", list(error_classes()), ids=lambda kind: kind.__name__)
def test_every_error_class_of_the_package_is_mapped(kind: type[openai.OpenAIError]) -> None:
    meaning = translate(make_error(kind))
    assert isinstance(meaning, LlmUnavailable | InvalidLlmResponse | LlmRefused)
    assert isinstance(meaning, RetryableError) != isinstance(meaning, PermanentError)
    assert "LLM server" in str(meaning) or "model" in str(meaning)


@pytest.mark.parametrize("status", sorted(PERMANENT_STATUSES | WAIT_STATUSES | RETRY_STATUSES))
def test_every_http_status_is_permanent_waits_or_is_retried(status: int) -> None:
    meaning = translate(status_error(openai.APIStatusError, status))
    assert isinstance(meaning, LlmRefused) == (status in PERMANENT_STATUSES)
    assert isinstance(meaning, LlmLimited) == (status in WAIT_STATUSES)
    assert (isinstance(meaning, RetryableError) and meaning.counts) == (status in RETRY_STATUSES)


def test_only_some_refusals_are_server_specific() -> None:
    refusals = [translate(status_error(openai.APIStatusError, each)) for each in (400, 401, 404)]
    assert [each.is_server_specific for each in refusals if isinstance(each, LlmRefused)] == [
        False,
        True,
        True,
    ]


def test_a_server_whose_account_is_empty_is_paused_for_long() -> None:
    error = status_error(openai.RateLimitError, 429, retry_after="1")
    error.__dict__["code"] = "insufficient_quota"
    meaning = translate(error)
    assert isinstance(meaning, LlmLimited)
    assert meaning.after == 600


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("ConnectError", LlmUnreachable),
        ("ConnectTimeout", LlmUnreachable),
        ("ReadError", LlmCut),
        ("RemoteProtocolError", LlmCut),
        ("TooManyRedirects", LlmRefused),
    ],
)
def test_a_connection_error_counts_as_an_attempt_if_the_server_was_reached(
    cause: str, expected: type[Exception]
) -> None:
    error = openai.APIConnectionError(request=REQUEST)
    error.__cause__ = type(cause, (Exception,), {})("gone")
    meaning = translate(error)
    assert type(meaning) is expected
    if isinstance(meaning, RetryableError):
        assert meaning.counts == (expected is not LlmUnreachable)


def test_a_timeout_of_the_sdk_is_an_llm_timeout() -> None:
    assert type(translate(openai.APITimeoutError(request=REQUEST))) is LlmTimeout


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({}, 0),
        ({"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "7s"}, 0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "7s"}, 7),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m30.5s"}, 90.5),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20ms"}, 0.02),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "12"}, 12),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "9999h"}, 120),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "soon"}, 0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "-5s"}, 0),
        ({"x-ratelimit-remaining-requests": "0"}, 0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1" * 5000}, 0),
    ],
)
def test_the_wait_for_a_rate_limit_is_read_from_the_headers(
    headers: dict[str, str], wait: float
) -> None:
    assert ModelApi().quota_wait(headers) == wait


def test_the_ledger_knows_the_errors_of_requests_that_wait_for_a_server() -> None:
    waiting_errors = {
        each.__name__ for each in LlmUnavailable.__subclasses__() if not each("").counts
    }
    assert waiting_errors == set(WAIT_FOR_SERVER)


@pytest.mark.parametrize(
    ("check", "answer", "quote"),
    [
        (
            check_embeddings,
            {"error": "no\x1b[2J"},
            r'2 vectors: it answered "{"error": "no\u001b[2J"}"',
        ),
        (
            check_embeddings,
            {"data": [{"embedding": [1.0]}, {"embedding": ["x"]}]},
            '"embedding": ["x"]',
        ),
        (check_completions, "busy", '2 texts: it answered "busy"'),
        (check_completions, {"choices": [{"text": "a"}, {"text": None}]}, '{"text": null}'),
    ],
)
def test_an_unusable_answer_is_quoted(check: Any, answer: Any, quote: str) -> None:
    with pytest.raises(InvalidLlmResponse) as caught:
        check(answer, 2)
    assert quote in str(caught.value)

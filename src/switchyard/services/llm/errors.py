"""What the errors of an OpenAI-compatible server mean for a job.

Retried: 408, 409, 429, every 5xx, network errors, time-outs, and answers that make no sense (a
server that is starting up, a proxy's error page). Not retried: what the server will say again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.services.jobs.outcomes import PermanentError, RetryableError

if TYPE_CHECKING:
    import openai

_RETRYABLE = frozenset({408, 409, 425, 429})


class LlmUnavailable(RetryableError):
    """The server can't be reached, is overloaded, or broke down over the request."""


class LlmNonsense(RetryableError):
    """The server answered 200 with something that is not an answer."""


class LlmRefused(PermanentError):
    """The server refuses this request: key, model, length or content."""


def translate(error: openai.APIError) -> LlmUnavailable | LlmNonsense | LlmRefused:
    """The error of this module that an error of the `openai` package stands for."""
    import openai

    from switchyard.services.jobs.retry import retry_after

    if isinstance(error, openai.APITimeoutError):
        return LlmUnavailable("the LLM server did not answer in time")
    if isinstance(error, openai.APIStatusError):
        status = error.status_code
        text = f"the LLM server answered {status}: {_message(error)}"
        if status in _RETRYABLE or status >= 500:
            return LlmUnavailable(text, after=retry_after(error))
        return LlmRefused(text)
    if isinstance(error, openai.APIResponseValidationError):
        return LlmNonsense(f"the LLM server's answer makes no sense: {error.message}")
    cause = error.__cause__
    if type(cause).__name__ == "TooManyRedirects":  # of the client that the SDK brings with it
        return LlmRefused("the LLM server's redirects lead in a circle")
    detail = f" ({type(cause).__name__}: {cause})" if cause is not None else ""
    return LlmUnavailable(f"the LLM server can't be reached{detail}"[:500])


def _message(error: openai.APIStatusError) -> str:
    """What the server said, shortened; never the request."""
    body = error.body
    said = body.get("message") if isinstance(body, dict) else body
    return " ".join(str(said or error.message).split())[:300]

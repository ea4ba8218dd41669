"""Errors of a model server, by what they mean for a job.

Of no concern to the job, and no attempt is used up: 429 and 503 (LlmLimited), a server that can't
be connected to (LlmUnreachable), no room to ask (LlmSaturated), answers that are cut or empty while
the server has more calls than it bears (LlmOverloaded). Tried again, with an attempt: 408, 409,
425, every other 5xx, cut connections, time-outs, and answers that make no sense (a server that is
starting up, a proxy's error page). Not tried again: what the server will say again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from switchyard.services.common.errors import DependencyUnavailable, PermanentError, RetryableError

if TYPE_CHECKING:
    import openai

_RETRYABLE = frozenset({408, 409, 425})
_LIMITED = frozenset({429, 503, 529})
_ELSEWHERE = frozenset({401, 403, 404})
"""A key, a right or a model that this server lacks; another may have it."""
_NO_MONEY = 600.0
"""Seconds until a server is asked again that says that its account is empty."""
_TOO_LONG = re.compile(
    r"context (?:length|window|size|limit)|(?:input|prompt|request)\b.{0,40} too (?:long|large)"
    r"|maximum (?:context|input|prompt|sequence|model) length|max_model_len|maximum.{0,40} tokens",
    re.IGNORECASE,
)
"""What servers say of a request that is longer than the model's context."""
_PAYMENT_REQUIRED = 402
_NO_CREDIT = "credit balance is too low"
"""What Anthropic's API says of an empty account, with 400."""
_NOT_CONNECTED = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
"""Errors of the HTTP client that the SDK brings: the request never reached a server."""


class LlmUnavailable(RetryableError):
    """The server is overloaded, or broke down over the request."""

    may_cost = True
    """It may have begun to answer, and charge for that."""


class LlmLimited(DependencyUnavailable, LlmUnavailable):
    """The server asks for patience; `after` seconds, where it says for how long."""

    may_cost = False


class LlmUnreachable(DependencyUnavailable, LlmUnavailable):
    """There is no connection to the server."""

    may_cost = False


class LlmSaturated(DependencyUnavailable, LlmUnavailable):
    """The servers get as many requests as they may; `after` seconds there may be room."""

    may_cost = False


class LlmOverloaded(DependencyUnavailable, LlmUnavailable):
    """The server cut answers, or sent empty ones, while it had several calls: it gets fewer now."""


class LlmCut(LlmUnavailable):
    """The server broke off an answer that had begun, or the connection."""

    in_stream = False
    """Without a stream, the server may say why."""


class LlmTimeout(LlmUnavailable):
    """The server did not answer in time."""


class InvalidLlmResponse(RetryableError):
    """The server answered 200 with something that is not an answer."""

    may_cost = True


class EmptyLlmAnswer(InvalidLlmResponse):
    """There is no text in the answer, and no reasoning either."""

    in_stream = False
    """Without a stream, the server may say why."""


class LlmRefused(PermanentError):
    """The server refuses this request: key, model, length or content."""

    def __init__(
        self,
        message: str,
        *,
        elsewhere: bool = False,
        may_cost: bool = False,
        missing: bool = False,
        status: int | None = None,
    ) -> None:
        self.elsewhere = elsewhere
        """Another server may not refuse it."""
        self.missing = missing
        """The server has no such model or endpoint."""
        self.status = status
        """Of the server's HTTP answer, where it is one that refuses."""
        self.may_cost = may_cost
        """It was refused after an answer had begun."""
        super().__init__(message)


class LlmBadRequest(LlmRefused):
    """The server finds the request itself wrong: every server of this kind would."""


class LlmContextTooLong(LlmBadRequest):
    """The request is longer than the model's context."""


class LlmDeclined(LlmRefused):
    """The model, or a filter before or behind it, declines to answer."""


def add_server_name(error: Exception, server: str) -> None:
    """Say which of several servers it was."""
    error.args = (f"{server}: {error}",)


def translate(error: openai.OpenAIError) -> LlmUnavailable | InvalidLlmResponse | LlmRefused:
    """Return the error of this module that stands for an error of the `openai` package."""
    import openai

    if isinstance(error, openai.APITimeoutError):
        if _cause_class_names(error) & _NOT_CONNECTED:
            return LlmUnreachable("the model server can't be reached in time")
        return LlmTimeout("the model server did not answer in time")
    if isinstance(error, openai.APIStatusError):
        return _status_error(error)
    if isinstance(error, openai.APIResponseValidationError):
        return InvalidLlmResponse(f"the model server's answer makes no sense: {error.message}")
    if isinstance(error, openai.LengthFinishReasonError):
        return InvalidLlmResponse("the model server's answer ends in the middle")
    if isinstance(error, openai.ContentFilterFinishReasonError):
        return LlmDeclined("the model declines to answer: content filter", may_cost=True)
    if isinstance(error, openai.APIConnectionError):
        return _connection_error(error)
    if isinstance(error, openai.APIError):  # in the middle of a stream
        return LlmCut(f"the model server broke off: {shortened(error.message)}")
    return LlmRefused(f"unexpected error while calling a model: {shortened(error)}")


def _status_error(error: openai.APIStatusError) -> LlmUnavailable | LlmRefused:
    from switchyard.services.common.durations import retry_after

    status = error.status_code
    text = f"the model server answered {status}: {_server_message(error)}"
    if status in _LIMITED:
        after = retry_after(error)
        if error.code == "insufficient_quota":
            after = max(after or 0.0, _NO_MONEY)
        return LlmLimited(text, after=after)
    if status == _PAYMENT_REQUIRED or _NO_CREDIT in text:
        return LlmLimited(text, after=_NO_MONEY)
    if status in _RETRYABLE or status >= 500:
        failed = LlmUnavailable(text, after=retry_after(error))
        failed.may_cost = False  # nobody charges for an error of their own
        return failed
    if status in _ELSEWHERE:
        return LlmRefused(text, elsewhere=True, missing=status == 404, status=status)
    return _refusal_class(error)(text, status=status)


def _refusal_class(error: openai.APIStatusError) -> type[LlmRefused]:
    """Return what a refusal means: by the server's code for it, and where it has none by its
    words."""
    if error.code == "content_filter":
        return LlmDeclined
    if error.code == "context_length_exceeded" or _TOO_LONG.search(_server_message(error)):
        return LlmContextTooLong
    return LlmBadRequest


def _connection_error(error: openai.APIConnectionError) -> LlmUnavailable | LlmRefused:
    cause = error.__cause__
    names = _cause_class_names(error)
    if "TooManyRedirects" in names:
        return LlmRefused("the model server's redirects lead in a circle")
    detail = f" ({type(cause).__name__}: {cause})" if cause is not None else ""
    text = f"the model server can't be reached{detail}"[:500]
    return LlmUnreachable(text) if names & _NOT_CONNECTED else LlmCut(text)


def _cause_class_names(error: BaseException) -> set[str]:
    """Return the names of the classes of an error's cause: the SDK's HTTP client can't be imported
    here."""
    return {each.__name__ for each in type(error.__cause__).__mro__}


def _server_message(error: openai.APIStatusError) -> str:
    """Return the server's message, shortened; never the request."""
    body = error.body
    message = body.get("message") if isinstance(body, dict) else body
    return shortened(message or error.message)


def shortened(message: object, most: int = 300) -> str:
    """Return a message in one line of at most so many characters."""
    return " ".join(str(message).split())[:most]

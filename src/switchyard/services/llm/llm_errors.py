"""Errors of a model server, by what they mean for a job.

Tried again, and no attempt is used up: 429 and 503 (LlmLimited), a server that can't be connected
to (LlmUnreachable), no slot in time (LlmSaturated), answers that are cut or empty while the server
has more calls than it can serve (LlmOverloaded). Tried again, with an attempt: 408, 409, 425, every
other 5xx, cut connections, time-outs, and answers that make no sense (a server that is starting up,
a proxy's error page). Not tried again: refusals that the server would repeat (LlmRefused).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from switchyard.services.common.errors import DependencyUnavailable, PermanentError, RetryableError

if TYPE_CHECKING:
    import openai

_RETRYABLE_STATUSES = frozenset({408, 409, 425})
_LIMITED_STATUSES = frozenset({429, 503, 529})
_SERVER_SPECIFIC_STATUSES = frozenset({401, 403, 404})
"""Statuses for a wrong key, a missing right or an unknown model: another server may take the
request."""
_NO_CREDIT_PAUSE = 600.0
"""Seconds until a server whose account is empty is asked again."""
_TOO_LONG_TEXT = re.compile(
    r"context (?:length|window|size|limit)|(?:input|prompt|request)\b.{0,40} too (?:long|large)"
    r"|maximum (?:context|input|prompt|sequence|model) length|max_model_len|maximum.{0,40} tokens",
    re.IGNORECASE,
)
"""What servers say of a request that is longer than the model's context."""
_PAYMENT_REQUIRED_STATUS = 402
_NO_CREDIT_TEXT = "credit balance is too low"
"""What Anthropic's API says of an empty account, with 400."""
_NOT_CONNECTED = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
"""Errors of the HTTP client that the SDK brings: the request never reached a server."""


class LlmUnavailable(RetryableError):
    """The server is overloaded, or broke down over the request."""

    may_cost = True
    """Whether the server may charge the call: it may have begun to answer."""


class LlmLimited(DependencyUnavailable, LlmUnavailable):
    """The server's limit on requests is reached; `after` is the seconds for which it asks to be
    left alone, None if it does not say."""

    may_cost = False


class LlmUnreachable(DependencyUnavailable, LlmUnavailable):
    """There is no connection to the server."""

    may_cost = False


class LlmSaturated(DependencyUnavailable, LlmUnavailable):
    """No slot at a server was free in time; `after` is the seconds until there may be one."""

    may_cost = False


class LlmOverloaded(DependencyUnavailable, LlmUnavailable):
    """The server cut answers, or sent empty ones, while it had several calls: it gets fewer now."""


class LlmCut(LlmUnavailable):
    """The server broke off an answer that had begun, or the connection."""

    in_stream = False
    """Whether it happened in a stream: the request is sent again without one, as the server may
    then say why."""


class LlmTimeout(LlmUnavailable):
    """The server did not answer in time."""


class InvalidLlmResponse(RetryableError):
    """The server answered 200 with something that is not an answer."""

    may_cost = True


class EmptyLlmAnswer(InvalidLlmResponse):
    """There is no text in the answer, and no reasoning either."""

    in_stream = False
    """As in `LlmCut`."""


class LlmRefused(PermanentError):
    """The server refuses this request: key, model, length or content."""

    def __init__(
        self,
        message: str,
        *,
        is_server_specific: bool = False,
        may_cost: bool = False,
        is_missing: bool = False,
        status: int | None = None,
    ) -> None:
        self.is_server_specific = is_server_specific
        """Whether the reason lies in this server (its key, rights, models), so that another server
        may take the request."""
        self.is_missing = is_missing
        """Whether the server has no such model or endpoint."""
        self.status = status
        """HTTP status of the refusal; None where the server answered 200 or was not asked."""
        self.may_cost = may_cost
        """Whether it was refused after an answer had begun, which the server may charge."""
        super().__init__(message)


class LlmBadRequest(LlmRefused):
    """The server finds the request itself invalid: every server of this kind would."""


class LlmContextTooLong(LlmBadRequest):
    """The request is longer than the model's context."""


class LlmDeclined(LlmRefused):
    """The model, or a filter before or behind it, declines to answer."""


def add_server_name(error: Exception, server: str) -> None:
    """Put the name of the server, one of several, before the error's text."""
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
    if status in _LIMITED_STATUSES:
        pause = retry_after(error)
        if error.code == "insufficient_quota":
            pause = max(pause or 0.0, _NO_CREDIT_PAUSE)
        return LlmLimited(text, after=pause)
    if status == _PAYMENT_REQUIRED_STATUS or _NO_CREDIT_TEXT in text:
        return LlmLimited(text, after=_NO_CREDIT_PAUSE)
    if status in _RETRYABLE_STATUSES or status >= 500:
        unavailable = LlmUnavailable(text, after=retry_after(error))
        unavailable.may_cost = False  # a server does not charge for its own error
        return unavailable
    if status in _SERVER_SPECIFIC_STATUSES:
        return LlmRefused(text, is_server_specific=True, is_missing=status == 404, status=status)
    return _refusal_class(error)(text, status=status)


def _refusal_class(error: openai.APIStatusError) -> type[LlmRefused]:
    """Choose the error class for a refusal by the server's error code, or else by its message."""
    if error.code == "content_filter":
        return LlmDeclined
    if error.code == "context_length_exceeded" or _TOO_LONG_TEXT.search(_server_message(error)):
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


def shortened(message: object, max_length: int = 300) -> str:
    """Shorten a message to one line of at most `max_length` characters."""
    return " ".join(str(message).split())[:max_length]

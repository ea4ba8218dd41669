"""What `Client` and `AsyncClient` share: options, retries, and how responses are read."""

from __future__ import annotations

import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import httpx
from pydantic import ValidationError

from switchyard.api.addresses import is_loopback
from switchyard.api.client.call import Call
from switchyard.api.client.errors import (
    ApiError,
    ApiUnavailable,
    RateLimited,
    UnexpectedResponse,
    WaitTimeout,
    error_of,
    shown_url,
)
from switchyard.api.client.operations import Operations
from switchyard.api.client.sse import SILENCE_TIMEOUT
from switchyard.services.common.durations import PollPauses
from switchyard.services.common.printable import quoted_answer

DEFAULT_URL = "http://127.0.0.1:8000"
FIRST_POLL_INTERVAL, MAX_POLL_INTERVAL = 0.1, 2.0
"""Seconds between polls of a job or document; each interval is 1.5 times the one before."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retries:
    """How often, and after which pauses, a call is repeated."""

    max_retries: int
    max_pause: float
    """Longest pause, in seconds, after which a call is repeated."""
    on_retry: Callable[[ApiError, float], object] | None = None
    """Called before each pause with the error and the seconds."""

    def pause(self, call: Call[Any], tries: int, error: ApiError) -> float | None:
        """Return the seconds after which the call is made again; None if it is not."""
        is_refused = not isinstance(error, ApiUnavailable)  # else there was no answer
        if tries >= self.max_retries or not call.can_repeat(refused=is_refused):
            return None
        if not is_refused:
            wait: float = 0.2 * 2**tries
        elif not isinstance(error, RateLimited) and error.status != 503:
            return None
        elif "job_id" in error.extra:
            return None  # the job was kept, as a dead letter
        else:
            wait = 0.5 * 2**tries if error.retry_after is None else error.retry_after
        if wait > self.max_pause:
            return None
        # Many clients that were refused together should not try again together.
        wait *= random.uniform(1, 1.2)
        if self.on_retry is not None:
            self.on_retry(error, wait)
        return wait


class ClientBase(Operations, ABC):
    """The base of both clients."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: int = 2,
        max_retry_pause: float = 30.0,
        on_retry: Callable[[ApiError, float], object] | None = None,
    ) -> None:
        """Connect to `base_url` with `api_key`: by default JOBS_API_URL and JOBS_API_KEY.

        `timeout`: seconds of silence after which a call is given up. `retries`: how often a call is
        repeated that was refused (429, 503) or got no answer; only calls that may be made twice,
        and only when the service asks for a pause of at most `max_retry_pause` seconds. `on_retry`
        is called before each such pause with the error and the seconds.
        Raises ValueError for an invalid address or key.
        """
        address = base_url or os.environ.get("JOBS_API_URL") or DEFAULT_URL
        shown = address.rpartition("@")[2]  # a password may stand before it
        try:
            self.base_url = httpx.URL(address.rstrip("/"))
        except httpx.InvalidURL as error:
            raise ValueError(f"{shown!r} is not the address of an API: {error}") from error
        if self.base_url.scheme not in ("http", "https") or not self.base_url.host:
            raise ValueError(f"{shown!r} is not the address of an API: it begins with http://")
        self._timeout = timeout
        self._retries = Retries(retries, max_retry_pause, on_retry)
        key = (api_key or os.environ.get("JOBS_API_KEY") or "").strip()
        if not _fits_header(key):
            # The message does not show it: it is a secret.
            raise ValueError("the API key has a character that is not printable ASCII")
        is_local = is_loopback(self.base_url.host)
        self._open(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=timeout,
            # The proxy of HTTP_PROXY can't reach this machine's loopback.
            trust_env=not is_local,
            # For HTTPS also on loopback, where SSL_CERT_FILE may name a certificate of one's own.
            # Loading certificates takes 30 ms: not for plain HTTP to loopback.
            verify=httpx.create_ssl_context() if self.base_url.scheme == "https" else not is_local,
        )

    @abstractmethod
    def _open(self, **options: Any) -> None:
        """Make the HTTP client with these options."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown_url(self.base_url)!r})"

    def _arguments(self, call: Call[Any], file: IO[bytes] | None) -> dict[str, Any]:
        query = {name: value for name, value in call.query.items() if value is not None}
        read_timeout = max(call.read_timeout or 0.0, self._timeout)
        for name, value in call.headers.items():
            if not _fits_header(value):
                raise ValueError(f"{name} is {value!r}: only printable ASCII can be sent there")
        arguments: dict[str, Any] = {
            "method": call.method,
            "url": call.path,
            "params": query,
            "headers": dict(call.headers),
            "timeout": httpx.Timeout(self._timeout, read=read_timeout),
        }
        if call.json is not None:
            arguments["json"] = call.json
        if file is not None:
            arguments["files"] = {"file": (call.name() or "document", file)}
            arguments["data"] = dict(call.form)
        return arguments

    def _result(self, call: Call[T], answer: httpx.Response) -> T:
        if not answer.is_success and answer.status_code not in call.answer_statuses:
            raise error_of(answer)
        try:
            return call.read(answer.content)
        except ValidationError as error:
            if not answer.is_success:
                raise error_of(answer) from error
            raise UnexpectedResponse(
                f"{shown_url(self.base_url)} does not answer {call.method} {call.path} as this "
                "client expects it: is it the API, and of the same version? It answers "
                f"{quoted_answer(answer.content)}"
            ) from error

    def _stream_options(self, last_id: str | None) -> dict[str, Any]:
        return {
            "headers": {"Last-Event-ID": last_id} if last_id else {},
            "timeout": httpx.Timeout(self._timeout, read=SILENCE_TIMEOUT),
        }


def _fits_header(text: str) -> bool:
    return text.isascii() and text.isprintable()


def poll_intervals(what: str, timeout: float | None) -> Iterator[float]:
    """Yield the seconds to wait after each poll. Raises WaitTimeout."""
    pauses = PollPauses(FIRST_POLL_INTERVAL, MAX_POLL_INTERVAL, timeout)
    while (pause := pauses.next()) is not None:
        yield pause
    yield 0.0  # for a last poll when the time is over
    raise WaitTimeout(f"{what} has not ended within {timeout:g} s")

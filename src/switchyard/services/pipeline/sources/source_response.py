"""Answers of servers, and the cache of answers with an ETag or a date."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from switchyard.services.common.durations import parse_retry_after
from switchyard.services.common.files.charsets import Charset, charset_of, decode
from switchyard.services.common.files.errors import NotStored
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.common.printable import quoted_answer
from switchyard.services.pipeline.sources.source_errors import (
    InvalidSourceResponse,
    SourceNotFound,
    SourceRefused,
    SourceUnavailable,
)

MAX_KEPT_BYTES = 4 * 1024 * 1024
"""Bytes of the largest answer that is kept; a larger one is fetched in full each time."""
VALIDATORS = {"etag": "If-None-Match", "last-modified": "If-Modified-Since"}
"""For each header of an answer, the header of a conditional request that repeats its value."""
_KEPT_HEADERS = ("content-type", "link", *VALIDATORS)
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{1,1000}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceResponse:
    """An answer that was read to its end, whatever its status."""

    label: str
    """The server's name, for people."""
    url: str
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    unchanged: bool = False
    """Whether the server says that the answer is the same as the last time."""

    def require_success(self) -> SourceResponse:
        """Return the answer itself if its status is a success.

        Raises SourceNotFound, SourceRefused (do not try again), SourceUnavailable (try again).
        """
        status, label = self.status, self.label
        if 200 <= status < 300:
            return self
        if status in (404, 410):
            raise SourceNotFound(f"{label} has nothing at {self.url[:300]} ({status})")
        if 400 <= status < 500 and status not in (408, 425):
            raise SourceRefused(f"{label} refuses the request with {status}{self._error_message()}")
        target_text = f" to {self.headers['location'][:200]}" if "location" in self.headers else ""
        retry_after = parse_retry_after(
            self.headers.get("retry-after", ""), date=self.headers.get("date", "")
        )
        reason = self._error_message() or (f": {quoted_answer(self.body)}" if self.body else "")
        raise SourceUnavailable(f"{label} answers {status}{target_text}{reason}", after=retry_after)

    def json(self) -> Any:
        """Return the body, read as JSON."""
        self.require_success()
        try:
            return json.loads(self.text())
        except (ValueError, RecursionError) as error:
            raise InvalidSourceResponse(
                f"{self.label} returned no JSON, but {quoted_answer(self.text())}"
            ) from error

    def text(self) -> str:
        """Return the body, by its byte order mark or the charset that its Content-Type names, else
        as UTF-8; bytes that do not fit are replaced. Raises what `require_success` raises."""
        return decode(self.require_success().body, self.charset)

    @property
    def charset(self) -> Charset | None:
        """The charset of the body that the server names; None where it names none."""
        return charset_of(self.headers.get("content-type"))

    def _error_message(self) -> str:
        """Return the server's message, where its answer is JSON with a message or an error."""
        try:
            answer = json.loads(decode(self.body[:10_000], self.charset))
        except (ValueError, RecursionError):
            return ""
        candidates = (
            [answer.get(name) for name in ("message", "error")] if isinstance(answer, dict) else []
        )
        message = next((each for each in candidates if isinstance(each, str) and each), "")
        return f": {message[:300]}" if message else ""


@dataclass(frozen=True, slots=True)
class SourceResponseCache:
    """Keeps the last answer of each address, if it has an ETag or a date, below `sources/` in the
    storage. Answers can be deleted at any time: then they are fetched in full."""

    storage: Storage
    server: str

    async def find(self, url: str, accept: str) -> SourceResponse | None:
        """Return the server's last answer; None where none is stored."""
        try:
            raw = await self.storage.get_async(
                self._key(url, accept), max_bytes=MAX_KEPT_BYTES + 65_536
            )
        except NotStored:
            return None
        head, _, body = raw.partition(b"\n")
        try:
            return SourceResponse(**json.loads(head), body=body, unchanged=True)
        except (ValueError, TypeError) as error:  # changed by hand
            _log.warning("stored response unreadable: %s: %s", self.server, error)
            return None

    async def keep(self, response: SourceResponse, url: str, accept: str) -> None:
        """Keep an answer if it has an ETag or a date, by which the server can tell whether it has
        changed."""
        headers = {
            name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers
        }
        if not VALIDATORS.keys() & headers or len(response.body) > MAX_KEPT_BYTES:
            return
        head = {"label": response.label, "url": response.url, "status": 200, "headers": headers}
        raw = json.dumps(head).encode() + b"\n" + response.body
        await self.storage.put_async(self._key(url, accept), raw)

    def _key(self, url: str, accept: str) -> str:
        return f"sources/{self.server}/{content_hash([url, accept])}"


def conditional_headers(headers: Mapping[str, object]) -> dict[str, str]:
    """Return the headers of a request for changes since an answer with these headers."""
    values = {condition: headers.get(name) for name, condition in VALIDATORS.items()}
    return {
        condition: value
        for condition, value in values.items()
        if isinstance(value, str) and _HEADER_VALUE.fullmatch(value)
    }

"""OpenAI's API, and what must be translated for a server with another API.

Elsewhere all questions and answers have OpenAI's form. For another API, a subclass of `ModelApi`
translates both; its name stands in `server_client.MODEL_APIS` and in the setting `LlmServer.api`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import openai

MAX_QUOTA_WAIT = 120.0
"""Longest wait, in seconds, that a header may ask for: servers' limits are by the minute, and their
clocks may differ from ours by some seconds."""
DEFAULT_ANSWER_TOKENS = 4_096
"""Tokens of an answer for which a question sets no limit."""

_DURATION_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)")
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class ModelApi:
    """OpenAI's API. Subclasses translate it to another one and back."""

    path: ClassVar[str] = "/chat/completions"
    """Path of the endpoint for chats, below the server's address."""

    def headers(self, api_key: str | None) -> Mapping[str, str | openai.Omit]:
        """Return the headers of each request, besides those of the `openai` package, which sends
        the key as OpenAI's API has it."""
        return {}

    def refusal(self, chat: Mapping[str, Any], path: str | None) -> str | None:
        """Return why this API can't take the request; None if it can. `path` is the endpoint's,
        None for chats."""
        return None

    def request_body(self, chat: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the body of the request for a chat. Raises LlmBadRequest for a chat that this API
        can't express."""
        return chat

    def completion_of(self, answer: Any) -> Any:
        """Return an answer that was not streamed in OpenAI's form; other JSON is returned as it
        is."""
        return answer

    def stream_reader(self) -> Callable[[Any], Iterable[Any]]:
        """Return a function for one stream, which translates each of its events into OpenAI's
        chunks, and raises InvalidLlmResponse."""
        return lambda event: (event,)

    def quota_wait(self, headers: Mapping[str, str]) -> float:
        """Return the seconds until a server takes requests and tokens again, by the headers of its
        answer; 0 if it takes them now, or if the headers make no sense."""
        waits = [
            _seconds_of(headers.get(f"x-ratelimit-reset-{quota}", ""))
            for quota in ("requests", "tokens")
            if headers.get(f"x-ratelimit-remaining-{quota}", "").strip() == "0"
        ]
        return min(max(waits, default=0.0), MAX_QUOTA_WAIT)


def _seconds_of(text: str) -> float:
    """Read a duration: `6m0.5s`, `20ms`, or a plain number of seconds."""
    text = text.strip()[:40]
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        return float(text)
    parts = _DURATION_PART.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        return 0.0
    return sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)

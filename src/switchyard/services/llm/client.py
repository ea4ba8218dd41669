"""One question to an OpenAI-compatible server, and its answer.

Retries come in two layers. This is layer 1: network errors alone, a few tries within seconds, so
that one dropped connection does not cost a job its attempt. Everything else goes up to the job's
own retries. The SDK's retries are off, or attempts would multiply.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from switchyard.services.llm.errors import (
    LlmNonsense,
    LlmRefused,
    LlmUnavailable,
    translate,
)
from switchyard.services.settings import Settings

if TYPE_CHECKING:
    import openai

Reply = TypeVar("Reply")

NETWORK_TRIES = 3
FIRST_WAIT = 0.5
"""Seconds before the second try; doubled for the third."""

_THINKING = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
"""What reasoning models say first where their server does not take it out."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said."""

    text: str
    model: str
    """The model that answered, as the server names it."""
    finish_reason: str | None
    """`stop`, or `length` when the answer was cut at its limit."""
    usage: Mapping[str, int]
    """Tokens: prompt_tokens, completion_tokens; empty when the server does not count."""


class LlmClient:
    """Asks one server. Open it with `LlmClient.connect`."""

    def __init__(self, api: openai.AsyncOpenAI, model: str) -> None:
        self._api = api
        self.model = model

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: Settings) -> AsyncIterator[LlmClient]:
        """A client of the server in the settings; its connections end with the context.

        Raises LlmRefused when no server is set.
        """
        if settings.llm_base_url is None:
            raise LlmRefused("no LLM server is set: JOBS_LLM_BASE_URL is empty")
        key = settings.llm_api_key
        async with open_api(
            settings.llm_base_url, key.get_secret_value() if key else None, settings.llm_timeout
        ) as api:
            yield cls(api, settings.llm_model)

    async def ask(
        self, messages: Sequence[Mapping[str, str]], *, max_tokens: int, within: float
    ) -> Answer:
        """The model's answer to a chat, at temperature 0.

        `within` is seconds for all tries together: keep it well under the job's time limit.
        Raises LlmUnavailable, LlmNonsense (try again later) or LlmRefused (do not).
        """

        async def create() -> Any:
            return await self._api.chat.completions.create(
                model=self.model,
                messages=[dict(message) for message in messages],  # type: ignore[misc]
                max_tokens=max_tokens,
                temperature=0,
            )

        return _answer(await call(create, within=within), self.model)


@asynccontextmanager
async def open_api(
    base_url: str, api_key: str | None, timeout: float
) -> AsyncIterator[openai.AsyncOpenAI]:
    """The SDK's client with its own retries off. `timeout` is seconds for one request.

    Raises LlmRefused when the address is none.
    """
    import httpx
    import openai

    try:
        port = httpx.URL(base_url).port
    except httpx.InvalidURL as error:
        raise LlmRefused(f"{base_url!r} is not the address of a server") from error
    if port is not None and not 0 < port < 65_536:
        raise LlmRefused(f"{base_url!r} is not the address of a server: there is no port {port}")

    # The SDK insists on a key and would take one from OPENAI_API_KEY; a server of one's own
    # often has none, and must not be sent another's.
    async with openai.AsyncOpenAI(
        base_url=base_url, api_key=api_key or "none", max_retries=0, timeout=timeout
    ) as api:
        yield api


async def call(create: Callable[[], Awaitable[Reply]], *, within: float) -> Reply:
    """Await `create()`, again after network errors, at most `within` seconds in all.

    Raises what `services.llm.errors.translate` makes of the SDK's errors.
    """
    import openai
    from tenacity import (
        AsyncRetrying,
        retry_if_exception,
        stop_after_attempt,
        wait_exponential_jitter,
    )

    def is_network_error(error: BaseException) -> bool:
        # A time-out is one too, but waiting that long again is for the job's own retries.
        return isinstance(error, openai.APIConnectionError) and not isinstance(
            error, openai.APITimeoutError
        )

    tries = AsyncRetrying(
        retry=retry_if_exception(is_network_error),
        stop=stop_after_attempt(NETWORK_TRIES),
        wait=wait_exponential_jitter(multiplier=FIRST_WAIT, jitter=FIRST_WAIT),
        reraise=True,
    )

    async def attempt() -> Reply:
        return await create()  # tenacity awaits nothing but coroutine functions

    limit = asyncio.timeout(within)
    try:
        async with limit:
            return await tries(attempt)
    except openai.APIError as error:
        raise translate(error) from error
    except ValueError as error:  # JSON or UTF-8 that does not decode, past the SDK's own errors
        raise LlmNonsense("the LLM server's answer is not JSON") from error
    except TimeoutError as error:
        if limit.expired():
            raise LlmUnavailable(f"the LLM server did not answer within {within:g} s") from error
        raise


def _answer(completion: Any, asked_for: str) -> Answer:
    """The SDK does not check what a server sends, so every step is checked here."""
    choices = getattr(completion, "choices", None)
    if not isinstance(choices, list) or not choices:
        raise LlmNonsense("the LLM server's answer has no choices")
    message = getattr(choices[0], "message", None)
    finish_reason = getattr(choices[0], "finish_reason", None)
    text = getattr(message, "content", None)
    refusal = getattr(message, "refusal", None)
    if finish_reason == "content_filter" or (refusal and not text):
        raise LlmRefused(f"the model declines to answer: {refusal or 'content filter'}"[:500])
    text = _THINKING.sub("", text).strip() if isinstance(text, str) else ""
    if not text:
        raise LlmNonsense("the LLM server's answer is empty")
    usage = getattr(completion, "usage", None)
    counts = {
        name: count
        for name in ("prompt_tokens", "completion_tokens")
        if isinstance(count := getattr(usage, name, None), int)
    }
    model = getattr(completion, "model", None)
    return Answer(
        text=text,
        model=model if isinstance(model, str) and model else asked_for,
        finish_reason=finish_reason if isinstance(finish_reason, str) else None,
        usage=counts,
    )

"""Send one question to a model server, and return its answer.

Retries come in two layers. This is layer 1: network errors alone, a few tries within seconds, so
that one dropped connection does not cost a job its attempt. Everything else goes up to the job's
own retries. The SDK's retries are off, or attempts would multiply.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.common.library_loading import load
from switchyard.services.common.printable import quoted_answer
from switchyard.services.common.settings import LlmServer
from switchyard.services.common.tracing import span
from switchyard.services.llm.anthropic_api import AnthropicApi
from switchyard.services.llm.bounded_http import bounded_http
from switchyard.services.llm.completion_reader import (
    Completion,
    CompletionReader,
    Timing,
    is_connection_lost,
)
from switchyard.services.llm.endpoint_requests import (
    NO_RESPONSES_SERVER,
    RESPONSES,
    Endpoint,
    count_inputs,
)
from switchyard.services.llm.llm_errors import (
    EmptyLlmAnswer,
    InvalidLlmResponse,
    LlmBadRequest,
    LlmCut,
    LlmRefused,
    LlmTimeout,
    LlmUnavailable,
    translate,
)
from switchyard.services.llm.model_api import ModelApi
from switchyard.services.llm.parameters import MAX_REPEATS, Parameters
from switchyard.services.llm.response_stream import read_response_stream

if TYPE_CHECKING:
    import openai

Reply = TypeVar("Reply")

NETWORK_TRIES = 3
FIRST_RETRY_DELAY = 0.5
"""Seconds before the second try; twice as many before the third."""
MAX_WITHOUT_REASON = 100
"""Number of remembered questions whose answers ended without a reason."""
MODEL_APIS: Mapping[str, type[ModelApi]] = {"openai": ModelApi, "anthropic": AnthropicApi}
"""Classes by the value of the setting `LlmServer.api`."""


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """An answer, with its timing and the server's rate limit."""

    answer: Completion
    timing: Timing
    quota_wait: float
    """Seconds until the server takes requests again, by its own limits; 0 if it takes them now."""


CALLS_TO_KEEP_CHANGES = 3
"""After an error without a clear cause, changed parameters are kept once the server has taken this
many calls in a row with them."""


class ServerClient:
    """Asks one server. Open it with `ServerClient.connect`."""

    def __init__(self, api: openai.AsyncOpenAI, server: LlmServer, timeout: float) -> None:
        self._api = api
        self._timeout = timeout
        self.model = server.model
        self._server_name = server.name
        self._has_responses = server.responses
        self._model_api = MODEL_APIS[server.api]()
        key = server.api_key
        self._headers = self._model_api.headers(key.get_secret_value() if key else None)
        self._server_id = content_hash([server.base_url, server.model])
        self._configured_parameters = Parameters.for_server(server)
        self._parameters = self._configured_parameters
        """The parameters that the server took last."""
        self._adopted_text = ""
        """The text that `adopt` got last: what all processes had learned."""
        self._unclear_changes = 0
        """Calls in a row that the server took with changed parameters, after an error without a
        clear cause."""
        self._starts_in_reasoning = False
        """Whether this model begins with reasoning that has no mark at its beginning."""
        self._sent_count = 0
        """Questions that were sent."""
        self._ended_without_reason: deque[str] = deque(maxlen=MAX_WITHOUT_REASON)
        """Hashes of questions whose answers ended without a reason, though the server gives one for
        others. An answer that ended after a later question was sent is not remembered: the server
        may have dropped it for that question."""

    @property
    def parameters(self) -> Parameters:
        """The parameters that the server took last."""
        return self._parameters

    @property
    def learned(self) -> str:
        """The parameters learned from the server's refusals and answers, as text for other
        processes; empty if nothing was learned."""
        if self._parameters == self._configured_parameters:
            return ""
        return self._parameters.learned(self._server_id)

    def adopt(self, learned: str) -> None:
        """Send the parameters that other processes have learned and recorded in the ledger; if that
        record has expired (`learned` is empty), those of the settings again."""
        if learned != self._adopted_text:
            self._adopted_text, self._unclear_changes = learned, 0
            self._parameters = self._configured_parameters.with_learned(learned, self._server_id)

    @classmethod
    @asynccontextmanager
    async def connect(cls, server: LlmServer, timeout: float) -> AsyncIterator[ServerClient]:
        """Open a client of the server; its connections end with the context. `timeout` is seconds
        for one request. Raises LlmRefused for an invalid address."""
        key = server.api_key
        async with open_api(
            server.base_url, key.get_secret_value() if key else None, timeout
        ) as api:
            yield cls(api, server, timeout)

    def refusal(self, chat: Mapping[str, Any], endpoint: Endpoint | None) -> str | None:
        """Return why the server's API can't take the request; None if it can."""
        if endpoint is RESPONSES and not self._has_responses:
            return NO_RESPONSES_SERVER
        path = None if endpoint is None else endpoint.path
        return self._model_api.refusal(self._parameters.body(chat), path)

    async def ask(
        self,
        chat: Mapping[str, Any],
        *,
        timeout: float,
        on_text: Callable[[str], None] | None = None,
        restart: Callable[[], None] = lambda: None,
        on_broken: Callable[[], None] = lambda: None,
        keep_all: bool = False,
        endpoint: Endpoint | None = None,
    ) -> ModelResponse:
        """Return the model's answer to a chat: `messages`, and the parameters of the API. With
        `keep_all`, the answer has a `body` with all fields. With an `endpoint`, `chat` is the body
        of its request.

        `timeout` is seconds for all tries together: keep it well under the job's time limit.
        `on_text` gets the text piece by piece, or from the Responses API its events as lines of
        JSON; a try that fails after its first piece is the last. `restart` is called when
        the text so far was not the answer, which begins anew. `on_broken` is called before another
        try if the server may charge the failed one. Cancelling closes the request, so that the
        server stops.
        Raises LlmUnavailable, InvalidLlmResponse (try again later) or LlmRefused (do not).
        """
        import openai

        if reason := self.refusal(chat, endpoint):
            raise LlmBadRequest(reason)
        has_text = False

        def pass_on(text: str) -> None:
            nonlocal has_text
            has_text = True
            if on_text is not None:
                on_text(text)

        async def send() -> ModelResponse:
            # The SDK's own limit applies to each read: a stream that trickles would go on for ever.
            try_limit = asyncio.timeout(self._timeout)
            try:
                async with try_limit:
                    if endpoint is RESPONSES and on_text is not None:
                        return await self._stream_response(chat, pass_on, lambda: has_text)
                    if endpoint is not None:
                        return await self._ask_endpoint(chat, endpoint)
                    return await self._ask_adapting(
                        chat, pass_on, restart, keep_all, lambda: has_text
                    )
            except TimeoutError as error:
                if try_limit.expired():
                    allowed = f"{self._timeout:g} s (JOBS_LLM_TIMEOUT)"
                    raise LlmTimeout(f"the model server did not answer within {allowed}") from error
                raise
            except Exception as error:
                if is_connection_lost(error):  # raised while a body is read without the SDK
                    request = error.request  # type: ignore[attr-defined]
                    raise openai.APIConnectionError(request=request) from error
                raise

        operation = "chat" if endpoint is None else endpoint.operation
        with span(
            f"{operation} {self.model}",
            kind="client",
            gen_ai__operation__name=operation,
            gen_ai__request__model=self.model,
            switchyard__llm__server=self._server_name,
        ) as chat_span:
            response = await call_with_retries(
                send,
                timeout=timeout,
                may_retry=lambda: not (on_text and has_text),
                on_broken=on_broken,
            )
            chat_span.note(
                gen_ai__usage__input_tokens=response.answer.usage.get("prompt_tokens"),
                gen_ai__usage__output_tokens=response.answer.usage.get("completion_tokens"),
            )
            return response

    async def _ask_adapting(
        self,
        chat: Mapping[str, Any],
        on_text: Callable[[str], None],
        restart: Callable[[], None],
        keep_all: bool,
        has_text: Callable[[], bool],
    ) -> ModelResponse:
        """Ask. If the server refuses a parameter that can be changed, change it and ask again; keep
        the parameters that the server took for later calls."""
        import openai

        parameters = self._parameters
        tried_parameters = {parameters}
        is_clear = True
        while True:
            try:
                body = parameters.stream_body(chat)
                response = await self._send(body, on_text, restart, keep_all)
            except (EmptyLlmAnswer, LlmCut) as error:
                if not error.in_stream or has_text():
                    raise
                # A stream that fails had its status sent before, with 200. Without a stream, the
                # server can answer with the status of its error.
                unstreamed = self._send(
                    parameters.body(chat), lambda _: None, lambda: None, keep_all
                )
                return await _answer_or_refusal(unstreamed, error)
            except openai.APIStatusError as error:
                changed_parameters = parameters.after(error, chat)
                if (
                    changed_parameters is None
                    or changed_parameters in tried_parameters
                    or len(tried_parameters) > MAX_REPEATS
                ):
                    raise
                parameters = changed_parameters
                tried_parameters.add(parameters)
                is_clear = is_clear and Parameters.is_clear(error)
            else:
                if body.get("stream") and response.answer.finish_reason is not None:
                    parameters = replace(parameters, ends_with_reason=True)
                self._remember(parameters, is_clear)
                return response

    def _remember(self, parameters: Parameters, is_clear: bool) -> None:
        """Keep parameters that the server took for later calls; if an error that led to them did
        not say what was wrong, only after CALLS_TO_KEEP_CHANGES such calls in a row."""
        is_other = parameters != self._parameters
        self._unclear_changes = self._unclear_changes + 1 if is_other else 0
        if is_clear or self._unclear_changes >= CALLS_TO_KEEP_CHANGES:
            self._parameters, self._unclear_changes = parameters, 0

    async def _send(
        self,
        body: Mapping[str, Any],
        on_text: Callable[[str], None],
        restart: Callable[[], None],
        keep_all: bool,
    ) -> ModelResponse:
        import openai

        reader = CompletionReader(
            self.model,
            on_text,
            restart,
            self._starts_in_reasoning,
            keep_all,
            self._model_api,
            ends_with_reason=self._parameters.ends_with_reason
            and not (
                self._ended_without_reason and content_hash(body) in self._ended_without_reason
            ),
        )
        self._sent_count += 1
        number = self._sent_count
        async with await self._api.post(
            self._model_api.path,
            body={**self._model_api.request_body(body), "model": self.model},
            options={"headers": self._headers},
            cast_to=object,
            stream=True,
            stream_cls=openai.AsyncStream[object],
        ) as stream:
            try:
                answer = await reader.read(stream.response)
            except LlmCut:
                if reader.ended_without_reason and number == self._sent_count:
                    self._ended_without_reason.append(content_hash(body))
                raise
            self._starts_in_reasoning = self._starts_in_reasoning or reader.started_in_reasoning
            wait = self._model_api.quota_wait(stream.response.headers)
            return ModelResponse(answer, reader.timing, wait)

    async def _stream_response(
        self,
        body: Mapping[str, Any],
        on_line: Callable[[str], None],
        has_text: Callable[[], bool],
    ) -> ModelResponse:
        """Ask the Responses API for a stream. Ask without a stream if the server does not stream,
        or if the stream is empty or broken before its first piece."""
        import openai

        if not self._parameters.streams:
            return await self._ask_endpoint(body, RESPONSES)
        reader = CompletionReader(self.model)
        try:
            async with await self._api.post(
                RESPONSES.path,
                body={**body, "model": self.model, "stream": True},
                cast_to=object,
                stream=True,
                stream_cls=openai.AsyncStream[object],
            ) as stream:
                answer = await read_response_stream(stream.response, reader, on_line)
                return self._endpoint_response(reader, answer, stream.response, body, RESPONSES)
        except (EmptyLlmAnswer, LlmCut) as error:
            if has_text():
                raise
            return await _answer_or_refusal(self._ask_endpoint(body, RESPONSES), error)
        except openai.APIStatusError as error:
            changed_parameters = self._parameters.after(error, body)
            if changed_parameters is None or changed_parameters.streams:
                raise
            response = await self._ask_endpoint(body, RESPONSES)
            self._remember(changed_parameters, Parameters.is_clear(error))
            return response

    async def _ask_endpoint(self, body: Mapping[str, Any], endpoint: Endpoint) -> ModelResponse:
        """Ask an endpoint other than chats, without a stream."""
        import httpx

        reader = CompletionReader(self.model)
        response = await self._api.post(
            endpoint.path, body={**body, "model": self.model}, cast_to=httpx.Response
        )
        answer = await reader.read_body(response, has_texts=endpoint.has_texts)
        return self._endpoint_response(reader, answer, response, body, endpoint)

    def _endpoint_response(
        self,
        reader: CompletionReader,
        answer: Any,
        response: Any,
        body: Mapping[str, Any],
        endpoint: Endpoint,
    ) -> ModelResponse:
        """Check the answer of an endpoint other than chats, and return it with its timing. Raises
        InvalidLlmResponse."""
        endpoint.check(answer, count_inputs(body[endpoint.input_name]))
        wait = self._model_api.quota_wait(response.headers)
        completion = reader.completion_without_text(answer)
        return ModelResponse(replace(completion, body=answer), reader.timing, wait)


async def _answer_or_refusal(
    unstreamed: Awaitable[ModelResponse], cause: EmptyLlmAnswer | LlmCut
) -> ModelResponse:
    """Await the answer to a request that is sent without a stream after its stream gave no answer.
    Raises the server's refusal of the request, or else `cause`, the stream's error."""
    import openai

    try:
        return await unstreamed
    except openai.APIStatusError as error:
        if isinstance(translate(error), LlmRefused):
            raise
        raise cause from error
    except (openai.OpenAIError, LlmUnavailable, InvalidLlmResponse) as error:
        raise cause from error


@asynccontextmanager
async def open_api(
    base_url: str, api_key: str | None, timeout: float
) -> AsyncIterator[openai.AsyncOpenAI]:
    """Open the SDK's client with its own retries off. `timeout` is seconds for one request.

    Raises LlmRefused for an invalid address.
    """
    await load("openai", "openai.resources.files", "switchyard.broker.tls")
    import httpx
    import openai

    try:
        port = httpx.URL(base_url).port
    except httpx.InvalidURL as error:
        raise LlmRefused(f"{base_url!r} is not the address of a server") from error
    if port is not None and not 0 < port < 65_536:
        raise LlmRefused(f"{base_url!r} is not the address of a server: there is no port {port}")

    # A thread makes the client, as this loads libraries and certificates. The SDK needs some key,
    # and would send that of OPENAI_API_KEY to a server that has none.
    http_client = await asyncio.to_thread(bounded_http, timeout)
    async with openai.AsyncOpenAI(
        base_url=base_url,
        api_key=api_key or "none",
        max_retries=0,
        timeout=timeout,
        http_client=http_client,
    ) as api:
        yield api


async def call_with_retries(
    create: Callable[[], Awaitable[Reply]],
    *,
    timeout: float,
    may_retry: Callable[[], bool] = lambda: True,
    on_broken: Callable[[], None] = lambda: None,
) -> Reply:
    """Await `create()`, and repeat it after network errors while `may_retry()` is true, at most
    `timeout` seconds in all. `on_broken()` is called before each new try if the server may charge
    the failed one.

    Raises what `services.llm.llm_errors.translate` makes of the SDK's errors.
    """
    import openai
    from tenacity import (
        AsyncRetrying,
        RetryCallState,
        retry_if_exception,
        stop_after_attempt,
        wait_exponential_jitter,
    )

    def is_network_error(error: BaseException) -> bool:
        # A time-out is a network error, too, but waiting that long again is left to the job's
        # retries.
        return (
            isinstance(error, openai.APIConnectionError)
            and not isinstance(error, openai.APITimeoutError)
            and may_retry()
        )

    def report_broken(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, openai.OpenAIError) and translate(error).may_cost:
            on_broken()

    tries = AsyncRetrying(
        retry=retry_if_exception(is_network_error),
        stop=stop_after_attempt(NETWORK_TRIES),
        wait=wait_exponential_jitter(multiplier=FIRST_RETRY_DELAY, jitter=FIRST_RETRY_DELAY),
        before_sleep=report_broken,
        reraise=True,
    )

    async def attempt() -> Reply:
        return await create()  # tenacity awaits nothing but coroutine functions

    total_limit = asyncio.timeout(timeout)
    try:
        async with total_limit:
            return await tries(attempt)
    except openai.OpenAIError as error:
        raise translate(error) from error
    except (LlmUnavailable, InvalidLlmResponse, LlmRefused):
        raise
    except ValueError as error:  # JSON or UTF-8 that does not decode, past the SDK's own errors
        body_text = getattr(error, "doc", None) or getattr(error, "object", "")
        raise InvalidLlmResponse(
            f"the model server's answer is not JSON: {quoted_answer(body_text)}"
        ) from error
    except TimeoutError as error:
        if total_limit.expired():
            raise LlmTimeout(f"the model server did not answer within {timeout:g} s") from error
        raise

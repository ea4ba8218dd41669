"""Read a server's answer, whole or as a stream, and check and bound everything in it.

The SDK does not check what a server sends. The answer is read as plain JSON (`cast_to=object`): the
SDK's own models of a hostile answer, four megabytes of `{}`, take it a minute and two gigabytes to
build, and nothing else would run meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.services.common.printable import quoted_answer
from switchyard.services.llm.completion_assembler import CompletionAssembler
from switchyard.services.llm.llm_errors import (
    EmptyLlmAnswer,
    InvalidLlmResponse,
    LlmCut,
    LlmDeclined,
    LlmLimited,
    LlmRefused,
)
from switchyard.services.llm.model_api import ModelApi
from switchyard.services.llm.thought_filter import ThoughtFilter, without_thoughts

MAX_ANSWER = 2_000_000
"""Longest answer to a chat: in bytes of its JSON, or in characters of a streamed text."""
END_TIMEOUT = 10.0
"""Seconds that a stream may stay open after the answer has ended: some servers send keep-alives for
ever."""
MAX_ENDPOINT_ANSWER = 8 * 1024 * 1024
"""Bytes of the largest answer of another endpoint, such as vectors. The answer is also stored as
the job's result."""
PROMPT_TOKENS_PER_TOKEN = 20
"""Tokens of a prompt that take a server about as long as one token of an answer."""
_NO_REASONS = frozenset({"", "null", "none", "unknown"})
"""Values of `finish_reason` that stand for none: the answer goes on."""
# The values of `finish_reason` that servers use for `length`, for `content_filter`, and for an
# answer that the server has broken off.
_LENGTH_REASONS = frozenset(
    {
        "length",
        "max_tokens",
        "max_output_tokens",
        "model_length",
        "max_length",
        "model_context_window_exceeded",
    }
)
_DECLINED_REASONS = frozenset(
    {
        "content_filter",
        "content_filtered",
        "safety",
        "recitation",
        "refusal",
        "blocklist",
        "prohibited_content",
        "spii",
        "sensitive",
    }
)
_BREAK_REASONS = frozenset(
    {
        "error",
        "abort",
        "aborted",
        "cancelled",
        "canceled",
        "timeout",
        "failed",
        "network_error",
        "insufficient_system_resource",
    }
)
_LIMIT_ERRORS = frozenset(
    {"overloaded_error", "rate_limit_error", "rate_limit_exceeded", "server_is_overloaded"}
)
"""Types and codes of errors that a server sends within a stream in place of the statuses 429 and
529."""
_TEXT_PARTS = frozenset({"text", "output_text"})
_REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Fields with the reasoning of a model, of servers that separate it from the answer."""
_USAGE_NAMES = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
"""Names of counts in `usage`, with their other names in OpenAI's Responses API."""
_TEXTLESS_ANSWERS = ("tool_calls", "function_call", "audio")
"""Fields of a message that are an answer without text."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer of a model."""

    text: str
    model: str
    """The model that answered, as the server names it."""
    finish_reason: str | None
    """`stop`, `length` when the answer was cut at its limit, or another one of the API; None where
    the server gave none with an answer that ended regularly."""
    usage: Mapping[str, int]
    """Tokens by `prompt_tokens`, `completion_tokens`, and `cached_tokens` of the prompt. A count
    that the server does not send is missing."""
    chunks: int = 0
    """Pieces in which the answer came, about a token each; 0 where it was not streamed."""
    body: Mapping[str, Any] | None = None
    """The server's answer with all of its fields, for a request with `keep_all`."""

    @property
    def is_complete(self) -> bool:
        """Whether the model has ended its answer, and `max_tokens` has not cut it."""
        return self.finish_reason != "length"


@dataclass(frozen=True, slots=True)
class Timing:
    """How quickly the answer came, in seconds."""

    seconds: float
    """From the request to the end of the answer."""
    weighted_tokens: float
    """Tokens of the answer, plus tokens of the prompt divided by PROMPT_TOKENS_PER_TOKEN: a server
    reads them faster than it writes."""
    first_token: float | None = None
    """From the request to the first token; None where the answer was not streamed."""
    per_token: float | None = None
    """Mean from one token to the next; None where the answer was not streamed."""


@dataclass(slots=True)
class CompletionReader:
    """Reads an answer as it comes in; `on_text` gets each piece of text."""

    requested_model: str
    """The model that was asked: its name is used where the server's answer names no model."""
    on_text: Callable[[str], None] | None = None
    restart: Callable[[], None] = lambda: None
    """Called when the text that `on_text` got turns out to be reasoning that had no opening mark:
    the answer begins anew."""
    starts_in_reasoning: bool = False
    """Whether this model is known to begin with reasoning that has no opening mark: `on_text` then
    gets nothing before the end of the reasoning."""
    keep_all: bool = False
    """Whether to keep the whole answer as `Completion.body`: further choices, tool calls, … It may
    then be without text, too."""
    model_api: ModelApi = field(default_factory=ModelApi)
    """The API of the server."""
    end_timeout: float = END_TIMEOUT
    ends_with_reason: bool = False
    """Whether this server is known to say why an answer has ended: then one without a reason was
    cut, whatever its stream ends with. llama-cpp-python's server drops an answer for the next
    request, and closes its stream with `[DONE]`."""
    _has_passed_on: bool = False
    _half_pair: str = ""
    """The first half of a surrogate pair, whose other half comes with the next piece."""
    _filter: ThoughtFilter = field(init=False)
    _has_thoughts: bool = False
    _refusals: list[str] = field(default_factory=list)
    _length: int = 0
    _chunks: int = 0
    _began_at: float = field(default_factory=time.monotonic)
    _first_token_at: float | None = None
    _last_token_at: float = 0.0
    _finish_reason: str | None = None
    _has_end_mark: bool = False
    _model: str | None = None
    _usage: dict[str, int] = field(default_factory=dict)
    _assembler: CompletionAssembler | None = None

    def __post_init__(self) -> None:
        self._filter = ThoughtFilter(self._pass_on, self._begin_anew)
        if self.keep_all:
            # Text is counted twice: by itself, and as part of the whole answer.
            self._assembler = CompletionAssembler(self._count_length)

    async def read(self, response: Any) -> Completion:
        """Read the SDK's HTTP response, whole or as a stream. Raises InvalidLlmResponse,
        LlmRefused, LlmCut."""
        answer = await body_or_stream(response, (b"data:",))
        if isinstance(answer, bytes):
            return self.read_whole(parse_json(answer))
        try:
            return await self._read_stream(answer)
        except (EmptyLlmAnswer, LlmCut) as error:
            error.in_stream = True
            raise

    async def _read_stream(self, parts: AsyncIterator[bytes]) -> Completion:
        chunks_of = self.model_api.stream_reader()
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                async for event in event_data(parts):
                    progress_before = self._progress
                    if event.startswith(b"[DONE]"):
                        self._has_end_mark = True
                    elif event.strip():
                        for chunk in chunks_of(parse_json(event)):
                            self._read_chunk(chunk)
                    is_over = self._has_end_mark or self._finish_reason is not None
                    if is_over and self._progress != progress_before:
                        # The usage may follow, and more of other choices.
                        timeout.reschedule(asyncio.get_running_loop().time() + self.end_timeout)
        except TimeoutError:
            if not timeout.expired():  # it is the caller's own time-out
                raise
        except Exception as error:
            # The answer is complete: an error behind its end is no reason to ask again.
            if self._finish_reason is None or not is_connection_lost(error):
                raise
        if self._finish_reason is None:
            if not (self._chunks or self._refusals):
                raise EmptyLlmAnswer("the model server's answer is empty")
            if self.ends_with_reason or not self._has_end_mark:
                raise LlmCut("the model server's answer ends in the middle")
        return self._completion()

    @property
    def _progress(self) -> tuple[object, ...]:
        """Values of which at least one changes with each piece of the answer."""
        return self._length, self._chunks, self._finish_reason, self._has_end_mark

    async def read_body(self, response: Any, *, has_texts: bool) -> Any:
        """Read the SDK's HTTP response as JSON, without checking its fields; `has_texts` as in
        `parse_body`. Raises InvalidLlmResponse."""
        body = await _bounded_body(response.aiter_bytes(), MAX_ENDPOINT_ANSWER)
        return self.parse_body(body, has_texts=has_texts)

    def parse_body(self, body: bytes, *, has_texts: bool) -> Any:
        """Parse an answer as JSON, without checking its fields. With `has_texts`, characters and
        numbers that can't be encoded are replaced. Raises InvalidLlmResponse."""
        answer = parse_json(body)
        if not has_texts:
            return answer
        return encodable_answer(answer)

    @property
    def ended_without_reason(self) -> bool:
        """Whether the stream has ended with `[DONE]`, and has given no finish reason."""
        return self._has_end_mark and self._finish_reason is None

    @property
    def started_in_reasoning(self) -> bool:
        """Whether the answer began with reasoning, without a mark at its beginning."""
        return self._filter.started_in_reasoning

    @property
    def timing(self) -> Timing:
        """How quickly the answer that has just been read came."""
        tokens = self._usage.get("completion_tokens") or self._chunks or self._length // 4
        weighted_tokens = tokens + self._usage.get("prompt_tokens", 0) / PROMPT_TOKENS_PER_TOKEN
        seconds = time.monotonic() - self._began_at
        if self._first_token_at is None or tokens < 2:
            return Timing(seconds, weighted_tokens)
        per_token = (self._last_token_at - self._first_token_at) / (tokens - 1)
        return Timing(seconds, weighted_tokens, self._first_token_at - self._began_at, per_token)

    def _read_chunk(self, chunk: Any) -> None:
        if not isinstance(chunk, dict):
            raise _without_choices(chunk)
        # Older releases of vLLM send the error itself as the chunk.
        if error := chunk.get("error") or (chunk if chunk.get("object") == "error" else None):
            raise stream_error(error, has_begun=self._chunks > 0)
        self._read_metadata(chunk.get("model"), chunk.get("usage"))
        choices = chunk.get("choices")
        if choices is None or choices == []:
            return  # usage, a filter's report, or a sign of life
        if not isinstance(choices, list):
            raise _without_choices(chunk)
        self._assemble(CompletionAssembler.add_chunk, chunk)
        choice = self._first_choice(choices)
        delta = field_of(choice, "delta")
        if delta is None and not self._chunks:  # a whole answer, in a single event
            delta = field_of(choice, "message")
        self._record_finish_reason(field_of(choice, "finish_reason"))
        text = self._take_message(delta)
        if text or self._record_reasoning(delta) or self._has_textless_answer(delta):
            self.record_token()
        self._filter.take(text)

    def record_token(self) -> None:
        """Count a piece of the answer, and record when it came."""
        self._last_token_at = time.monotonic()
        self._first_token_at = self._first_token_at or self._last_token_at
        self._chunks += 1

    def read_whole(self, completion: Any) -> Completion:
        """Read a completion that came as one JSON object. Raises InvalidLlmResponse, LlmRefused,
        LlmCut."""
        completion = self.model_api.completion_of(completion)
        choices = field_of(completion, "choices")
        if not isinstance(choices, list) or not choices:
            raise _without_choices(completion)
        self._read_metadata(field_of(completion, "model"), field_of(completion, "usage"))
        self._assemble(CompletionAssembler.add_whole, completion)
        choice = self._first_choice(choices)
        message = field_of(choice, "message")
        self._record_finish_reason(field_of(choice, "finish_reason"))
        self._record_reasoning(message)
        self._filter.take(self._take_message(message))
        return self._completion()

    def _first_choice(self, choices: list[Any]) -> Any:
        """Return the choice whose text is the answer; None where a chunk has only other choices."""
        if not self.keep_all:
            return choices[0]
        return next((each for each in choices if field_of(each, "index") in (0, None)), None)

    def _assemble(
        self, add: Callable[[CompletionAssembler, dict[str, Any]], None], part: dict[str, Any]
    ) -> None:
        if self._assembler is None:
            return
        try:
            add(self._assembler, part)
        except ValueError as error:
            raise InvalidLlmResponse(f"the model server's answer makes no sense: {error}") from None

    def _has_textless_answer(self, message: Any) -> bool:
        return self.keep_all and any(field_of(message, name) for name in _TEXTLESS_ANSWERS)

    def _take_message(self, message: Any) -> str:
        """Return the text of a message, or of a chunk's delta, and count its length. Keep a
        refusal; take parts of unknown kinds for reasoning."""
        content, refusal = field_of(message, "content"), field_of(message, "refusal")
        texts = []
        for part in content if isinstance(content, list) else [content]:
            if isinstance(part, str) and not isinstance(content, list):
                texts.append(part)
                continue
            kind, text = field_of(part, "type"), field_of(part, "text")
            text = field_of(text, "value") if isinstance(text, dict) else text
            if kind == "refusal":
                refusal = field_of(part, "refusal") or text
            elif isinstance(text, str) and (kind is None or str(kind) in _TEXT_PARTS):
                texts.append(text)
            else:
                self._has_thoughts = self._has_thoughts or part is not None
        if isinstance(refusal, str) and refusal:
            self._count_length(len(refusal))
            self._refusals.append(refusal)
        whole_text = "".join(texts)
        self._count_length(len(whole_text))
        return whole_text

    def _record_reasoning(self, message: Any) -> bool:
        """Record and return whether a message has reasoning in a field of its own."""
        has_thought = any(field_of(message, name) for name in _REASONING_FIELDS)
        self._has_thoughts = self._has_thoughts or has_thought
        return has_thought

    def _record_finish_reason(self, reason: object) -> None:
        """Record why the model stopped, under OpenAI's name for the reason. Raises LlmCut."""
        if not isinstance(reason, str):
            return
        reason_text = reason[:100].strip().lower()
        if reason_text in _NO_REASONS:
            return
        if reason_text in _BREAK_REASONS:
            raise LlmCut(f"the model server broke off: finish_reason {encodable(reason_text)}")
        if reason_text in _LENGTH_REASONS:
            reason_text = "length"
        elif reason_text in _DECLINED_REASONS:
            reason_text = "content_filter"
        self._finish_reason = encodable(reason_text)

    def _pass_on(self, text: str) -> None:
        if self.on_text is None or self.starts_in_reasoning:
            return
        text = self._half_pair + text
        self._half_pair = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
        if whole_characters := text.removesuffix(self._half_pair):
            self._has_passed_on = True
            self.on_text(encodable(whole_characters))

    def _begin_anew(self) -> None:
        self.starts_in_reasoning, self._half_pair = False, ""
        if self._has_passed_on:
            self._has_passed_on = False
            self.restart()

    def completion_without_text(self, answer: object) -> Completion:
        """Return model and usage of an answer without text, such as vectors."""
        self._read_metadata(field_of(answer, "model"), field_of(answer, "usage"))
        model, usage = self._model or self.requested_model, dict(self._usage)
        return Completion("", model, None, usage, self._chunks)

    def _completion(self) -> Completion:
        text = encodable(self._filter.end())
        if self._assembler is not None:
            return self._completion_with_body(text)
        refusal = "".join(self._refusals)
        if self._finish_reason == "content_filter" or (refusal and not text):
            refusal_text = f"the model declines to answer: {refusal or 'content filter'}"
            raise LlmDeclined(encodable(refusal_text[:500]), may_cost=True)
        if not text:
            raise self._empty_error()
        if self.on_text is not None and not self._has_passed_on:
            self.on_text(text)
        return Completion(
            text,
            self._model or self.requested_model,
            self._finish_reason,
            dict(self._usage),
            self._chunks,
        )

    def _completion_with_body(self, text: str) -> Completion:
        assert self._assembler is not None
        completion = self._assembler.completion(self._finish_choice)
        if self._usage and "usage" not in completion:
            completion["usage"] = dict(self._usage)
        if not any(_has_answer(each) for each in completion["choices"]):
            raise EmptyLlmAnswer("the model server's answer is empty")
        model = completion["model"] = self._model or self.requested_model
        if text and self.on_text is not None and not self._has_passed_on:
            self.on_text(text)
        body: dict[str, Any] = _encodable_json(completion)
        return Completion(text, model, self._finish_reason, dict(self._usage), self._chunks, body)

    def _finish_choice(self, choice: dict[str, Any]) -> None:
        """Give a choice OpenAI's name for its `finish_reason`, and remove reasoning from its
        text."""
        message, reason = choice["message"], choice["finish_reason"]
        content = message["content"]
        if isinstance(content, str):
            answer = without_thoughts(content)
            if answer != content.strip():
                message["content"] = answer
        reason_text = reason.strip().lower() if isinstance(reason, str) else ""
        if reason_text in _NO_REASONS:
            choice["finish_reason"] = "tool_calls" if message.get("tool_calls") else "stop"
        elif reason_text in _LENGTH_REASONS:
            choice["finish_reason"] = "length"
        elif reason_text in _DECLINED_REASONS:
            choice["finish_reason"] = "content_filter"

    def _empty_error(self) -> InvalidLlmResponse | LlmRefused:
        if not (self._filter.had_thoughts or self._has_thoughts):
            return EmptyLlmAnswer("the model server's answer is empty")
        if self._finish_reason == "length":  # another try would end the same
            return LlmRefused(
                "the model used up max_tokens for its reasoning, and gave no answer: raise "
                "max_tokens, or let the model reason less",
                may_cost=True,
            )
        return InvalidLlmResponse("the model server's answer is reasoning alone, without an answer")

    def _read_metadata(self, model: object, usage: object) -> None:
        if isinstance(model, str) and model:
            self._model = encodable(model[:200])
        for name, other_name in _USAGE_NAMES.items():
            self._set_usage(name, field_of(usage, other_name))
            self._set_usage(name, field_of(usage, name))
        for name in ("input_tokens_details", "prompt_tokens_details"):
            self._set_usage("cached_tokens", field_of(field_of(usage, name), "cached_tokens"))

    def _set_usage(self, name: str, value: object) -> None:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40:
            self._usage[name] = value

    def _count_length(self, characters: int) -> None:
        self._length += characters
        if self._length > MAX_ANSWER:
            raise InvalidLlmResponse(
                f"the model server's answer is longer than {MAX_ANSWER:,} characters"
            )


def encodable(text: str) -> str:
    """Return text that can be encoded: the halves of a surrogate pair are joined, as JSON or a
    stream may have cut between them, and single halves are replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def encodable_answer(answer: Any) -> Any:
    """Return an answer as JSON that can be encoded. Raises InvalidLlmResponse."""
    try:
        return _encodable_json(answer)
    except RecursionError as error:
        raise InvalidLlmResponse("the model server's answer has too many levels") from error


def _encodable_json(value: Any) -> Any:
    """Return JSON whose texts and numbers can all be encoded. Raises RecursionError."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {encodable(name): _encodable_json(each) for name, each in value.items()}
    return [_encodable_json(each) for each in value] if isinstance(value, list) else value


def _has_answer(choice: dict[str, Any]) -> bool:
    """Return whether a choice has an answer: a refusal and reasoning that was cut count, too."""
    message = choice["message"]
    fields = ("content", "refusal", *_TEXTLESS_ANSWERS, *_REASONING_FIELDS)
    return any(message.get(name) for name in fields) or choice["finish_reason"] != "stop"


def field_of(value: object, name: str) -> Any:
    """Return a field of an answer that was read as JSON; None where there is none."""
    return value.get(name) if isinstance(value, dict) else None


def is_connection_lost(error: Exception) -> bool:
    """Return whether an error is a TransportError of httpx: the connection ended."""
    return "TransportError" in {each.__name__ for each in type(error).__mro__}


async def event_data(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of each event of a stream (server-sent events of WHATWG HTML). The last event
    needs no empty line behind it if its JSON is complete: some servers end so."""
    data, pieces, ended_with_cr = bytearray(), list[bytes](), False
    async for part in parts:
        if ended_with_cr and part.startswith(b"\n"):
            part, ended_with_cr = part[1:], False
        for each in part.splitlines(keepends=True):
            pieces.append(each)
            if not each.endswith((b"\n", b"\r")):
                continue  # the rest comes with the next part
            line, pieces = b"".join(pieces).rstrip(b"\r\n"), []
            if not line:
                if data:
                    yield bytes(data)
                    data.clear()
            else:
                _add_data(data, line)
        if part:
            ended_with_cr = part.endswith(b"\r")
    _add_data(data, b"".join(pieces))
    if data.startswith(b"[DONE]") or _is_json(data):
        yield bytes(data)


async def body_or_stream(
    response: Any, stream_starts: tuple[bytes, ...], max_bytes: int = MAX_ANSWER
) -> bytes | AsyncIterator[bytes]:
    """Return the parts of an answer that is a stream, and the whole body of any other, of at most
    `max_bytes`. Some servers stream with another content type: then the body begins with one of
    `stream_starts`. Raises InvalidLlmResponse."""
    parts: AsyncIterator[bytes] = response.aiter_bytes()
    if "event-stream" in response.headers.get("content-type", ""):
        return parts
    body = await _bounded_body(parts, max_bytes)
    is_stream = body.removeprefix(BOM_UTF8).lstrip().startswith(stream_starts)
    return _single_part(body) if is_stream else body


async def _single_part(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _add_data(data: bytearray, line: bytes) -> None:
    name, _, value = line.partition(b":")
    if name.removeprefix(BOM_UTF8) == b"data":  # some servers begin with a byte order mark
        if data:
            data += b"\n"
        data += value.removeprefix(b" ")


def stream_error(error: object, *, has_begun: bool) -> LlmLimited | LlmCut:
    """Translate an error that a server sends in a stream. `has_begun`: a part of the answer came
    before it, which the server may charge."""
    message = field_of(error, "message") or error
    reason = " ".join(encodable(str(message)[:3_000]).split())[:300]
    if {str(field_of(error, "type")), str(field_of(error, "code"))} & _LIMIT_ERRORS:
        limit_error = LlmLimited(f"the model server broke off: {reason}")
        limit_error.may_cost = has_begun
        return limit_error
    return LlmCut(f"the model server broke off: {reason}")


def _without_choices(answer: Any) -> InvalidLlmResponse:
    return InvalidLlmResponse(
        f"the model server's answer has no choices: it answered {quoted_answer(answer)}"
    )


def parse_json(body: bytes) -> Any:
    """Parse the body of an answer, or the data of an event. Raises InvalidLlmResponse."""
    try:
        # JSON has no NaN and no infinite numbers, but some servers send them as log probabilities.
        return json.loads(_decode_utf8(body), parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise InvalidLlmResponse(
            f"the model server's answer is not JSON: {quoted_answer(body)}"
        ) from error


def _decode_utf8(body: bytes) -> bytes | str:
    """Return a body for `json.loads`; of UTF-8 the text, with U+FFFD for invalid bytes. Some
    servers cut an answer within a character: asked again, they would charge again and cut again."""
    if json.detect_encoding(body).startswith("utf-8"):
        return body.removeprefix(BOM_UTF8).decode("utf-8", "replace")
    return body


def _is_json(body: bytes | bytearray) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


async def _bounded_body(parts: AsyncIterator[bytes], max_bytes: int = MAX_ANSWER) -> bytes:
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > max_bytes:
            raise InvalidLlmResponse(
                f"the model server's answer is longer than {max_bytes:,} bytes"
            )
    return bytes(body)

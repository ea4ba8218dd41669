"""Find out which parameters a server takes with its model: those of OpenAI's API have
changed over the years.

Models that reason want `max_completion_tokens` instead of `max_tokens`, and take one temperature
only; old servers do not know `stream_options`. They answer 400 or 422 and name the parameter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from switchyard.services.common.settings import LlmServer

if TYPE_CHECKING:
    import openai

SCHEMA_FORMATS = ("json_schema", "json_object", "prompt")
"""Forms in which a schema is sent to a server, the best first; it is in the prompt in any case."""
OWN_SCHEMA_NAME = "switchyard_answer"
"""Name of our own schemas, which may be sent in another form; those of clients are not changed."""
MAX_REPEATS = 5
"""How often one question is sent again with one more parameter changed."""
_REFUSAL_STATUSES = frozenset({400, 422})
_SCHEMA_STATUSES = frozenset({400, 422, 500, 501})
"""Some servers answer 500 to a schema that their grammars do not know."""
_SCHEMA_WORDS = re.compile(
    r"response_format|output_config|output_format|json_object|schema|grammar", re.IGNORECASE
)
_MAX_ERROR_TEXT = 4_000
"""Characters of a server's error that are searched."""
_UNSUPPORTED_WORDS = re.compile(
    r"unsupported|not (?:be )?(?:supported?|permitted|allowed|recogni[sz]ed|accepted|available)"
    r"|unrecogni[sz]ed|unknown|unexpected|extra_forbidden|deprecated|instead|fixed|only|must be"
    r"|invalid|cannot|can't|does not",
    re.IGNORECASE,
)
_TOO_LONG_WORDS = re.compile(
    r"context (?:length|window)|too (?:large|long|many|high)|exceed|at most|maximum|less than"
    r"|greater than",
    re.IGNORECASE,
)
"""Words of errors about a length that is too large, whatever the parameter's name."""
_MAX_TOKENS_NAMES = ("max_tokens", "max_completion_tokens")
_LEARNED_FIELDS: Mapping[str, tuple[str | None, tuple[object, ...]]] = {
    "max_tokens_name": ("is_max_tokens_name_fixed", (None, *_MAX_TOKENS_NAMES)),
    "sends_temperature": ("is_temperature_fixed", (True, False)),
    "sends_stream_options": (None, (True, False)),
    "schema_format": ("is_schema_fixed", SCHEMA_FORMATS),
    "streams": ("is_stream_fixed", (True, False)),
    "ends_with_reason": (None, (True, False)),
}
"""The fields that a server's refusals and answers change. Each has the field that says whether the
settings fix it, and its possible values."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """How the parameters of a question are sent to one server and model, and how it answers."""

    max_tokens_name: str | None = None
    """The parameter that limits the length of an answer; None: as the question names it."""
    sends_temperature: bool = True
    sends_stream_options: bool = True
    is_max_tokens_name_fixed: bool = False
    """Whether the settings have `max_tokens_name`, so that no error of the server changes it."""
    is_temperature_fixed: bool = False
    schema_format: str = SCHEMA_FORMATS[0]
    is_schema_fixed: bool = False
    streams: bool = True
    is_stream_fixed: bool = False
    ends_with_reason: bool = False
    """Whether the server has said of an answer why it ended (`finish_reason`): then a stream
    without a reason was cut, also if it ends with `[DONE]`."""
    left_out: tuple[str, ...] = ()
    extra_body: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)

    @classmethod
    def for_server(cls, server: LlmServer) -> Parameters:
        """Return the parameters that the settings fix; the server's answers decide the others."""
        name, sends = server.max_tokens_name, server.sends_temperature
        return cls(
            max_tokens_name=name,
            sends_temperature=sends is not False,
            is_max_tokens_name_fixed=name is not None,
            is_temperature_fixed=sends is not None,
            schema_format=server.schema_format or SCHEMA_FORMATS[0],
            is_schema_fixed=server.schema_format is not None,
            streams=server.stream is not False,
            is_stream_fixed=server.stream is not None,
            left_out=server.leave_out,
            extra_body=server.extra_body,
        )

    def learned(self, server: str) -> str:
        """Return what the refusals and answers of a server have shown, as JSON that is stored for
        other processes. `server` identifies server and model."""
        values = {name: getattr(self, name) for name in _LEARNED_FIELDS}
        return json.dumps({"server": server, **values}, sort_keys=True)

    def with_learned(self, learned: str, server: str) -> Parameters:
        """Return these parameters with what another process has learned, except for what the
        settings fix. `learned` is ignored if it is of another server or model, or has another
        version's form."""
        try:
            values = json.loads(learned)
        except ValueError:
            return self
        if not isinstance(values, dict) or values.get("server") != server:
            return self
        accepted = {
            name: values[name]
            for name, (fixed_by, allowed) in _LEARNED_FIELDS.items()
            if values.get(name) in allowed and not (fixed_by and getattr(self, fixed_by))
        }
        return replace(self, **accepted)

    def body(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body for a chat with these parameters."""
        body = dict(self.extra_body) | {
            (self.max_tokens_name or name) if name in _MAX_TOKENS_NAMES else name: value
            for name, value in chat.items()
            if name not in self.left_out
        }
        if not self.sends_temperature:
            body.pop("temperature", None)
        if _has_own_schema(body):
            if self.schema_format == "json_object":
                body["response_format"] = {"type": "json_object"}
            elif self.schema_format == "prompt":
                del body["response_format"]
        return body

    def stream_body(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body for a chat with these parameters, with `stream` if the server streams."""
        if not self.streams:
            return self.body(chat)
        options = {"stream_options": {"include_usage": True}} if self.sends_stream_options else {}
        return {**self.body(chat), "stream": True, **options}

    def after(self, error: openai.APIStatusError, chat: Mapping[str, Any]) -> Parameters | None:
        """Return the parameters to try after an error; None if it is not about a parameter that can
        be changed."""
        error_text = str(error.body or error.message)[:_MAX_ERROR_TEXT]
        if self._is_about_schema(error.status_code, error_text, chat):
            index = SCHEMA_FORMATS.index(self.schema_format)
            return replace(self, schema_format=SCHEMA_FORMATS[index + 1])
        if error.status_code not in _REFUSAL_STATUSES:
            return None
        param = error.param if isinstance(error.param, str) else ""

        def is_about(name: str) -> bool:
            is_named = param == name or re.search(rf"\b{name}\b", error_text) is not None
            return is_named and _UNSUPPORTED_WORDS.search(error_text) is not None

        sent_name = self.max_tokens_name or next(
            (each for each in _MAX_TOKENS_NAMES if each in chat), None
        )
        if (
            sent_name is not None
            and not self.is_max_tokens_name_fixed
            and any(name in chat for name in _MAX_TOKENS_NAMES)
            and is_about(sent_name)
            and (
                _other_max_tokens_name(sent_name) in error_text
                or not _TOO_LONG_WORDS.search(error_text)
            )
        ):
            return replace(self, max_tokens_name=_other_max_tokens_name(sent_name))
        sends_temperature = self.sends_temperature and "temperature" in chat
        if sends_temperature and not self.is_temperature_fixed and is_about("temperature"):
            return replace(self, sends_temperature=False)
        if self.sends_stream_options and is_about("stream_options"):
            return replace(self, sends_stream_options=False)
        if self.streams and not self.is_stream_fixed and is_about("stream"):
            return replace(self, streams=False)
        return None

    @staticmethod
    def is_clear(error: openai.APIStatusError) -> bool:
        """Return whether an error says what it is about. An error that does not (500) may be a
        passing failure that has nothing to do with the request."""
        error_text = str(error.body or error.message)[:_MAX_ERROR_TEXT]
        return error.status_code < 500 or _SCHEMA_WORDS.search(error_text) is not None

    def _is_about_schema(self, status: int, error_text: str, chat: Mapping[str, Any]) -> bool:
        """Return whether an error may be about the form of our schema. A server that can't
        handle a schema answers 500, with any message."""
        if (
            self.is_schema_fixed
            or self.schema_format == SCHEMA_FORMATS[-1]
            or status not in _SCHEMA_STATUSES
            or not _has_own_schema(chat)
        ):
            return False
        if status >= 500:
            return True
        return (
            _SCHEMA_WORDS.search(error_text) is not None
            and _UNSUPPORTED_WORDS.search(error_text) is not None
        )


def _has_own_schema(chat: Mapping[str, Any]) -> bool:
    response_format = chat.get("response_format")
    schema = response_format.get("json_schema") if isinstance(response_format, dict) else None
    return isinstance(schema, dict) and schema.get("name") == OWN_SCHEMA_NAME


def _other_max_tokens_name(name: str) -> str:
    return _MAX_TOKENS_NAMES[1] if name == _MAX_TOKENS_NAMES[0] else _MAX_TOKENS_NAMES[0]

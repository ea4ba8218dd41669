"""Find out which parameters a model server takes: `jobctl llm check`.

The server is asked a few short questions, and the parameters that it takes are returned as settings
of JOBS_LLM_PROVIDERS. A picture of one colour shows whether it sees pictures: some servers accept
and ignore them.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

from switchyard.services.common.durations import duration_text
from switchyard.services.common.errors import SwitchyardError
from switchyard.services.common.settings import LlmServer
from switchyard.services.llm.llm_errors import shortened
from switchyard.services.llm.llm_requests import LlmQuestion
from switchyard.services.llm.parameters import SCHEMA_FORMATS
from switchyard.services.llm.server_client import ServerClient
from switchyard.services.llm.structured_answers import parse_answer_here

MAX_TOKENS = 200
MAX_REASON = 200
"""Characters of an error that are shown."""
_PICTURE_SIDE = 64
"""Width and height, in pixels, of the picture, which is red."""
_SCHEMA = {
    "type": "object",
    "properties": {"sea": {"type": "boolean"}, "salt": {"type": "integer"}},
    "required": ["sea", "salt"],
    "additionalProperties": False,
}


@dataclass(slots=True)
class ServerProbe:
    """Findings about one server."""

    model: str = ""
    """Name of the model, as the server gives it: for some servers the path of its file."""
    findings: dict[str, str] = field(default_factory=dict)
    """By the name of each test, its outcome in words."""
    settings: dict[str, Any] = field(default_factory=dict)
    """For the server's entry in JOBS_LLM_PROVIDERS."""


async def probe_server(server: LlmServer, timeout: float) -> ServerProbe:
    """Test which parameters a server takes; `timeout` is seconds for one question. Raises
    LlmUnavailable, InvalidLlmResponse, LlmRefused if it does not answer even a plain question."""
    probe = ServerProbe()
    await _probe_text(server, timeout, probe)
    for schema_format in (
        SCHEMA_FORMATS if server.schema_format is None else (server.schema_format,)
    ):
        result = await _probe_schema(
            server.model_copy(update={"schema_format": schema_format}), timeout
        )
        probe.findings[f"schema as {schema_format}"] = result or "fits"
        if result is None:
            probe.settings["schema"] = schema_format
            break
    probe.findings["pictures"] = await _probe_picture(server, timeout)
    return probe


async def _probe_text(server: LlmServer, timeout: float, probe: ServerProbe) -> None:
    question = LlmQuestion(_user_message("Write one sentence about the tide."), MAX_TOKENS, 0.0)
    async with ServerClient.connect(server, timeout) as client:
        response = await client.ask(question.request_body(), timeout=timeout)
        parameters = client.parameters
    streams = parameters.streams and response.timing.first_token is not None
    name = parameters.max_tokens_name or "max_tokens"
    probe.model = response.answer.model
    model_name = short_model_name(probe.model)
    probe.findings["answer"] = f"{model_name}, in {duration_text(response.timing.seconds)}"
    probe.findings["streams"] = "yes" if streams else "no"
    probe.findings["counts tokens"] = "yes" if response.answer.usage else "no: they are estimated"
    probe.settings |= {
        "max_tokens_name": name,
        "sends_temperature": parameters.sends_temperature,
        "stream": streams,
    }


async def _probe_schema(server: LlmServer, timeout: float) -> str | None:
    """Return why an answer does not fit a schema that is sent as `server.schema_format`; None if it
    fits."""
    text = "Is a tide a movement of the sea, and how many grams of salt has a litre of sea water?"
    question = LlmQuestion(_user_message(text), MAX_TOKENS, 0.0, _SCHEMA)
    try:
        async with ServerClient.connect(server, timeout) as client:
            response = await client.ask(question.request_body(), timeout=timeout)
        parse_answer_here(response.answer.text, _SCHEMA)
    except (SwitchyardError, ValueError) as error:
        return shortened(error, MAX_REASON)
    return None


async def _probe_picture(server: LlmServer, timeout: float) -> str:
    url = f"data:image/png;base64,{base64.b64encode(_red_picture()).decode()}"
    content = [
        {"type": "text", "text": "Which colour is this picture? Answer with one word."},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    question = LlmQuestion(({"role": "user", "content": content},), MAX_TOKENS, 0.0)
    try:
        async with ServerClient.connect(server, timeout) as client:
            response = await client.ask(question.request_body(), timeout=timeout)
    except SwitchyardError as error:
        return f"refused: {shortened(error, MAX_REASON)}"
    answer = shortened(response.answer.text, 40)
    return "seen" if "red" in answer.lower() else f"not seen: a red one is {json.dumps(answer)}"


def short_model_name(model: str) -> str:
    """Return the last part of a model's name that is the path of a file, as llama.cpp gives it; any
    other name unchanged, such as `Qwen/Qwen3-8B`."""
    is_path = model.startswith(("/", "./", "~")) or model.lower().endswith(".gguf")
    return model.rstrip("/").rpartition("/")[2] if is_path else model


def _user_message(text: str) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": text},)


def _red_picture() -> bytes:
    """Make a PNG (RFC 2083) of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        end = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + end

    header = struct.pack(">IIBBBBB", _PICTURE_SIDE, _PICTURE_SIDE, 8, 2, 0, 0, 0)
    rows = (b"\0" + b"\xff\0\0" * _PICTURE_SIDE) * _PICTURE_SIDE
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks

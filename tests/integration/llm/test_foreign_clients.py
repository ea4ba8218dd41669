"""Unchanged programs of LangChain and Instructor in front of the lanes: `make test-clients`."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_server import serving, until_connected
from tests.support.llm_server import (
    ANSWER,
    DIMENSIONS,
    MODEL,
    FakeLlmServer,
    answers,
    embeds,
    streams,
)
from tests.support.site import Exchange, Request
from tests.support.system import System

PYTHON_VARIABLE = "SWITCHYARD_CLIENTS"
"""Environment variable with the path of the interpreter that has these clients."""
PROGRAM = Path(__file__).parents[2] / "support" / "foreign_clients.py"
TIDE = {"port": "Brest", "metres": 4.5}


def answer_as_asked(exchange: Exchange, request: Request) -> None:
    """Call an offered tool unless its result is given; answer with JSON if a format is requested,
    and with a text otherwise."""
    if request.path.endswith("/embeddings"):
        embeds()(exchange, request)
        return
    body = request.json
    tools = body.get("tools", ())
    if tools and body["messages"][-1]["role"] != "tool":
        call_arguments = TIDE if tools[0]["function"]["name"] == "Tide" else {"port": "Brest"}
        function = {"name": tools[0]["function"]["name"], "arguments": json.dumps(call_arguments)}
        call = {"index": 0, "id": "call_1", "type": "function", "function": function}
        streams({"tool_calls": [call]}, finish_reason="tool_calls")(exchange, request)
        return
    answers(json.dumps(TIDE) if "response_format" in body else ANSWER)(exchange, request)


@pytest.mark.long
@pytest.mark.skipif(PYTHON_VARIABLE not in os.environ, reason="make test-clients")
async def test_unchanged_programs_of_other_clients_are_answered(
    system: System, llm: FakeLlmServer
) -> None:
    llm.always(answer_as_asked)
    await system.start_worker("llm")
    async with serving(system.settings) as api:
        await until_connected(api)
        arguments = (str(PROGRAM), f"{api.url}/v1", "a-key", MODEL)
        program = await asyncio.create_subprocess_exec(
            os.environ[PYTHON_VARIABLE], *arguments, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await program.communicate()
    assert program.returncode == 0
    results: Any = json.loads(output)
    assert results["langchain"] == {
        "chain": ANSWER,
        "streamed": ANSWER,
        "batch": [ANSWER, ANSWER],
        "async": ANSWER,
        "calls": [["tide_at", {"port": "Brest"}]],
        "after": ANSWER,
        "structured": TIDE,
        "vectors": [DIMENSIONS, DIMENSIONS],
    }
    assert results["instructor"] == {"TOOLS": TIDE, "JSON": TIDE}

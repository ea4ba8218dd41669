"""Streamed answers: through the lanes, over HTTP, and in direct mode."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from switchyard import LLMQueue
from switchyard.api.client import AsyncClient
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.llm.llm_queue import LlmResult
from tests.support.api_server import serving, until_connected
from tests.support.brokers import TestBroker
from tests.support.llm_server import FakeLlmServer
from tests.support.site import Behaviour, Exchange, Request
from tests.support.system import System, open_system

CHAT = {"messages": [{"role": "user", "content": "What is a tide?"}]}
PIECES = ["The tide ", "rises ", "and falls."]
TEXT = "".join(PIECES)


def writes(first_piece_read: threading.Event) -> Behaviour:
    """Write an answer as a stream: its first piece, and the rest when the test has read that."""

    def behave(exchange: Exchange, request: Request) -> None:
        exchange.send_response(200)
        exchange.send_header("Content-Type", "text/event-stream")
        exchange.end_headers()
        exchange.close_connection = True
        for number, piece in enumerate(PIECES):
            chunk(exchange, {"content": piece})
            if number == 0:
                assert first_piece_read.wait(60)
        chunk(exchange, {}, "stop")
        exchange.wfile.write(b"data: [DONE]\n\n")

    return behave


def chunk(exchange: Exchange, delta: dict[str, str], reason: str | None = None) -> None:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    chunk_body = {"id": "1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    exchange.wfile.write(f"data: {json.dumps(chunk_body)}\n\n".encode())
    exchange.wfile.flush()


@pytest.fixture
async def system(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, llm: FakeLlmServer
) -> AsyncIterator[System]:
    modules = (
        "switchyard.services.pipeline.workers.summaries",
        "switchyard.services.llm.job_types",
    )
    async with open_system(broker310, sqlite_url, data_dir=tmp_path, modules=modules) as opened:
        overrides = {"llm_base_url": llm.url, "llm_timeout": 60.0}
        opened.settings = opened.settings.model_copy(update=overrides)
        yield opened


@pytest.mark.parametrize("is_direct", [False, True])
async def test_an_answer_is_read_while_it_is_written_and_a_stored_one_has_no_pieces(
    system: System, llm: FakeLlmServer, is_direct: bool
) -> None:
    if not is_direct:
        await system.start_worker("llm")
    first_piece_read = threading.Event()
    llm.next(writes(first_piece_read))
    settings = system.settings.model_copy(update={"llm_direct": is_direct})
    async with LLMQueue.open(settings) as queue:
        pieces, result = "", None
        async with aclosing(queue.stream("chat_completion", CHAT)) as events:
            async for each in events:
                if isinstance(each, LlmResult):
                    result = each
                    continue
                assert each.offset == len(pieces)
                pieces += each.text
                first_piece_read.set()
        assert pieces == TEXT
        assert result is not None
        assert result.text == TEXT
        repeated = [each async for each in queue.stream("chat_completion", CHAT)]
        assert [type(each) for each in repeated] == [LlmResult]
        assert len(llm.requests) == 1


@pytest.mark.parametrize("is_direct", [False, True])
async def test_an_answer_is_streamed_over_http_and_completed_without_its_reader(
    system: System, llm: FakeLlmServer, is_direct: bool
) -> None:
    if not is_direct:
        await system.start_worker("llm")
    async with (
        serving(system.settings, llm_direct=is_direct) as api,
        AsyncClient(api.url) as client,
    ):
        await until_connected(api)
        first_piece_read = threading.Event()
        llm.next(writes(first_piece_read))
        received = []
        async with aclosing(client.stream_llm(CHAT)) as events:
            async for event in events:
                received.append(event)
                if event.name == "text":
                    first_piece_read.set()
        assert [each.name for each in received] == [
            "accepted",
            *["text"] * (len(received) - 2),
            "end",
        ]
        assert "".join(each.data["text"] for each in received[1:-1]) == TEXT
        assert received[-1].data["result"]["text"] == TEXT
        job_id = received[0].data["job_id"]
        assert received[-1].data["job_id"] == job_id

        reader_gone = threading.Event()
        llm.next(writes(reader_gone))
        async with aclosing(client.stream_llm(CHAT | {"fresh": True})) as events:
            async for event in events:
                if event.name == "text":
                    break
                job_id = event.data["job_id"]
        reader_gone.set()
        answered = await client.answer(job_id, wait=30)
        assert answered.status == "completed"


async def test_a_stream_ends_with_its_status_if_the_ledger_is_unreachable(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise LedgerUnavailable("it does not answer")

    monkeypatch.setattr(LLMQueue, "wait_for_end", fail)
    async with serving(system.settings) as api, AsyncClient(api.url) as client:
        await until_connected(api)
        async with aclosing(client.stream_llm(CHAT)) as events:
            received = [event async for event in events]
    assert [each.name for each in received] == ["accepted", "end"]
    assert received[-1].data["status"] == "waiting"
    assert received[-1].data["job_id"] == received[0].data["job_id"]


async def test_an_invalid_request_is_refused_before_the_stream_begins(
    system: System,
) -> None:
    async with serving(system.settings) as api:
        await until_connected(api)
        accepts = {"Accept": "text/event-stream"}
        invalid_request = {"type": "classify", "payload": {"text": "x"}}
        answer = await api.client.post("/llm/requests", json=invalid_request, headers=accepts)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["location"][:2] == ["body", "payload"]
        assert api.state.broker.feed.subscribers == 0

"""Vectors of an embedding server, and how its refusals and invalid answers end."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace

import pytest

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.settings import Settings
from switchyard.services.llm.llm_errors import InvalidLlmResponse, LlmRefused, LlmUnavailable
from switchyard.services.pipeline.index.embedder import embedder_for
from switchyard.services.pipeline.index.remote_embedder import BATCH_SIZE, RemoteEmbedder
from switchyard.services.pipeline.index.similarity_calibration import SimilarityCalibration
from tests.support import llm_server
from tests.support.llm_server import FakeLlmServer
from tests.support.site import endless

CALIBRATION = SimilarityCalibration(min_relevance=0.0, min_similarity=0.2, vector_weight=0.5)


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchyard.services.llm.server_client.FIRST_RETRY_DELAY", 0.01)


@pytest.fixture
def embedder(llm: FakeLlmServer) -> RemoteEmbedder:
    return RemoteEmbedder(
        llm.url, "embed-model", llm_server.DIMENSIONS, timeout=5, calibration=CALIBRATION
    )


async def test_a_server_embeds_in_batches(llm: FakeLlmServer, embedder: RemoteEmbedder):
    texts = [f"text {n}" for n in range(BATCH_SIZE * 2 + 1)]
    vectors = await embedder.embed(texts)
    assert [len(request.json["input"]) for request in llm.requests] == [BATCH_SIZE, BATCH_SIZE, 1]
    assert len(vectors) == len(texts)
    assert all(abs(sum(x * x for x in vector) - 1) < 1e-9 for vector in vectors)
    assert await embedder.embed([]) == []


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize("max_texts", [1, 10, 63])
async def test_a_server_that_takes_few_texts_gets_fewer_from_then_on(
    llm: FakeLlmServer, embedder: RemoteEmbedder, status: int, max_texts: int
):
    texts = [f"text {n}" for n in range(BATCH_SIZE + 3)]
    expected = await embedder.embed(texts)
    llm.always(llm_server.embeds(max_texts=max_texts, too_many_status=status))
    assert await embedder.embed(texts) == expected
    llm.requests.clear()
    embedder_of_another_job = replace(embedder, sizes=embedder.sizes)
    assert await embedder_of_another_job.embed(texts) == expected
    assert all(len(request.json["input"]) <= max_texts for request in llm.requests)


async def test_the_settings_can_say_how_many_texts_a_server_takes(llm: FakeLlmServer):
    llm.always(llm_server.embeds(max_texts=10))
    settings = Settings(
        embed_base_url=llm.url, embed_model="m", embed_dimensions=8, embed_batch_size=10
    )
    assert len(await embedder_for(settings).embed(["text"] * 25)) == 25
    assert [len(request.json["input"]) for request in llm.requests] == [10, 10, 5]


async def test_a_single_refused_text_is_named_and_does_not_make_later_requests_smaller(
    llm: FakeLlmServer, embedder: RemoteEmbedder
):
    llm.always(llm_server.embeds(max_characters=100))
    texts = [*["text"] * 40, "x" * 1_234, *["text"] * 40]
    with pytest.raises(LlmRefused, match=r"text 41 of 81, of 1,234 characters.*too long"):
        await embedder.embed(texts)
    llm.requests.clear()
    await embedder.embed(["text"] * BATCH_SIZE)
    assert [len(request.json["input"]) for request in llm.requests] == [BATCH_SIZE]


@pytest.mark.parametrize("status", [401, 404])
async def test_a_refused_key_or_model_does_not_reduce_the_size_of_requests(
    llm: FakeLlmServer, embedder: RemoteEmbedder, status: int
):
    llm.always(llm_server.fails(status))
    with pytest.raises(LlmRefused):
        await embedder.embed(["text"] * BATCH_SIZE)
    assert len(llm.requests) == 1


async def test_vectors_belong_to_their_texts_in_whatever_order_they_come(
    llm: FakeLlmServer, embedder: RemoteEmbedder
):
    in_order = await embedder.embed(["a", "b", "c"])
    llm.next(llm_server.embeds(backwards=True))
    assert await embedder.embed(["a", "b", "c"]) == in_order


async def test_vectors_of_another_length_are_a_wrong_setting(embedder: RemoteEmbedder):
    with pytest.raises(PermanentError, match=f"JOBS_EMBED_DIMENSIONS.* set it to {8}"):
        await replace(embedder, dimensions=100).embed(["a"])


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"data": []}',
        b'{"data": [{"embedding": "text", "index": 0}]}',
        b'{"data": [{"embedding": [1, 2, 3, 4, 5, 6, 7, NaN], "index": 0}]}',
        b"<html>",
    ],
)
async def test_invalid_vectors_are_retried_later(
    llm: FakeLlmServer, embedder: RemoteEmbedder, body: bytes
):
    llm.always(llm_server.says(body))
    with pytest.raises(InvalidLlmResponse):
        await embedder.embed(["a"])


@pytest.mark.parametrize(
    ("body", "message_end"),
    [
        (b"<html>\n<h1>Bad \x1b[2Jgateway</h1>", 'ateway</h1>"'),
        (b"", "empty body"),
        (b'{"status": "loading"}', '"loading"}"'),
        (b"x" * 1_000, 'xxxxxxxxxx…"'),
    ],
)
async def test_the_error_quotes_the_invalid_answer(
    llm: FakeLlmServer, embedder: RemoteEmbedder, body: bytes, message_end: str
):
    llm.always(llm_server.says(body))
    with pytest.raises(InvalidLlmResponse, match=re.escape(message_end)):
        await embedder.embed(["a"])


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_no_answer_fills_the_memory(
    llm: FakeLlmServer, embedder: RemoteEmbedder, monkeypatch: pytest.MonkeyPatch, status: int
):
    monkeypatch.setattr("switchyard.services.llm.bounded_http.MAX_BODY", 4_000_000)
    llm.always(endless(status))
    with pytest.raises((InvalidLlmResponse, LlmUnavailable), match="longer than"):
        await embedder.embed(["a"])


_MANY_OBJECTS = b"[" + b"{}," * 200_000 + b"{}]"
"""600 KB of JSON, for which the SDK takes 15 seconds."""


async def test_an_answer_of_many_small_values_is_read_in_time(
    llm: FakeLlmServer, embedder: RemoteEmbedder
):
    began = time.monotonic()
    llm.always(llm_server.says(b'{"object": "list", "data": ' + _MANY_OBJECTS + b"}"))
    with pytest.raises(InvalidLlmResponse, match="did not answer with 1 vectors"):
        await embedder.embed(["a"])
    assert time.monotonic() - began < 5


async def test_a_redirect_to_another_host_is_not_followed(
    llm: FakeLlmServer, embedder: RemoteEmbedder
):
    with FakeLlmServer() as other_server:
        headers = {"Location": f"{other_server.url}/embeddings"}
        llm.always(lambda exchange, _: exchange.send(307, b"", headers=headers))
        with pytest.raises(InvalidLlmResponse, match="redirects to another host"):
            await embedder.embed(["a"])
        assert other_server.requests == []


async def test_a_circle_of_redirects_is_refused_for_good():
    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 307 Again\r\nLocation: /v1/embeddings\r\nContent-Length: 0\r\n"
        writer.write(head + b"Connection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(redirect, "127.0.0.1", 0) as redirecting_server:
        port = redirecting_server.sockets[0].getsockname()[1]
        embedder = RemoteEmbedder(
            f"http://127.0.0.1:{port}/v1", "m", 8, timeout=10, calibration=CALIBRATION
        )
        with pytest.raises(LlmRefused, match="circle"):
            await embedder.embed(["a"])

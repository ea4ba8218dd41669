"""The benchmark's LLM server: what its batching does, and what its clients see."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import httpx
import pytest

from benchmarks.llm_batch import Batch, Full, Machine
from benchmarks.llm_server import serving
from tests.support.eventually import eventually

QUICK_MACHINE = Machine(at_once=2, queued=1, tokens=20, scale=50)


def chat(text: str, **parameters: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **parameters}


async def test_running_requests_share_the_machine() -> None:
    now = [0.0]
    batch = Batch(Machine(knee=10, step=1.0, at_once=100), lambda: now[0])
    paces = []
    for _ in range(40):
        await batch.enter()
        paces.append(batch._pace())
    assert paces[0] == pytest.approx(1.0, abs=0.01)
    assert paces[39] == pytest.approx(1 / 4, rel=0.01), (
        "beyond the knee, the pace falls with their number"
    )
    assert all(slower <= quicker for quicker, slower in pairwise(paces))


async def test_a_full_machine_queues_and_then_refuses() -> None:
    batch = Batch(QUICK_MACHINE, asyncio.get_running_loop().time)
    await batch.enter()
    await batch.enter()
    third = asyncio.create_task(batch.enter())
    await eventually(lambda: batch.waiting)
    with pytest.raises(Full):
        await batch.enter()
    batch.leave()
    await third
    assert (batch.running, batch.waiting) == (2, 0)


async def test_waiting_too_long_times_out() -> None:
    batch = Batch(Machine(at_once=1, patience=0.05), asyncio.get_running_loop().time)
    await batch.enter()
    with pytest.raises(TimeoutError):
        await batch.enter()
    assert batch.waiting == 0


async def test_the_server_answers_whole_or_streamed_and_counts_refusals() -> None:
    with serving(QUICK_MACHINE) as (url, app):
        async with httpx.AsyncClient(base_url=url) as client:
            whole = await client.post("/chat/completions", json=chat("a"))
            streamed = await client.post(
                "/chat/completions",
                json=chat("a", stream=True, stream_options={"include_usage": True}),
            )
            text = whole.json()["choices"][0]["message"]["content"]
            assert len(text.split()) == whole.json()["usage"]["completion_tokens"]
            assert streamed.text.count("data: ") > 3
            assert streamed.text.endswith("data: [DONE]\n\n")
            answers = await asyncio.gather(
                *(client.post("/chat/completions", json=chat(str(n))) for n in range(8))
            )
            refused = [each for each in answers if each.status_code == 503]
            assert refused
            assert all(each.headers["retry-after"] == "1" for each in refused)
            stats = (await client.get(url.replace("/v1", "/stats"))).json()
            assert stats["most"] > 3, "the most requests at once, refused ones included"
            assert stats["answered"] + stats["refused"] == 10
            assert max(stats["by_question"].values()) == 2
            assert 0 < stats["use"] <= 1
    assert app.counts.answered == stats["answered"]


async def test_a_client_that_disconnects_frees_its_place() -> None:
    with serving(Machine(at_once=1, tokens=1000, scale=1)) as (url, app):
        async with httpx.AsyncClient(base_url=url) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/chat/completions", json=chat("long"), timeout=0.2)
        await eventually(lambda: app.counts.abandoned == 1 and app.batch.running == 0)


@pytest.mark.parametrize("stream", [True, False])
async def test_cut_answers_end_in_the_middle(stream: bool) -> None:
    with serving(Machine(cut=1.0, scale=50)) as (url, app):
        async with httpx.AsyncClient(base_url=url) as client:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post("/chat/completions", json=chat("a", stream=stream))
    assert app.counts.cut == 1


async def test_a_limit_per_minute_has_headers_with_the_remaining_requests() -> None:
    with serving(Machine(per_minute=2, scale=50)) as (url, _):
        async with httpx.AsyncClient(base_url=url) as client:
            answers = [await client.post("/chat/completions", json=chat("a")) for _ in range(3)]
    assert [each.status_code for each in answers] == [200, 200, 429]
    assert answers[0].headers["x-ratelimit-remaining-requests"] == "1"
    assert answers[2].headers["retry-after"] == "1"

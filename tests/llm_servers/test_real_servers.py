"""The LLM lane in front of real servers with a small model: `make test-llm`.

Two cores write six to forty tokens a second, so answers are short and time limits long. What the
tests found is shown at the end of a run; docs/llm.md has what one run showed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import openai
import pytest

from switchyard import LLMQueue
from switchyard.api.client import AsyncClient
from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.services.common.files.storage import Storage
from switchyard.services.engine.records.states import State
from switchyard.services.engine.wings import job_modules
from switchyard.services.llm.job_answers import raw_answers
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.llm_queue import LlmResult, LlmStatus
from switchyard.services.llm.records.llm_servers import LlmServerReport
from switchyard.services.llm.server_probe import ServerProbe, probe_server
from tests.support.api_server import client_of, serving, until_connected
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.real_llm_servers import (
    ALIAS,
    E5_DIMENSIONS,
    LLAMA_CPP_PYTHON,
    SLOWNESS,
    TRANSFORMERS,
    RealServer,
)
from tests.support.system import System, open_system

Note = Callable[[str], None]
CALL_TIMEOUT = 240.0 * SLOWNESS
"""Seconds for one call, on a machine that is busy with something else, too."""
LONG_ANSWER = 900
"""Tokens: a minute or more of any of these servers."""
SHORT_ANSWER = 8
SCHEMA_ANSWER = 40
"""Tokens: more than the answer that fits needs."""
SCHEMA_JOBS = 3
JOBS = 20
TEST_TIMEOUT = 500.0 * SLOWNESS
"""Seconds until the results of a test must be there."""


def question(number: int | str = 0, max_tokens: int = SHORT_ANSWER) -> dict[str, Any]:
    """Return a question, another one for each number, so that no stored answer is used."""
    text = f"Question {number}: what is a tide?"
    return {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}


@pytest.fixture
async def system(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, server: RealServer
) -> AsyncIterator[System]:
    """Yield a system whose only provider is the real server."""
    overrides: dict[str, Any] = {"llm_providers": (server.provider(),), "llm_timeout": CALL_TIMEOUT}
    async with open_system(
        broker310, sqlite_url, modules=job_modules(), data_dir=tmp_path, **overrides
    ) as opened:
        yield opened


async def report_of(system: System, server: RealServer) -> LlmServerReport:
    """Return what all processes know of the server."""
    reports = await LlmLedger(system.ledger).slots.llm_servers()
    return next(each for each in reports if each.name == server.kind.name)


async def is_busy(system: System) -> bool:
    return any(each.in_flight for each in await LlmLedger(system.ledger).slots.llm_servers())


async def ask_many(queue: LLMQueue, count: int = JOBS) -> list[str]:
    return [await queue.submit("chat_completion", question(each)) for each in range(count)]


async def results_of(queue: LLMQueue, ids: list[str]) -> list[LlmResult]:
    return [await queue.result(each, timeout=TEST_TIMEOUT) for each in ids]


async def outcome_of(system: System, ids: list[str], results: list[LlmResult]) -> str:
    """Say how jobs ended, and count them by their attempts."""
    attempts = Counter([(await system.record(each)).attempts for each in ids])
    statuses = Counter(each.status.value for each in results)
    return f"{dict(statuses)}, jobs by their attempts {dict(attempts)}"


async def test_the_check_finds_the_dialect_and_schemas_are_answered_in_it(
    system: System, server: RealServer, note: Note
) -> None:
    probe: ServerProbe = await probe_server(server.provider(), CALL_TIMEOUT)
    note(f"{json.dumps(probe.findings)} {json.dumps(probe.settings)}")
    assert probe.settings["stream"] is True
    # llama-cpp-python's server counts only those of an answer that is not streamed.
    is_counted = probe.findings["counts tokens"] == "yes"
    assert is_counted is (server.kind is not LLAMA_CPP_PYTHON)
    found_options: dict[str, Any] = {"llm_providers": (server.provider(**probe.settings),)}
    await system.start_worker("llm", **found_options)
    schema = {
        "type": "object",
        "properties": {"label": {"enum": ["sea", "land"]}},
        "required": ["label"],
        "additionalProperties": False,
    }
    async with LLMQueue.open(system.settings) as queue:
        ids = [
            await queue.submit(
                "chat_completion", question(n, SCHEMA_ANSWER) | {"json_schema": schema}
            )
            for n in range(SCHEMA_JOBS)
        ]
        results = await results_of(queue, ids)
    fits = [each.value for each in results if each.status == LlmStatus.COMPLETED]
    errors = {each.error for each in results if each.status != LlmStatus.COMPLETED}
    note(f"{len(fits)} of {len(results)} answers fit the schema; {errors or 'none failed'}")
    note(await outcome_of(system, ids, results))
    assert all(each["label"] in ("sea", "land") for each in fits)
    if probe.settings.get("schema") == "json_schema":
        assert len(fits) == len(results)  # the server's grammar lets the model say nothing else
    # Else a small model often fails: that is said at once, and is no fault of the server.
    failed = [each for each in results if each.status != LlmStatus.COMPLETED]
    assert {each.error_type for each in failed} <= {"LlmUnusable"}
    storage = Storage(system.settings.files_url)
    for each in failed:
        record = await system.record(each.job_id)
        assert record.reason == Reason.PERMANENT
        assert record.attempts == 1
        assert len(await raw_answers(storage, record) or []) == 2
    assert (await report_of(system, server)).state.failures == 0


async def test_a_document_is_summarised_by_the_model_and_found_by_its_meaning(
    system: System, server: RealServer, embedder: RealServer, tmp_path: Path, note: Note
) -> None:
    system.settings = system.settings.model_copy(
        update={
            "embed_base_url": embedder.url,
            "embed_model": embedder.kind.model(),
            "embed_dimensions": E5_DIMENSIONS,
        }
    )
    await system.start_worker("ingest", "llm", "embed", "link")
    papers = {
        "tides.md": "# On tides\n\nThe moon pulls the oceans, so that the sea rises and falls "
        "twice a day at every coast. Harbours publish the hours of high water.",
        "bread.md": "# On bread\n\nYeast turns sugar into gas, so that the dough grows. A baker "
        "kneads flour with water, waits an hour, and heats the oven.",
    }
    async with serving(system.settings) as api, AsyncClient(api.url, timeout=120) as client:
        await until_connected(api)
        ids = {}
        for name, text in papers.items():
            path = tmp_path / name
            path.write_text(text)
            upload = await client.upload(path)
            ids[name] = upload.document_id
        for document_id in ids.values():
            await client.wait_for_document(document_id, timeout=TEST_TIMEOUT)
            document = await client.document_result(document_id)
            note(str(document["summary"]))
            assert document["summary"]["method"] == "llm"
            assert document["summary"]["summary"].strip()
        found = await client.search("why does water at the beach go up?", mode="vector")
        assert found.hits[0].document_id == ids["tides.md"]


async def test_an_answer_is_streamed_as_the_server_writes_it(
    system: System, server: RealServer, note: Note
) -> None:
    await system.start_worker("llm")
    async with LLMQueue.open(system.settings) as queue:
        text_so_far, first, began = "", 0.0, time.monotonic()
        async with aclosing(queue.stream("chat_completion", question(max_tokens=60))) as events:
            async for each in events:
                if isinstance(each, LlmResult):
                    assert each.status == LlmStatus.COMPLETED, each
                    assert each.text == text_so_far.strip()
                    assert each.result is not None
                    note(
                        f"first text after {first:.1f} s, end after "
                        f"{time.monotonic() - began:.1f} s: {each.result['usage']}"
                    )
                    if server.kind is not LLAMA_CPP_PYTHON:  # it counts no tokens of a stream
                        assert 0 < each.result["usage"]["completion_tokens"] <= 60
                else:
                    first = first or time.monotonic() - began
                    assert each.offset <= len(text_so_far) + 1
                    text_so_far += each.text


async def test_a_cancelled_answer_frees_the_server(
    system: System, server: RealServer, note: Note
) -> None:
    await system.start_worker("llm")
    async with LLMQueue.open(system.settings) as queue:
        seconds_alone = time.monotonic()
        result = await queue.call("chat_completion", question("first"), timeout=TEST_TIMEOUT)
        seconds_alone = time.monotonic() - seconds_alone
        assert result.status == LlmStatus.COMPLETED
    async with serving(system.settings) as api, AsyncClient(api.url) as client:
        await until_connected(api)
        async with aclosing(client.stream_llm(question("long", LONG_ANSWER))) as events:
            async for event in events:
                if event.name == "accepted":
                    job_id = event.data["job_id"]
                if event.name == "text":
                    break
        await client.cancel(job_id)
        await system.wait_for_state(job_id, State.CANCELLED)
        began = time.monotonic()
        async with LLMQueue.open(system.settings) as queue:
            result = await queue.call("chat_completion", question("next"), timeout=TEST_TIMEOUT)
        assert result.status == LlmStatus.COMPLETED, result
        after = time.monotonic() - began
        note(f"an answer takes {seconds_alone:.1f} s, and one behind a cancelled one {after:.1f} s")
        assert after < 3 * seconds_alone + 5


async def test_a_killed_server_loses_no_job(system: System, server: RealServer, note: Note) -> None:
    await system.start_worker("llm", slots=JOBS)
    async with LLMQueue.open(system.settings) as queue:
        ids = await ask_many(queue)
        await eventually(lambda: is_busy(system), what="a call under way")
        server.kill()
        server.start()
        await server.ready()
        results = await results_of(queue, ids)
    note(await outcome_of(system, ids, results))
    assert [each.error for each in results if each.status != LlmStatus.COMPLETED] == []
    assert await system.letters() == []


async def test_a_frozen_server_loses_no_job(system: System, server: RealServer, note: Note) -> None:
    # Shorter than the server is frozen, longer than an answer takes behind another.
    await system.start_worker("llm", slots=JOBS, llm_timeout=30 * SLOWNESS)
    async with LLMQueue.open(system.settings) as queue:
        ids = await ask_many(queue, 6)
        await eventually(lambda: is_busy(system), what="a call under way")
        server.freeze()
        await asyncio.sleep(45 * SLOWNESS)
        server.thaw()
        results = await results_of(queue, ids)
    note(await outcome_of(system, ids, results))
    assert [each.error for each in results if each.status != LlmStatus.COMPLETED] == []
    assert await system.letters() == []


async def test_the_limit_finds_how_many_calls_the_server_takes(
    system: System, server: RealServer, note: Note
) -> None:
    await system.start_worker("llm", slots=JOBS)
    began = time.monotonic()
    async with LLMQueue.open(system.settings) as queue:
        ids = await ask_many(queue)
        results = await results_of(queue, ids)
    limit = (await report_of(system, server)).state.limit
    note(
        f"{await outcome_of(system, ids, results)} in {time.monotonic() - began:.0f} s, "
        f"limit {limit:.2f}"
    )
    assert [each.error for each in results if each.status != LlmStatus.COMPLETED] == []
    assert limit < 4


async def test_the_openai_package_is_answered_by_the_server_behind_the_lanes(
    system: System, server: RealServer, note: Note
) -> None:
    await system.start_worker("llm")
    async with serving(system.settings) as api, client_of(api) as api_client:
        await until_connected(api)
        client = api_client.with_options(timeout=CALL_TIMEOUT)
        assert ALIAS in {each.id async for each in client.models.list()}
        chat: Any = question("whole")["messages"]
        whole = await client.chat.completions.create(model=ALIAS, messages=chat, max_tokens=8)
        assert whole.choices[0].message.content
        if server.kind is not LLAMA_CPP_PYTHON:  # it counts no tokens of a stream
            assert whole.usage is not None
            assert 0 < whole.usage.completion_tokens <= 8
        pieces = await client.chat.completions.create(
            model=ALIAS, messages=question("pieces")["messages"], max_tokens=20, stream=True
        )
        texts = [each.choices[0].delta.content or "" async for each in pieces if each.choices]
        assert len([each for each in texts if each]) > 1
        text = await client.completions.create(model=ALIAS, prompt="The tide is", max_tokens=8)
        assert text.choices[0].text
        if server.kind is TRANSFORMERS:
            return  # it would read a request of any length, for minutes
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(
                model=ALIAS, messages=[{"role": "user", "content": "tide " * 6_000}], max_tokens=8
            )
        note(f"a request that is too long: {refused.value.code}: {refused.value.message[:200]}")


async def test_vectors_come_through_the_lanes_as_the_embedder_makes_them(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, embedder: RealServer
) -> None:
    overrides: dict[str, Any] = {
        "llm_providers": (embedder.provider(),),
        "llm_timeout": CALL_TIMEOUT,
    }
    texts = ["The sea rises twice a day.", "Water at the coast goes up and down.", "Bake a loaf."]
    async with open_system(
        broker310, sqlite_url, modules=job_modules(), data_dir=tmp_path, **overrides
    ) as system:
        await system.start_worker("llm")
        async with serving(system.settings) as api, client_of(api) as client:
            await until_connected(api)
            answer = await client.embeddings.create(model=ALIAS, input=texts)
    sea, coast, loaf = (each.embedding for each in answer.data)
    assert len(sea) == E5_DIMENSIONS
    assert product(sea, coast) > product(sea, loaf)


def product(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))

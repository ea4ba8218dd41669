"""Requests to `LLMQueue` and `/llm/requests`: answers, repairs, streams, expiry and refusals."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from switchyard import LLMQueue
from switchyard.api.client import AsyncClient
from switchyard.broker.errors import LaneFull
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.monitoring import job_end
from switchyard.services.engine.monitoring.job_events import EventFeed
from switchyard.services.engine.monitoring.lane_pressure import LanePressure
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.states import State
from switchyard.services.llm import llm_queue
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.llm_queue import LlmResult, LlmStatus, UnknownLlmRequest
from tests.support import llm_server
from tests.support.api_server import serving, until_connected
from tests.support.brokers import TestBroker
from tests.support.commands import jobctl
from tests.support.eventually import eventually
from tests.support.llm_server import FakeLlmServer
from tests.support.redrives import indexing
from tests.support.site import answer_well, held, slow
from tests.support.system import System, open_system

CLASSIFY = {"text": "The sea is salt.", "labels": ["sea", "land"]}
SEA = llm_server.answers('{"label": "sea"}')
NONSENSE = llm_server.answers("It is about the sea.")


@pytest.fixture
async def system(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, llm: FakeLlmServer
) -> AsyncIterator[System]:
    modules = (
        "switchyard.services.pipeline.workers.summaries",
        "switchyard.services.llm.job_types",
    )
    async with open_system(broker310, sqlite_url, data_dir=tmp_path, modules=modules) as opened:
        overrides = {"llm_base_url": llm.url, "llm_timeout": 20.0}
        opened.settings = opened.settings.model_copy(update=overrides)
        yield opened


@pytest.fixture
async def queue(system: System) -> AsyncIterator[LLMQueue]:
    async with LLMQueue.open(system.settings) as opened:
        yield opened


async def test_a_question_is_answered_through_the_lanes(
    system: System, queue: LLMQueue, llm: FakeLlmServer
) -> None:
    await system.start_worker("llm")
    llm.next(SEA)
    result = await queue.call("classify", CLASSIFY, priority=5)
    assert (result.status, result.value) == (LlmStatus.COMPLETED, {"label": "sea"})
    repeated = await queue.call("classify", CLASSIFY)
    assert repeated.result is not None
    assert repeated.result["answer_reused"] is True
    assert len(llm.requests) == 1
    llm.next(llm_server.answers('{"label": "land"}'))
    fresh = await queue.call("classify", CLASSIFY | {"fresh": True})
    assert fresh.value == {"label": "land"}


async def test_a_waiting_caller_is_woken_by_the_event_and_not_by_a_poll(
    system: System, queue: LLMQueue, llm: FakeLlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_end, "STATE_POLL_INTERVAL", 3600.0)
    job_id = await queue.submit("chat_completion", {"messages": [{"role": "user", "content": "?"}]})
    waiting = asyncio.create_task(queue.result(job_id, timeout=60))
    await system.start_worker("llm")
    result = await waiting
    assert result.text == llm_server.ANSWER
    late = await queue.result(job_id, timeout=1)
    assert late == result, "a later caller reads it from the ledger"


async def test_a_lost_event_is_replaced_by_a_poll(
    system: System, queue: LLMQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_end, "STATE_POLL_INTERVAL", 0.2)
    monkeypatch.setattr(EventFeed, "deliver", lambda self, event: None)
    await system.start_worker("llm")
    result = await queue.call("chat_completion", {"messages": [{"role": "user", "content": "?"}]})
    assert result.status is LlmStatus.COMPLETED


async def test_a_second_answer_repairs_the_first(
    system: System, queue: LLMQueue, llm: FakeLlmServer
) -> None:
    await system.start_worker("llm")
    llm.next(NONSENSE, SEA)
    result = await queue.call("classify", CLASSIFY)
    assert result.value == {"label": "sea"}
    assert result.result is not None
    assert result.result["repaired"] is True
    message = llm.requests[1].json["messages"][-1]["content"]
    assert "not JSON" in message


async def test_two_answers_that_do_not_fit_end_the_job_and_are_stored(
    system: System, queue: LLMQueue, llm: FakeLlmServer
) -> None:
    await system.start_worker("llm")
    llm.next(NONSENSE, llm_server.answers('{"label": "mountain"}'))
    result = await queue.call("classify", CLASSIFY)
    assert result.status is LlmStatus.FAILED
    assert result.error is not None
    assert "does not fit the schema" in result.error
    record = await system.ledger.job_reads.get(result.job_id)
    assert record is not None
    assert (record.state, record.reason, record.attempts) == (State.DEAD, "permanent", 1)
    assert f"jobctl llm show {result.job_id}" in result.error
    raw_answers = ["It is about the sea.", '{"label": "mountain"}']
    async with serving(system.settings) as api, AsyncClient(api.url) as client:
        answer = await client.answer(result.job_id)
        assert (answer.status, answer.raw_answers) == ("failed", raw_answers)
    output = await show(system, result.job_id)
    assert output.returncode == 1
    assert output.stdout.splitlines() == raw_answers
    output = await show(system, result.job_id, "--json")
    assert json.loads(output.stdout)["raw_answers"] == raw_answers
    llm.next(SEA)
    redone = await queue.call("classify", CLASSIFY)
    assert redone.value == {"label": "sea"}, "not from the cache"
    output = await show(system, redone.job_id)
    assert (output.returncode, json.loads(output.stdout)) == (0, {"label": "sea"})


async def show(system: System, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `jobctl llm show`."""
    settings = system.settings
    environment = {
        "JOBS_DATABASE_URL": settings.ledger_url,
        "JOBS_DATA_DIR": str(settings.data_dir),
    }
    return await jobctl("llm", "show", *arguments, **environment)


async def test_a_request_that_expires_while_it_waits_times_out_and_costs_nothing(
    system: System, queue: LLMQueue, llm: FakeLlmServer
) -> None:
    job_id = await queue.submit("classify", CLASSIFY, expires_in=0.05)
    await asyncio.to_thread(time.sleep, 0.06)
    await system.start_worker("llm")
    result = await queue.result(job_id, timeout=30)
    assert result.status is LlmStatus.TIMEOUT
    assert not llm.requests


async def test_a_request_that_expires_during_its_call_times_out_at_once(
    system: System, queue: LLMQueue, llm: FakeLlmServer
) -> None:
    await system.start_worker("llm")
    llm.always(slow(30))
    began = time.monotonic()
    job_id = await queue.submit("classify", CLASSIFY, expires_in=1.5)
    result = await queue.result(job_id, timeout=30)
    assert result.status is LlmStatus.TIMEOUT
    assert time.monotonic() - began < 10
    record = await system.ledger.job_reads.get(job_id)
    assert record is not None
    assert record.reason == "expired"


async def test_a_request_that_would_expire_before_its_retry_times_out_at_once(
    system: System, queue: LLMQueue, llm: FakeLlmServer
) -> None:
    """The request waits for a server without a free slot, and expires before the shortest retry
    delay."""
    single_slot: dict[str, Any] = {
        "llm_concurrency": 1,
        "llm_concurrency_min": 1,
        "llm_concurrency_max": 1,
    }
    await system.start_worker("llm", slots=2, retry_delays=(60.0,), **single_slot)
    slot_is_free = threading.Event()
    llm.next(held(slot_is_free, answer_well))
    first = await queue.submit("chat_completion", {"messages": [{"role": "user", "content": "1"}]})
    await eventually(lambda: llm.requests, what="the first call")
    job_id = await queue.submit("classify", CLASSIFY, expires_in=3)
    result = await queue.result(job_id, timeout=2.8)
    assert result.status is LlmStatus.TIMEOUT
    assert result.error is not None
    assert "as many requests as they may" in result.error
    assert len(llm.requests) == 1
    slot_is_free.set()
    assert (await queue.result(first, timeout=30)).status is LlmStatus.COMPLETED


async def test_a_long_pause_can_be_ended_early_and_waiting_jobs_run(
    system: System, queue: LLMQueue, llm: FakeLlmServer
) -> None:
    await system.start_worker("llm")
    llm.next(llm_server.fails(429, "come back later", Retry_After="3600"), SEA)
    job_id = await queue.submit("classify", CLASSIFY)
    await system.wait_for_state(job_id, State.RETRYING)
    (paused,) = await LlmLedger(system.ledger).slots.llm_servers()
    assert paused.paused_for > 3500
    environment = {"JOBS_DATABASE_URL": system.settings.ledger_url}
    async with indexing(system):
        output = (await jobctl("llm", "resume", paused.name, **environment)).stdout
        assert output == (
            f"{paused.name} is asked again; 1 waiting job is published again by the scheduler\n"
        )
        assert (await queue.result(job_id, timeout=20)).value == {"label": "sea"}
    repeated = json.loads(
        (await jobctl("llm", "resume", paused.name, "--json", **environment)).stdout
    )
    assert repeated == {"server": paused.name, "paused_for": 0.0, "jobs": 0}
    unknown = await jobctl("llm", "resume", "elsewhere", **environment)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "no model server 'elsewhere' was called" in unknown.stderr


async def test_a_stream_ends_with_timeout_when_its_time_is_over(
    system: System, queue: LLMQueue
) -> None:
    (end,) = [each async for each in queue.stream("classify", CLASSIFY, timeout=0.3)]
    assert isinstance(end, LlmResult)
    assert end.status is LlmStatus.TIMEOUT, "no worker runs"


async def test_over_http_a_stream_ends_with_timeout_when_its_time_is_over(system: System) -> None:
    async with serving(system.settings) as api, AsyncClient(api.url) as client:
        await until_connected(api)
        events = [
            each async for each in client.stream_llm(CLASSIFY, type="classify", expires_in=0.3)
        ]
        assert [each.name for each in events] == ["accepted", "end"]
        assert events[-1].data["status"] == "timeout"
        repeated = await client.answer(events[0].data["job_id"])
        assert repeated.status == "timeout", "the same for a later caller"


async def test_a_call_returns_timeout_when_its_time_is_over(
    system: System, queue: LLMQueue
) -> None:
    result = await queue.call("classify", CLASSIFY, timeout=0.3)
    assert result.status is LlmStatus.TIMEOUT, "no worker runs"


async def test_rate_limits_of_a_server_use_up_no_attempt(
    system: System, queue: LLMQueue, llm: FakeLlmServer
) -> None:
    await system.start_worker("llm")
    llm.next(*[llm_server.rate_limited(1)] * 4, SEA)
    result = await queue.call("classify", CLASSIFY, timeout=60)
    assert result.value == {"label": "sea"}
    record = await system.ledger.job_reads.get(result.job_id)
    assert record is not None
    assert record.attempts == 0


async def test_waiting_for_a_server_leaves_no_traceback_in_the_log(
    system: System, queue: LLMQueue, llm: FakeLlmServer, capfd: pytest.CaptureFixture[str]
) -> None:
    await system.start_worker("llm")
    llm.next(llm_server.rate_limited(60))
    await queue.submit("classify", CLASSIFY)
    output = ""

    def is_snoozed() -> bool:
        nonlocal output
        output += capfd.readouterr().out
        return "snoozed" in output

    await eventually(is_snoozed)
    assert "the model server" in output
    assert "Traceback" not in output


async def test_requests_that_wait_for_paused_servers_fill_their_lane(
    system: System, queue: LLMQueue, llm: FakeLlmServer
) -> None:
    """Such requests are in no queue, so the queue's length alone would admit any number."""
    await system.start_worker("llm")
    pressure_marks = {"llm_ok_below": 1, "llm_slow_at": 1, "llm_full_at": 3}
    settings = system.settings.model_copy(update=pressure_marks)
    async with LanePressure(
        settings, system.registry, ledger=system.ledger, fresh_for=0
    ) as pressure:

        async def all_wait() -> bool:
            depth = (await pressure.snapshot()).queue("hot.llm")
            assert depth is not None
            return depth.put_off == 3

        llm.always(llm_server.rate_limited(60))
        for number in range(3):
            await queue.submit("classify", CLASSIFY | {"text": str(number)})
        await eventually(all_wait)
        jobs = JobPublisher(system.registry, system.ledger, system.wire, pressure=pressure)
        with pytest.raises(LaneFull):
            await jobs.publish(JobRequest("hot.classify", CLASSIFY))


async def test_an_unknown_request_has_no_answer(queue: LLMQueue) -> None:
    with pytest.raises(UnknownLlmRequest):
        await queue.result("nothing", timeout=1)


async def test_a_queue_opens_without_events(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm_queue, "SUBSCRIBE_TIMEOUT", 0.0)
    async with LLMQueue.open(system.settings) as opened:
        assert await opened.submit("classify", CLASSIFY)


async def test_over_http_a_request_that_waits_returns_its_answer(
    system: System, llm: FakeLlmServer
) -> None:
    await system.start_worker("llm")
    llm.next(SEA)
    async with serving(system.settings) as api:
        await until_connected(api)
        await eventually(lambda: api.state.broker.feed.is_listening.is_set())
        request_fields = {"type": "classify", "payload": CLASSIFY}
        answer = await api.client.post("/llm/requests", json={**request_fields, "wait": 30})
        assert answer.status_code == 200, answer.text
        assert answer.json()["status"] == "completed"
        assert answer.json()["result"]["value"] == {"label": "sea"}
        later = await api.client.post("/llm/requests", json=request_fields)
        assert later.status_code == 202
        assert later.json()["status"] == "waiting"
        assert later.headers["x-lane-pressure"] == "ok"
        response = await api.client.get(later.headers["location"], params={"wait": 30})
        assert (response.status_code, response.json()["status"]) == (200, "completed")
        repeated = await api.client.post("/llm/requests", params={"wait": 30}, json=request_fields)
        assert repeated.status_code == 200, "as with GET"


async def test_over_http_invalid_requests_are_refused(system: System) -> None:
    async def post_request(api: Any, **body: Any) -> httpx.Response:
        answer: httpx.Response = await api.client.post("/llm/requests", json=body)
        return answer

    async with serving(system.settings) as api:
        await until_connected(api)
        assert (await post_request(api, type="classify", payload={})).status_code == 422
        assert (await post_request(api, type="summarize", payload=CLASSIFY)).status_code == 422
        assert (
            await post_request(api, type="classify", payload=CLASSIFY, wait=3600)
        ).status_code == 422
        schema = {"$ref": "http://127.0.0.1:1/x"}
        chat = {"messages": [{"role": "user", "content": "?"}], "json_schema": schema}
        assert (await post_request(api, payload=chat)).status_code == 422
        too_long = await api.client.post(
            "/llm/requests", params={"wait": 3600}, json={"type": "classify", "payload": CLASSIFY}
        )
        assert too_long.status_code == 422
        late = await api.client.post(
            "/llm/requests", json={"type": "classify", "payload": CLASSIFY, "wait": 0.1}
        )
        assert late.status_code == 202
        assert (await api.client.get("/llm/requests/nothing")).status_code == 404


def test_the_registry_has_the_job_types_of_questions() -> None:
    assert {"chat_completion", "classify"} <= {each.name for each in Registry.load()}


async def test_the_same_idempotency_key_is_the_same_request(system: System) -> None:
    request_fields = {"type": "classify", "payload": CLASSIFY, "expires_in": 600}
    key = {"Idempotency-Key": "question-1"}
    async with serving(system.settings) as api:
        await until_connected(api)
        first = await api.client.post("/llm/requests", json=request_fields, headers=key)
        repeated = await api.client.post("/llm/requests", json=request_fields, headers=key)
        assert (repeated.status_code, repeated.headers["idempotency-replayed"]) == (202, "true")
        assert repeated.json() == first.json()
        for change in ({"lane": "backfill"}, {"expires_in": 60}, {"payload": {"text": "Other"}}):
            other = await api.client.post(
                "/llm/requests", json=request_fields | change, headers=key
            )
            assert other.status_code in (409, 422), change
        other_text = request_fields | {"payload": CLASSIFY | {"text": "The land is dry."}}
        other = await api.client.post("/llm/requests", json=other_text, headers=key)
        assert other.json()["type"].endswith("idempotency-conflict")
    assert len((await system.ledger.job_reads.list_jobs()).items) == 1

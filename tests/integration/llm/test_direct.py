"""Direct mode: a process calls the model server itself, by the rules of the lanes and without a
broker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard import LLMQueue
from switchyard.broker.errors import LaneFull
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import InvalidPayload
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.publishing.preparing import InvalidJob
from switchyard.services.engine.records.requests import JobFilter
from switchyard.services.engine.records.states import State
from switchyard.services.llm import direct_requests
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.llm_queue import LlmStatus
from tests.support import llm_server
from tests.support.api_server import serving
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.llm_process import asking_directly
from tests.support.llm_server import FakeLlmServer
from tests.support.metrics import Scrape
from tests.support.site import Exchange, Request, held, slow
from tests.support.system import open_system

CLASSIFY = {"text": "The sea is salt.", "labels": ["sea", "land"]}
SEA = llm_server.answers('{"label": "sea"}')


def chat(text: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}]}


@pytest.fixture
def settings(llm: FakeLlmServer, plain_ledger: Ledger, sqlite_url: str, tmp_path: Path) -> Settings:
    return Settings(
        amqp_url=None,
        database_url=SecretStr(sqlite_url),
        data_dir=tmp_path,
        llm_base_url=llm.url,
        llm_timeout=20.0,
        llm_direct=True,
    )


@pytest.fixture
async def queue(settings: Settings) -> AsyncIterator[LLMQueue]:
    async with LLMQueue.open(settings) as opened:
        yield opened


async def test_a_question_is_answered_and_recorded_without_a_broker(
    queue: LLMQueue, llm: FakeLlmServer, plain_ledger: Ledger
) -> None:
    llm.next(SEA)
    result = await queue.call("classify", CLASSIFY, priority=5)
    assert (result.status, result.value) == (LlmStatus.COMPLETED, {"label": "sea"})
    record = await plain_ledger.job_reads.get(result.job_id)
    assert record is not None
    assert (record.state, record.lane, record.priority) == (State.SUCCEEDED, "hot", 5)
    again = await queue.call("classify", CLASSIFY)
    assert again.result is not None
    assert again.result["answer_reused"] is True
    assert len(llm.requests) == 1, "what was answered is not paid for again"


async def test_another_process_finds_the_result_by_its_id(
    settings: Settings, queue: LLMQueue, llm: FakeLlmServer
) -> None:
    may_answer = threading.Event()
    llm.next(held(may_answer, SEA))
    async with LLMQueue.open(settings) as other_queue:
        job_id = await queue.submit("classify", CLASSIFY, key="once")
        assert await other_queue.submit("classify", CLASSIFY, key="once") == job_id
        assert (await other_queue.result(job_id, timeout=0.1)).status is LlmStatus.WAITING
        may_answer.set()
        assert (await other_queue.result(job_id, timeout=20)).value == {"label": "sea"}
    assert len(llm.requests) == 1


async def test_nothing_is_published(
    broker310: TestBroker, settings: Settings, sqlite_url: str, tmp_path: Path
) -> None:
    """Nothing reaches the broker, workers find nothing to do, and the doctor does not count the
    process as a worker."""
    modules = ("switchyard.services.llm.job_types",)
    async with open_system(broker310, sqlite_url, data_dir=tmp_path, modules=modules) as system:
        overrides = {"llm_base_url": settings.llm_base_url, "llm_direct": True}
        direct_settings = system.settings.model_copy(update=overrides)
        async with LLMQueue.open(direct_settings) as queue:
            assert (await queue.call("chat_completion", chat("?"))).status is LlmStatus.COMPLETED
            (process_record,) = await system.ledger.workers.list_workers()
            assert (process_record.kinds, process_record.stopped_at) == ((), None)
            context = DoctorContext(direct_settings, system.registry, ledger=system.ledger)
            assert await context.workers() == ([], [])
        for lane in ("hot", "backfill"):
            assert await system.ready(f"{lane}.llm") == 0
        (process_record,) = await system.ledger.workers.list_workers()
        assert process_record.stopped_at is not None


async def test_a_direct_request_is_not_taken_for_that_of_a_dead_worker(
    queue: LLMQueue, llm: FakeLlmServer, plain_ledger: Ledger
) -> None:
    may_answer = threading.Event()
    llm.next(held(may_answer, SEA))
    job_id = await queue.submit("classify", CLASSIFY)
    await eventually(lambda: llm.requests)
    assert await plain_ledger.job_reads.stale_running(60.0, 10) == []
    may_answer.set()
    assert (await queue.result(job_id, timeout=20)).status is LlmStatus.COMPLETED


@pytest.mark.long
async def test_two_processes_together_keep_the_limit_and_send_equal_questions_once(
    settings: Settings, llm: FakeLlmServer, sqlite_url: str
) -> None:
    busy = BusyServer()
    llm.always(busy)
    environment = {
        "JOBS_DATABASE_URL": sqlite_url,
        "JOBS_DATA_DIR": str(settings.data_dir),
        "JOBS_LLM_BASE_URL": llm.url,
        "JOBS_LLM_DIRECT": "true",
        "JOBS_LLM_PACING": "fixed",
        "JOBS_LLM_CONCURRENCY": "3",
        "JOBS_LLM_CONCURRENCY_MIN": "1",
    }
    shared_questions = [f"both {number}" for number in range(5)]
    with (
        asking_directly(environment, [*shared_questions, *(f"a {n}" for n in range(5))]) as first,
        asking_directly(environment, [*shared_questions, *(f"b {n}" for n in range(5))]) as second,
    ):
        first.go()
        second.go()
        outcomes = await asyncio.gather(first.answers(), second.answers())
    assert [each.count("completed") for each in outcomes] == [10, 10]
    assert len(llm.requests) == 15, "equal questions are one call"
    assert busy.max_at_once == 3, "never more than the limit, and the limit is used"


class BusyServer:
    """Answers after a moment, and counts how many it has at once."""

    def __init__(self) -> None:
        self.max_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()

    def __call__(self, exchange: Exchange, request: Request) -> None:
        with self._lock:
            self._at_once += 1
            self.max_at_once = max(self.max_at_once, self._at_once)
        try:
            exchange.server.owner.stopped.wait(0.3)
        finally:
            with self._lock:
                self._at_once -= 1
        llm_server.answers()(exchange, request)


async def test_a_pause_that_a_server_asks_for_is_observed_and_uses_up_no_attempt(
    settings: Settings, queue: LLMQueue, llm: FakeLlmServer, plain_ledger: Ledger
) -> None:
    llm.next(llm_server.rate_limited(2))
    began = time.monotonic()
    first = asyncio.create_task(queue.call("chat_completion", chat("one"), timeout=60))
    (report,) = await eventually(lambda: _paused(plain_ledger))
    assert report.paused_for > 0
    async with LLMQueue.open(settings) as other_queue:
        second = await other_queue.call("chat_completion", chat("two"), timeout=60)
    assert second.status is LlmStatus.COMPLETED
    assert time.monotonic() - began > 1.9, "the pause is every client's"
    result = await first
    record = await plain_ledger.job_reads.get(result.job_id)
    assert record is not None
    assert (result.status, record.attempts) == (LlmStatus.COMPLETED, 0)
    assert len(llm.requests) == 3


async def _paused(ledger: Ledger) -> list:
    return [each for each in await LlmLedger(ledger).slots.llm_servers() if each.paused_for]


async def test_a_pause_longer_than_the_requests_time_is_a_timeout(
    queue: LLMQueue, llm: FakeLlmServer, plain_ledger: Ledger
) -> None:
    llm.always(llm_server.rate_limited(120))
    result = await queue.call("chat_completion", chat("?"), timeout=2)
    assert result.status is LlmStatus.TIMEOUT
    record = await plain_ledger.job_reads.get(result.job_id)
    assert record is not None
    assert (record.state, record.reason) == (State.DEAD, "expired")


async def test_a_direct_request_that_expires_during_its_call_times_out_at_once(
    queue: LLMQueue, llm: FakeLlmServer
) -> None:
    llm.always(slow(30))
    began = time.monotonic()
    job_id = await queue.submit("classify", CLASSIFY, expires_in=1.0)
    result = await queue.result(job_id, timeout=30)
    assert result.status is LlmStatus.TIMEOUT
    assert time.monotonic() - began < 10


async def test_a_job_that_can_not_run_directly_is_refused_and_not_recorded(
    queue: LLMQueue, plain_ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidJob, match="not a single question"):
        await queue.submit("ingest_document", {})
    with pytest.raises(InvalidPayload):
        await queue.submit("classify", {})
    monkeypatch.setattr(direct_requests, "MAX_REQUESTS", 0)
    with pytest.raises(LaneFull):
        await queue.submit("classify", CLASSIFY)
    assert not (await plain_ledger.job_reads.list_jobs(JobFilter(), limit=1)).items


async def test_the_end_of_the_process_cancels_requests_under_way(
    settings: Settings, llm: FakeLlmServer, plain_ledger: Ledger
) -> None:
    llm.next(slow(30))
    async with LLMQueue.open(settings) as queue:
        calling_id = await queue.submit("classify", CLASSIFY)
        await eventually(lambda: llm.requests)
        llm.always(llm_server.rate_limited(120))
        waiting_id = await queue.submit("chat_completion", chat("?"))
        await eventually(lambda: _state(plain_ledger, waiting_id, State.RETRYING))
    for job_id in (calling_id, waiting_id):
        assert await _state(plain_ledger, job_id, State.CANCELLED)


async def _state(ledger: Ledger, job_id: str, state: State) -> bool:
    record = await ledger.job_reads.get(job_id)
    return record is not None and record.state is state


@pytest.mark.long  # until the hold of the dead one runs out
async def test_after_a_crash_the_job_is_stale_and_a_repeated_request_is_answered(
    settings: Settings, queue: LLMQueue, llm: FakeLlmServer, plain_ledger: Ledger, sqlite_url: str
) -> None:
    llm.next(slow(60))
    environment = {
        "JOBS_DATABASE_URL": sqlite_url,
        "JOBS_DATA_DIR": str(settings.data_dir),
        "JOBS_LLM_BASE_URL": llm.url,
        "JOBS_LLM_DIRECT": "true",
    }
    with asking_directly(environment, ["hello"]) as process:
        process.go()
        await eventually(lambda: llm.requests)
        process.kill()
    (stale,) = await plain_ledger.job_reads.stale_running(0.0, 10)
    assert stale.state is State.RUNNING, "the scheduler publishes it, where there is one"
    result = await queue.call("chat_completion", chat("hello"), timeout=60)
    assert result.status is LlmStatus.COMPLETED


async def test_over_http_an_answer_comes_without_a_broker(
    settings: Settings, llm: FakeLlmServer
) -> None:
    llm.next(SEA)
    request_fields = {"type": "classify", "payload": CLASSIFY}
    async with serving(settings) as api:
        answered = await api.client.post("/llm/requests", json={**request_fields, "wait": 30})
        assert answered.status_code == 200, answered.text
        assert answered.json()["result"]["value"] == {"label": "sea"}
        later = await api.client.post("/llm/requests", json=request_fields)
        assert (later.status_code, later.json()["status"]) == (202, "waiting")
        response = await api.client.get(later.headers["location"], params={"wait": 30})
        assert (response.status_code, response.json()["status"]) == (200, "completed")
        invalid = await api.client.post("/llm/requests", json={**request_fields, "payload": {}})
        assert invalid.status_code == 422
        assert (await api.client.get("/llm/requests/nothing?wait=1")).status_code == 404
        scrape = Scrape((await api.client.get("/metrics")).text)
        counted = {"status": "succeeded", "request_type": "classify"}
        assert scrape.value("llm_requests_processed_total", **counted) == 2
        assert scrape.value("llm_request_latency_seconds_count", request_type="classify") == 2
        assert "llm_worker_concurrency" in scrape.names
        assert scrape.value("llm_worker_concurrency") == 0


def test_direct_mode_without_a_server_is_an_invalid_setting() -> None:
    with pytest.raises(ValueError, match="JOBS_LLM_DIRECT is set: set JOBS_LLM_BASE_URL"):
        Settings(llm_direct=True)

"""Requests to `/v1` that the API sends to the server itself while nothing waits in the lane
(JOBS_LLM_DIRECT_CALLS), and how workers continue with them if it can't."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import openai
import pytest

from switchyard.services.engine.ledger.jobs import JobRepository
from switchyard.services.engine.monitoring.job_events import ENDINGS, JobEvent
from switchyard.services.engine.monitoring.lane_pressure import LanePressure, QueueDepth
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.engine.records.requests import ClaimRequest
from switchyard.services.engine.records.results import ClaimResult, JobRecord
from switchyard.services.engine.records.states import Pressure, State
from switchyard.services.llm.ledger import LlmLedger
from tests.support.api_server import client_of, serving, until_connected
from tests.support.eventually import eventually
from tests.support.llm_server import ANSWER, MODEL, FakeLlmServer, answers, fails
from tests.support.metrics import Scrape
from tests.support.site import Exchange, held, slow
from tests.support.system import System

CHAT: Any = [{"role": "user", "content": "What is a tide?"}]
OTHER: Any = [{"role": "user", "content": "What is an ebb?"}]
THIRD: Any = [{"role": "user", "content": "What is a flood?"}]
WAITING = {"messages": [{"role": "user", "content": "I was first"}]}


async def ask(client: openai.AsyncOpenAI, chat: Any = CHAT, **headers: str) -> Any:
    create = client.chat.completions.create
    return await create(model=MODEL, messages=chat, extra_headers=headers, timeout=60)


async def jobs_of(system: System) -> list[JobRecord]:
    page = await system.ledger.job_reads.list_jobs(limit=10)
    return [await system.record(each.id) for each in page.items]


async def test_the_api_calls_the_server_itself_while_no_job_waits(
    system: System, llm: FakeLlmServer
) -> None:
    async with serving(system.settings, llm_direct_calls=2) as api, client_of(api) as client:
        await until_connected(api)  # no worker is there
        answer = await ask(client)
        assert answer.choices[0].message.content == ANSWER
        (job,) = await jobs_of(system)
        assert job.state is State.SUCCEEDED
        assert (job.worker_id or "").startswith("inline-")
        assert await system.ready("hot.llm") == 0
        scrape = Scrape((await api.client.get("/metrics")).text)
        counted = {"status": "succeeded", "request_type": "chat_completion"}
        assert scrape.value("llm_requests_processed_total", **counted) == 1


async def test_requests_wait_in_the_lane_behind_a_waiting_job(
    system: System, llm: FakeLlmServer
) -> None:
    await system.publish("hot.chat_completion", WAITING)
    await system.wait_until_ready("hot.llm", 1)
    async with serving(system.settings, llm_direct_calls=2) as api, client_of(api) as client:
        await until_connected(api)  # it knows how many wait
        later = asyncio.create_task(ask(client))
        await system.wait_until_ready("hot.llm", 2)
        assert llm.requests == []
        await system.start_worker("llm")
        assert (await later).choices[0].message.content == ANSWER
    assert not any((each.worker_id or "").startswith("inline-") for each in await jobs_of(system))


async def test_requests_of_the_lane_backfill_wait_in_it(system: System, llm: FakeLlmServer) -> None:
    async with serving(system.settings, llm_direct_calls=2) as api, client_of(api) as client:
        await until_connected(api)
        bulk = asyncio.create_task(ask(client, **{"X-Job-Lane": "backfill"}))
        await system.wait_until_ready("backfill.llm", 1)
        assert llm.requests == []
        await system.start_worker("llm")
        await bulk


async def test_requests_beyond_the_maximum_wait_in_the_lanes(
    system: System, llm: FakeLlmServer
) -> None:
    may_answer = threading.Event()
    llm.next(held(may_answer, answers("the first")))
    async with serving(system.settings, llm_direct_calls=1) as api, client_of(api) as client:
        await until_connected(api)
        first = asyncio.create_task(ask(client))
        await eventually(lambda: llm.requests, what="the first call")
        second = asyncio.create_task(ask(client, OTHER))
        await system.wait_until_ready("hot.llm", 1)
        await system.start_worker("llm")
        assert (await second).choices[0].message.content == ANSWER
        may_answer.set()
        assert (await first).choices[0].message.content == "the first"


async def test_while_a_direct_call_waits_for_a_slot_requests_wait_in_the_lanes(
    system: System, llm: FakeLlmServer
) -> None:
    (own,) = system.settings.llm_servers
    overrides = {"llm_providers": (own.model_copy(update={"max_calls": 1}),), "llm_direct_calls": 3}
    may_answer = threading.Event()
    llm.next(held(may_answer, answers("the first")))
    async with serving(system.settings, **overrides) as api, client_of(api) as client:
        await until_connected(api)
        asking = [asyncio.create_task(ask(client))]
        await eventually(lambda: llm.requests, what="the first call")
        asking.append(asyncio.create_task(ask(client, OTHER)))
        slots = LlmLedger(system.ledger).slots

        async def call_waits() -> bool:
            return any(each.state.hot_waits_until for each in await slots.llm_servers())

        await eventually(call_waits, what="a call that waits for a slot")
        asking.append(asyncio.create_task(ask(client, THIRD)))
        await system.wait_until_ready("hot.llm", 1)
        may_answer.set()
        await asyncio.gather(*asking[:2])
        await system.start_worker("llm")
        await asking[2]


@pytest.mark.parametrize(
    "depth",
    [
        None,
        QueueDepth("hot.llm", None, 0, 1000, Pressure.OK),
        QueueDepth("hot.llm", 0, 0, 1000, Pressure.OK, put_off=1),
    ],
    ids=["unknown", "no queue", "put off"],
)
async def test_requests_take_the_lane_when_its_depth_is_unknown_or_jobs_are_put_off(
    system: System, llm: FakeLlmServer, monkeypatch: pytest.MonkeyPatch, depth: QueueDepth | None
) -> None:
    async def get_soon(self: LanePressure, queue: str) -> QueueDepth | None:
        return depth

    monkeypatch.setattr(LanePressure, "get_soon", get_soon)
    async with serving(system.settings, llm_direct_calls=2) as api, client_of(api) as client:
        await until_connected(api)
        asking = asyncio.create_task(ask(client))
        await system.wait_until_ready("hot.llm", 1)
        await system.start_worker("llm")
        await asking


async def test_requests_in_the_services_own_form_take_the_lanes(
    system: System, llm: FakeLlmServer
) -> None:
    async with serving(system.settings, llm_direct_calls=2) as api:
        await until_connected(api)
        await api.client.post("/llm/requests", json={"payload": WAITING})
        await system.wait_until_ready("hot.llm", 1)
        assert llm.requests == []


async def test_a_failed_direct_call_is_retried_by_a_worker(
    system: System, llm: FakeLlmServer
) -> None:
    llm.next(fails(500))
    async with serving(system.settings, llm_direct_calls=2) as api, client_of(api) as client:
        await until_connected(api)
        asking = asyncio.create_task(ask(client))
        await system.wait_until_ready("hot.llm", 1)
        (job,) = await jobs_of(system)
        assert (job.state, job.attempts) == (State.QUEUED, 0)
        worker = await system.start_worker("llm")
        assert (await asking).choices[0].message.content == ANSWER
        (job,) = await jobs_of(system)
        assert (job.state, job.worker_id) == (State.SUCCEEDED, worker.worker_id)


async def test_a_direct_call_that_the_api_leaves_when_it_stops_is_answered_by_a_worker(
    system: System, llm: FakeLlmServer
) -> None:
    llm.next(slow(30))
    async with serving(system.settings, llm_direct_calls=2) as api, client_of(api) as client:
        await until_connected(api)
        asking = asyncio.create_task(ask(client, **{"X-Job-Background": "true"}))
        await eventually(lambda: llm.requests, what="the call")
        await api.stop()
        with pytest.raises(openai.APIError):
            await asking
    await system.start_worker("llm")
    (job,) = await jobs_of(system)
    await system.wait_for_state(job.id, State.SUCCEEDED)


@pytest.mark.parametrize("setting", [{"llm_direct_calls": 2}, {"llm_direct": True}])
async def test_a_client_that_hangs_up_ends_the_call(
    system: System, llm: FakeLlmServer, setting: dict[str, Any]
) -> None:
    is_disconnected = threading.Event()

    def wait_until_disconnected(exchange: Exchange, request: Any) -> None:
        if not exchange.connection.recv(1):  # no byte: the client has disconnected
            is_disconnected.set()

    llm.next(wait_until_disconnected)
    async with serving(system.settings, **setting) as api, client_of(api) as client:
        await until_connected(api)
        asking = asyncio.create_task(ask(client))
        await eventually(lambda: llm.requests, what="the call")
        asking.cancel()
        (job,) = await jobs_of(system)
        await system.wait_for_state(job.id, State.CANCELLED)
        assert await asyncio.to_thread(is_disconnected.wait, 20)


async def test_a_refused_request_is_a_dead_letter_of_the_ledger(
    system: System, llm: FakeLlmServer
) -> None:
    llm.next(fails(400, "no such format"))
    async with serving(system.settings, llm_direct_calls=2) as api, client_of(api) as client:
        await until_connected(api)
        with pytest.raises(openai.BadRequestError):
            await ask(client)
    (job,) = await jobs_of(system)
    assert job.state is State.DEAD
    letter = await system.ledger.dead_letters.require_dead(job.id)
    assert letter.job_id == job.id
    assert len(llm.requests) == 1


async def test_the_end_is_announced_to_other_processes(system: System, llm: FakeLlmServer) -> None:
    end_events: list[str] = []

    def record_end(event: JobEvent) -> bool:
        if event.name in ENDINGS:
            end_events.append(event.name)
        return False

    async with (
        serving(system.settings, llm_direct_calls=2) as api,
        serving(system.settings) as other,
        client_of(api) as client,
    ):
        await until_connected(api)
        feed = other.state.broker.feed
        await eventually(feed.is_listening.is_set, what="the event feed")
        with feed.subscribe(record_end):
            await ask(client)
            await eventually(lambda: end_events == ["succeeded"], what="the event")


async def test_a_job_whose_claim_got_no_answer_is_passed_to_the_workers(
    system: System, llm: FakeLlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has the claim, and its answer was lost. Nobody takes over the jobs of a process
    that is alive."""
    claim = JobRepository.claim

    async def unanswered(self: JobRepository, request: ClaimRequest) -> ClaimResult:
        await claim(self, request)
        raise LedgerUnavailable("its answer was lost")

    monkeypatch.setattr(JobRepository, "claim", unanswered)
    overrides = {"llm_direct_calls": 2, "takeover_after": 0.4}
    async with serving(system.settings, **overrides) as api, client_of(api) as client:
        await until_connected(api)
        with pytest.raises(openai.InternalServerError):
            await ask(client, **{"X-Job-Background": "true"})
        (job,) = await jobs_of(system)
        await system.wait_for_state(job.id, State.PENDING)

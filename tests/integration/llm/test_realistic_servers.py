"""The model client with realistic servers: overloaded, slow, unreachable, or cutting answers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.llm_batch import Machine
from benchmarks.llm_server import serving
from switchyard.broker.task_supervisor import end_tasks
from switchyard.services.common.errors import RetryableError
from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.llm.concurrency_policy import PolicyState
from switchyard.services.llm.gate import Urgency
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.llm_errors import (
    LlmCut,
    LlmLimited,
    LlmRefused,
    LlmSaturated,
    LlmUnavailable,
    LlmUnreachable,
)
from switchyard.services.llm.model_client import ModelClient
from switchyard.services.llm.records.llm_servers import TRIAL_AFTER_FAILURES, SlotsFull
from tests.support import llm_server
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.llm_process import asking
from tests.support.llm_server import FakeLlmServer

QUICK_MACHINE = Machine(tokens=20, scale=20)


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchyard.services.llm.server_client.FIRST_RETRY_DELAY", 0.01)


def settings_for(url: str, **values: Any) -> Settings:
    return Settings.model_validate({"llm_base_url": url, "llm_timeout": 20, **values})


def chat_of(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 100}


async def ask(client: ModelClient, text: str, **options: Any) -> str:
    arguments = {"urgency": Urgency(), "timeout": 30.0, "fresh": True, **options}
    answer, _ = await client.answer(chat_of(text), **arguments)
    return answer.text


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@dataclass
class ClimbingPolicy:
    """A policy that allows one more call at once after every window."""

    min_calls: int = 10
    counts_broken_answers: bool = False
    states: list[PolicyState] = field(default_factory=list)

    def is_window_complete(self, state: PolicyState, seconds: float) -> bool:
        return state.window.answered >= self.min_calls

    def next(self, state: PolicyState) -> tuple[float, Mapping[str, float]]:
        self.states.append(state)
        return state.limit + 1, {}


@pytest.mark.timeout(300)
async def test_two_processes_together_never_exceed_the_limit(
    tmp_path: Path, ledger: Ledger, database_url: str
) -> None:
    """Each process alone stays below the limit; both together reach it."""
    with serving(QUICK_MACHINE, holds=True) as (url, app):
        environment = {
            "JOBS_LLM_BASE_URL": url,
            "JOBS_DATABASE_URL": database_url,
            "JOBS_LLM_PACING": "fixed",
            "JOBS_LLM_CONCURRENCY": "6",
            "JOBS_DATA_DIR": str(tmp_path),
        }
        first_questions, second_questions = (
            [str(n) for n in range(5)],
            [str(n) for n in range(5, 10)],
        )
        with (
            asking(environment, first_questions) as first_process,
            asking(environment, second_questions) as second_process,
        ):
            for process in (first_process, second_process):
                process.go()
            await eventually(lambda: app.counts.most >= 6, 120, "six requests at the server")
            # All six are still at the server: nobody else gets a slot.
            third = await LlmLedger(ledger).slots.take_llm_slot(
                "default", "another's", "a third", ttl=9, is_hot=True, first_limit=6, max_limit=6
            )
            assert third == SlotsFull(6, 6)
            app.let_go()
            for process in (first_process, second_process):
                assert await process.answers() == ["word0"] * 5
        assert app.counts.most == 6
        assert app.counts.answered == 10
        (report,) = await LlmLedger(ledger).slots.llm_servers()
        assert report.in_flight == 0


async def test_a_policy_measures_the_server_and_its_limit_holds(
    plain_ledger: Ledger,
) -> None:
    """A test with simulated time shows that the default policy finds the limit of a server
    (tests/unit/test_concurrency_policy_simulated.py). With real time, the load of the rest of the
    machine would be taken for the server's."""
    machine = Machine(knee=4, tokens=20, scale=4)
    policy = ClimbingPolicy()
    with serving(machine) as (url, app):
        settings = settings_for(
            url, llm_concurrency=2, llm_concurrency_max=6, llm_concurrency_min=2
        )
        async with ModelClient.open(settings, plain_ledger, policy=policy) as client:
            await asyncio.gather(*(ask(client, str(n), timeout=240.0) for n in range(80)))
        (report,) = await LlmLedger(plain_ledger).slots.llm_servers()
        assert report.in_flight == 0
        assert app.counts.answered == 80
    assert [state.limit for state in policy.states][:5] == [2, 3, 4, 5, 6]
    assert report.state.limit == 6
    assert 2 < app.counts.most <= 6
    for state in policy.states:
        window = state.window
        assert window.answered >= policy.min_calls
        assert window.mean_in_flight <= state.limit
        assert min(window.timed, window.first_token, window.per_token, window.rate) > 0


@pytest.mark.parametrize(("max_uncut", "marks_cuts"), [(1, False), (2, False), (1, True)])
async def test_a_small_server_that_cuts_answers_costs_no_attempt(
    plain_ledger: Ledger, max_uncut: int, marks_cuts: bool
) -> None:
    """Some servers take one request at a time, and drop it for the next. With an earlier policy, 16
    of 20 questions were dead after 57 calls."""
    machine = Machine(tokens=40, scale=10, bears=max_uncut, marks_cuts=marks_cuts)
    with serving(machine) as (url, app):
        attempts = list[RetryableError]()

        async def ask_until_answered(client: ModelClient, question: str) -> None:
            """Ask as a job does, which goes back to its queue if it gets no slot for long."""
            while True:
                try:
                    await ask(client, question, urgency=Urgency.from_priority("backfill", 5))
                    return
                except RetryableError as error:
                    if error.counts:
                        attempts.append(error)

        async with ModelClient.open(settings_for(url), plain_ledger) as client:
            await asyncio.gather(*(ask_until_answered(client, str(n)) for n in range(20)))
        assert attempts == []
        assert app.counts.answered == 20
        # An earlier policy cut 112 answers, though questions had only 3 attempts.
        assert app.counts.cut <= 40
        (report,) = await LlmLedger(plain_ledger).slots.llm_servers()
        assert not report.state.is_on_trial


async def test_a_server_whose_single_answers_are_cut_costs_attempts(plain_ledger: Ledger) -> None:
    """A cut with one call under way is no sign of overload."""
    with serving(Machine(tokens=20, scale=20, cut=1.0)) as (url, _):
        async with ModelClient.open(settings_for(url), plain_ledger) as client:
            with pytest.raises(LlmCut) as failed:
                await ask(client, "one")
    assert failed.value.counts


async def test_a_full_server_gets_fewer_calls_and_nothing_is_lost(plain_ledger: Ledger) -> None:
    machine = Machine(at_once=2, queued=1, tokens=40, scale=5)
    with serving(machine) as (url, app):
        settings = settings_for(url, llm_concurrency=8)
        async with ModelClient.open(settings, plain_ledger) as client:
            answers = await asyncio.gather(*(ask(client, str(n)) for n in range(12)))
        assert len(answers) == 12
        assert app.counts.refused > 0
        assert max(app.counts.by_question.values()) == 1


async def test_a_servers_limit_per_minute_is_kept_by_its_headers(
    plain_ledger: Ledger,
) -> None:
    with serving(Machine(per_minute=5, tokens=10, scale=60)) as (url, app):
        async with ModelClient.open(
            settings_for(url, llm_concurrency=1, llm_concurrency_min=1), plain_ledger
        ) as client:
            began = time.monotonic()
            for n in range(11):
                await ask(client, str(n))
            assert time.monotonic() - began > 1.5, "two minutes' worth"
        assert app.counts.limited == 0, "the headers said so before"


async def test_a_cancelled_call_stops_the_server_and_frees_its_slot(plain_ledger: Ledger) -> None:
    with serving(Machine(tokens=5000)) as (url, app):
        settings = settings_for(url, llm_concurrency=1, llm_concurrency_min=1, llm_pacing="fixed")
        async with ModelClient.open(settings, plain_ledger) as client:
            task = asyncio.create_task(ask(client, "long"))
            await eventually(lambda: app.batch.running == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await eventually(lambda: app.counts.abandoned == 1 and app.batch.running == 0)
            (report,) = await LlmLedger(plain_ledger).slots.llm_servers()
            assert report.in_flight == 0


async def test_a_call_that_gets_its_slot_too_late_is_not_begun(
    plain_ledger: Ledger,
) -> None:
    with serving(Machine(tokens=100, scale=1)) as (url, app):
        async with ModelClient.open(
            settings_for(url, llm_concurrency=1, llm_concurrency_min=1), plain_ledger
        ) as client:
            await LlmLedger(plain_ledger).slots.take_llm_slot(
                "default", "another's", "somebody", ttl=1.5, is_hot=True, first_limit=1, max_limit=1
            )
            with pytest.raises(LlmSaturated) as refused:
                await ask(client, "too late", timeout=2.0)
    assert not refused.value.counts
    assert not app.counts.by_question


@pytest.mark.timeout(400)  # longer than its waits together: they say what is missing
async def test_a_server_killed_and_started_again_costs_no_attempt(plain_ledger: Ledger) -> None:
    port = free_port()
    settings = settings_for(f"http://127.0.0.1:{port}/v1", llm_concurrency=8)
    failures: dict[str, RetryableError] = {}

    async def until_answered(client: ModelClient, question: str) -> list[bool]:
        """Ask as a job does; return, for each failure, whether it would have cost an attempt."""
        costs: list[bool] = []
        while True:
            try:
                await ask(client, question)
                return costs
            except RetryableError as error:
                failures[question] = error
                costs.append(error.counts)
                await asyncio.sleep(min(error.after or 0.1, 0.3))

    async with ModelClient.open(settings, plain_ledger) as client:
        tasks: list[asyncio.Task[list[bool]]] = []
        try:
            with serving(holds=True, port=port) as (_, app):
                tasks += [asyncio.create_task(until_answered(client, str(n))) for n in range(16)]
                await eventually(lambda: app.counts.most == 8, what="eight requests at the server")
            with pytest.raises(LlmUnreachable):
                async with ModelClient.open(settings, None) as without_ledger:
                    await ask(without_ledger, "anybody there?")
            await eventually(lambda: len(failures) >= 8, what="an end of the eight requests")
            with serving(QUICK_MACHINE, port=port):
                answered, unanswered = await asyncio.wait(tasks, timeout=MAX_WAIT)
                assert not unanswered, f"{len(unanswered)} questions have no answer: {failures}"
        finally:
            await end_tasks(*tasks)
    assert not any(cost for each in answered for cost in each.result())


async def test_the_next_server_answers_when_the_first_is_unreachable(plain_ledger: Ledger) -> None:
    with serving(QUICK_MACHINE) as (url, app):
        providers = [
            {"name": "gone", "base_url": f"http://127.0.0.1:{free_port()}/v1"},
            {"name": "there", "base_url": url, "order": 1},
        ]
        settings = settings_for(url, llm_providers=providers)
        async with ModelClient.open(settings, plain_ledger) as client:
            for n in range(8):
                assert await ask(client, str(n))
        assert app.counts.answered == 8
        first_server, _ = await LlmLedger(plain_ledger).slots.llm_servers()
        assert first_server.state.paused_until > 0, (
            "the server is paused instead of tried each time"
        )


@pytest.mark.parametrize(("status", "is_final"), [(401, False), (404, False), (400, True)])
async def test_a_request_that_one_server_can_not_serve_goes_to_another(
    plain_ledger: Ledger, status: int, is_final: bool
) -> None:
    with FakeLlmServer() as first, FakeLlmServer() as second:
        first.always(llm_server.fails(status, "not here"))
        providers = [
            {"name": "first", "base_url": first.url},
            {"name": "second", "base_url": second.url, "order": 1},
        ]
        async with ModelClient.open(
            settings_for("", llm_providers=providers), plain_ledger
        ) as client:
            if is_final:
                with pytest.raises(LlmRefused, match="not here"):
                    await ask(client, "hello")
            else:
                assert await ask(client, "hello") == llm_server.ANSWER


async def test_retry_after_holds_for_the_whole_fleet_and_costs_no_attempt(
    plain_ledger: Ledger,
) -> None:
    with FakeLlmServer() as server:
        server.next(llm_server.rate_limited(30))
        async with (
            ModelClient.open(settings_for(server.url), plain_ledger) as first_client,
            ModelClient.open(settings_for(server.url), plain_ledger) as second_client,
        ):
            for client in (first_client, second_client):
                with pytest.raises(LlmUnavailable) as raised:
                    await ask(client, "hello")
                assert raised.value.counts is False
            assert len(server.requests) == 1


async def test_a_client_works_without_a_ledger() -> None:
    with FakeLlmServer() as server:
        async with ModelClient.open(settings_for(server.url), None) as client:
            assert await ask(client, "hello") == llm_server.ANSWER
            server.always(llm_server.rate_limited(60))  # longer than the question may wait
            with pytest.raises(LlmLimited):
                await ask(client, "again")


async def test_a_server_with_a_wrong_key_is_paused_and_no_job_dies(
    plain_ledger: Ledger,
) -> None:
    with FakeLlmServer() as good, FakeLlmServer() as wrong:
        wrong.always(llm_server.fails(401, "wrong key"))
        values = {
            "llm_providers": [
                {"name": "good", "base_url": good.url, "weight": 0.001},
                {"name": "wrong", "base_url": wrong.url, "weight": 1000},
            ]
        }
        async with ModelClient.open(Settings.model_validate(values), plain_ledger) as client:
            for number in range(TRIAL_AFTER_FAILURES + 3):
                await ask(client, str(number))
            assert len(wrong.requests) == TRIAL_AFTER_FAILURES
            paused = {
                each.name: each for each in await LlmLedger(plain_ledger).slots.llm_servers()
            }["wrong"]
            assert "wrong key" in (paused.state.pause_reason or "")

            good.next(llm_server.rate_limited(60))
            with pytest.raises(LlmSaturated) as saturated:
                await ask(client, "both are paused")
            assert not saturated.value.counts

            await LlmLedger(plain_ledger).slots.take_llm_slot(
                "wrong", "x", "me", ttl=9, is_hot=True, first_limit=1, max_limit=1
            )
            await LlmLedger(plain_ledger).slots.end_llm_slot(
                "wrong", "x", lambda state, *_: replace(state, paused_until=0.0, failures=0)
            )
            with pytest.raises(LlmSaturated, match=r"good: .* 429"):
                await ask(client, "refused by one, and the other is paused")
            good.always(llm_server.fails(401, "wrong, too"))
            await LlmLedger(plain_ledger).slots.end_llm_slot(
                "good", "x", lambda state, *_: replace(state, paused_until=0.0)
            )
            with pytest.raises(LlmRefused, match=r"good: .* wrong, too|wrong: .* wrong key"):
                await ask(client, "nobody takes it")

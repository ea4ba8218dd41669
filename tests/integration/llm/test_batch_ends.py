"""Batches that are not sent, or whose sender is killed: every question is answered, and no file is
left at the provider."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.llm import batch_runner
from switchyard.services.llm.batch_collector import MAX_BATCH_WAIT, WaitingForBatch
from switchyard.services.llm.batch_runner import BatchRunner
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.model_client import ModelClient
from switchyard.services.llm.records.llm_batches import ItemState
from tests.support.batching import ask_numbered, collect, new_batch_runner
from tests.support.llm_server import FakeLlmServer
from tests.support.made import new_job
from tests.support.site import Exchange

QUESTIONS = 3


@pytest.fixture(autouse=True)
def _no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another process send a batch at once, without waiting for the end of the last sender's
    fence."""
    monkeypatch.setattr(batch_runner, "FENCE_TTL", 0.0)
    monkeypatch.setattr(batch_runner, "SENDING_TIMEOUT", 60.0)


async def ask_all(ledger: Ledger, settings: Settings) -> list[bool]:
    """Ask each question; return which answers came from a batch."""
    async with ModelClient.open(settings, ledger) as client:
        return [await ask_numbered(client, n) for n in range(QUESTIONS)]


async def count_states(ledger: Ledger) -> dict[str, int]:
    return {
        state: count
        for (_, state), count in (await LlmLedger(ledger).batches.llm_batch_counts()).items()
    }


# --- not sent -----------------------------------------------------------------------------------


async def test_questions_are_asked_live_once_batches_are_switched_off(
    ledger: Ledger, settings: Settings, llm: FakeLlmServer
) -> None:
    await collect(ledger, settings.model_copy(update={"llm_batch_wait": 600.0}), QUESTIONS)
    without_batches = settings.model_copy(update={"llm_batch": False})
    await new_batch_runner(ledger, without_batches).turn()
    assert await count_states(ledger) == {ItemState.LIVE: QUESTIONS}
    assert await LlmLedger(ledger).spending.llm_spend("model") == [], (
        "nothing is reserved for a batch any more"
    )
    assert await ask_all(ledger, without_batches) == [False] * QUESTIONS
    assert llm.batches.files == {}


async def test_an_unsent_batch_is_given_up_when_batches_are_switched_off(
    plain_ledger: Ledger, settings: Settings, llm: FakeLlmServer
) -> None:
    await collect(plain_ledger, settings, QUESTIONS)
    llm.batches.fail_next = [lambda exchange: exchange.send_json(503, {})] * 3
    await new_batch_runner(plain_ledger, settings).turn()
    assert await count_states(plain_ledger) == {ItemState.SENT: QUESTIONS}, (
        "in a batch, which could not be sent"
    )
    llm.batches.fail_next = []
    await new_batch_runner(plain_ledger, settings.model_copy(update={"llm_batch": False})).turn()
    assert await count_states(plain_ledger) == {ItemState.LIVE: QUESTIONS}
    assert llm.batches.batches == {}


async def test_a_batch_for_an_unreachable_server_is_retried_until_its_window_ends(
    plain_ledger: Ledger, settings: Settings, llm: FakeLlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await collect(plain_ledger, settings, QUESTIONS)
    llm.batches.fail_next = [Exchange.reset] * 100
    monkeypatch.setattr(batch_runner, "MAX_SENDING_AGE", 0.0)
    await new_batch_runner(plain_ledger, settings).turn()
    assert await count_states(plain_ledger) == {ItemState.SENT: QUESTIONS}, (
        "in a batch, which could not be sent"
    )
    monkeypatch.setattr(batch_runner, "BATCH_TIMEOUT", 0.0)
    await new_batch_runner(plain_ledger, settings).turn()
    assert await count_states(plain_ledger) == {ItemState.LIVE: QUESTIONS}


@pytest.mark.parametrize(("margin", "outcome"), [(-60.0, "live"), (60.0, "sent")])
async def test_a_question_whose_job_expires_before_its_batch_is_asked_live(
    plain_ledger: Ledger, settings: Settings, margin: float, outcome: str
) -> None:
    """The scheduler may have been down since the question was collected."""
    expires_at = plain_ledger.clock.now() + timedelta(seconds=MAX_BATCH_WAIT + margin)
    await collect(plain_ledger, settings, QUESTIONS, expires_at=expires_at)
    await new_batch_runner(plain_ledger, settings).turn()
    assert await count_states(plain_ledger) == {outcome: QUESTIONS}


# --- killed -------------------------------------------------------------------------------------


class Killer:
    """Kills the client at its `requests`-th request for files and batches: the server does what is
    asked, and the client gets no answer."""

    def __init__(self, llm: FakeLlmServer, requests: int) -> None:
        self._llm = llm
        self._requests_left = requests
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._unharmed_answer = llm.batches.answer
        llm.batches.answer = self._answer  # type: ignore[method-assign]

    async def take_turn(self, batch_runner: BatchRunner) -> bool:
        """Take a turn; return whether the client was killed in it."""
        self._task = asyncio.create_task(batch_runner.turn())
        try:
            await self._task
        except asyncio.CancelledError:
            return True
        finally:
            self._task = None
        return False

    def end(self) -> None:
        self._llm.batches.answer = self._unharmed_answer  # type: ignore[method-assign]

    def _answer(self, exchange: Exchange, content: bytes) -> None:
        task = self._task
        self._requests_left -= task is not None
        if self._requests_left == 0 and task is not None:
            self._unharmed_answer(_UnansweredExchange(exchange), content)  # type: ignore[arg-type]
            self._loop.call_soon_threadsafe(task.cancel)
            exchange.reset()
        else:
            self._unharmed_answer(exchange, content)


class _UnansweredExchange:
    """An exchange whose answers are not sent."""

    def __init__(self, exchange: Exchange) -> None:
        self.command, self.path = exchange.command, exchange.path

    def send_json(self, *_: Any) -> None: ...

    def send(self, *_: Any, **__: Any) -> None: ...


async def test_a_sender_killed_at_any_step_leaves_one_batch_paid_once_and_no_file(
    plain_ledger: Ledger, tmp_path: Path, settings: Settings
) -> None:
    """The sender is killed at its first request, at its second, …, until it ends unharmed."""
    steps = itertools.count(1)
    for step in steps:
        with FakeLlmServer() as llm:
            settings = settings.model_copy(
                update={
                    "llm_base_url": llm.url,
                    "data_dir": tmp_path / str(step),
                    "llm_model": f"m-{step}",  # questions and spending of its own
                    "llm_budget_per_day": None,
                }
            )
            killed = await _run_batch(plain_ledger, settings, llm, step)
            (remote,) = llm.batches.batches.values()
            assert remote.status == "completed", f"step {step}"
            remaining_files = set(llm.batches.files) - set(llm.batches.deleted)
            assert remaining_files == set(), f"step {step}: files stay at the provider"
            assert await ask_all(plain_ledger, settings) == [True] * QUESTIONS, f"step {step}"
            assert llm.requests == [], f"step {step}: asked live as well"
            spent = {
                row.name: row.calls
                for row in await LlmLedger(plain_ledger).spending.llm_spend("model")
            }
            assert spent[f"m-{step}"] == QUESTIONS, f"step {step}"
        if not killed:
            break
    assert step > 8  # 2 lists, upload, batch, status, answers, 2 deletions


async def _run_batch(ledger: Ledger, settings: Settings, llm: FakeLlmServer, step: int) -> bool:
    """Collect, send and conclude a batch. Kill the sender at its `step`-th request, and let others
    continue; return whether it was killed."""
    if step == 1:
        for n in range(QUESTIONS):
            await ledger.jobs.record(new_job(f"job-{n}"))
    async with ModelClient.open(settings, ledger) as client:
        for n in range(QUESTIONS):
            with pytest.raises(WaitingForBatch):
                await ask_numbered(client, n)
    killer = Killer(llm, step)
    killed = await killer.take_turn(new_batch_runner(ledger, settings))
    await new_batch_runner(ledger, settings).turn()
    (remote,) = llm.batches.batches.values()
    if remote.status != "completed":
        llm.batches.finish(remote)
    killed = await killer.take_turn(new_batch_runner(ledger, settings)) or killed
    killer.end()
    for _ in range(2):
        await new_batch_runner(ledger, settings).turn()
    return killed

"""A batch's sender may be killed or frozen at any point: nothing is lost, nothing sent twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.llm import batch_runner
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.ledger.llm_batches import LlmBatchRepository
from switchyard.services.llm.model_client import ModelClient
from tests.support.batching import (
    ask_numbered,
    collect,
    end_fence,
    new_batch_runner,
    only_batch,
    raise_as_killed,
    refusal,
    send_empty_list,
)
from tests.support.llm_server import FakeLlmServer


async def test_two_batch_runners_at_once_send_each_question_once(
    ledger: Ledger, database_url: str, settings: Settings, llm: FakeLlmServer
) -> None:
    await collect(ledger, settings, 5)
    async with await Ledger.open(database_url) as second:
        batch_runners = [new_batch_runner(each, settings) for each in (ledger, second, ledger)]
        await asyncio.gather(*(each.turn() for each in batch_runners))
    sent = [q for each in llm.batches.batches.values() for q in llm.batches.questions(each)]
    assert all(llm.batches.questions(each) for each in llm.batches.batches.values())
    assert len(sent) == 5
    assert len({each["custom_id"] for each in sent}) == 5


@pytest.mark.parametrize("killed_at", ["before", "upload", "create", "recorded"])
async def test_another_sender_completes_what_a_killed_one_was_sending(
    ledger: Ledger,
    settings: Settings,
    llm: FakeLlmServer,
    monkeypatch: pytest.MonkeyPatch,
    killed_at: str,
) -> None:
    monkeypatch.setattr(batch_runner, "FENCE_TTL", 600.0)
    await collect(ledger, settings, 2)
    killed_runner = new_batch_runner(ledger, settings)
    if killed_at == "before":
        monkeypatch.setattr(killed_runner, "_send", raise_as_killed)
    elif killed_at == "upload":
        llm.batches.fail_next = [
            send_empty_list,
            send_empty_list,
            *[lambda exchange: exchange.reset()] * 3,
        ]
    elif killed_at == "create":
        llm.batches.after_creating = lambda exchange: exchange.reset()
    else:
        monkeypatch.setattr(LlmBatchRepository, "update_llm_batch_state", raise_as_killed)
    try:
        await killed_runner.turn()
    except asyncio.CancelledError:
        monkeypatch.undo()
    llm.batches.fail_next = []
    await new_batch_runner(ledger, settings).turn()
    (batch,) = await LlmLedger(ledger).batches.llm_batches()
    assert batch.remote_id is None, "the other sender may still be sending it"
    await end_fence(ledger)
    await new_batch_runner(ledger, settings).turn()
    (batch,) = await LlmLedger(ledger).batches.llm_batches()
    assert batch.remote_id == only_batch(llm).id
    assert len(llm.batches.questions(only_batch(llm))) == 2


def replace_for(ledger: Ledger, name: str, replacement: Any) -> Any:
    """Replace a method of the batches' repository for one ledger, and leave it for the others."""
    original = getattr(LlmBatchRepository, name)

    async def method(batches: LlmBatchRepository, *arguments: Any, **options: Any) -> Any:
        if batches.clock is ledger.clock:
            return await replacement(*arguments, **options)
        return await original(batches, *arguments, **options)

    return method


@pytest.mark.parametrize("reply", ["nothing", "a refusal", "no server", "an ending"])
async def test_a_sender_that_was_frozen_does_not_change_what_another_has_sent(
    ledger: Ledger,
    database_url: str,
    settings: Settings,
    llm: FakeLlmServer,
    monkeypatch: pytest.MonkeyPatch,
    reply: str,
) -> None:
    await collect(ledger, settings, 2)
    async with await Ledger.open(database_url) as other:
        frozen_runner = new_batch_runner(other, settings)
        await LlmLedger(other).batches.open_llm_batch(
            "ours", "default", max_wait=0, max_questions=9, max_bytes=10_000
        )
        stale_batches = await LlmLedger(other).batches.llm_batches()
        stale_items = [await LlmLedger(other).batches.open_llm_questions(stale_batches[0])]
        await new_batch_runner(ledger, settings).turn()
        await end_fence(ledger)

        async def return_stale_batches(*_: Any) -> Any:
            return stale_batches

        async def return_stale_items(batch: Any) -> Any:
            return (
                stale_items.pop()
                if stale_items
                else await LlmLedger(ledger).batches.open_llm_questions(batch)
            )

        for name, replacement in (
            ("llm_batches", return_stale_batches),
            ("fence_llm_batch", return_stale_batches),
            ("open_llm_questions", return_stale_items),
        ):
            monkeypatch.setattr(LlmBatchRepository, name, replace_for(other, name, replacement))
        llm.batches.fail_next = {
            "nothing": [send_empty_list, send_empty_list],
            "a refusal": [send_empty_list, send_empty_list, refusal(400)],
            "no server": [lambda exchange: exchange.reset()] * 3,
            "an ending": [],
        }[reply]
        if reply == "an ending":
            llm.batches.finish(only_batch(llm))
            await new_batch_runner(ledger, settings).turn()
        await frozen_runner.turn()
    first, *second = llm.batches.batches.values()
    assert [each.status for each in second] == ["cancelling"] * (reply == "nothing")
    open_batches = [
        (each.remote_id, each.state) for each in await LlmLedger(ledger).batches.llm_batches()
    ]
    assert open_batches == ([] if reply == "an ending" else [(first.id, "sent")])
    if open_batches:
        llm.batches.finish(first)
        await new_batch_runner(ledger, settings).turn()
    async with ModelClient.open(settings, ledger) as client:
        assert [await ask_numbered(client, n) for n in range(2)] == [True] * 2
    (row,) = await LlmLedger(ledger).spending.llm_spend("model")
    assert (row.calls, row.cost, row.reserved) == (2, 18, 0)
    assert llm.requests == []


async def test_a_sender_that_is_killed_while_it_concludes_pays_and_answers_once(
    ledger: Ledger, settings: Settings, llm: FakeLlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await collect(ledger, settings, 3)
    killed_runner = new_batch_runner(ledger, settings)
    await killed_runner.turn()
    llm.batches.finish(only_batch(llm))
    finish, finished = LlmBatchRepository.finish_llm_question, 0

    async def finish_once(*args: Any) -> bool:
        nonlocal finished
        finished += 1
        return await finish(*args) if finished == 1 else await raise_as_killed()

    monkeypatch.setattr(LlmBatchRepository, "finish_llm_question", finish_once)
    with pytest.raises(asyncio.CancelledError):
        await killed_runner.turn()
    monkeypatch.setattr(LlmBatchRepository, "finish_llm_question", finish)
    monkeypatch.setattr(batch_runner, "BATCH_POLL_INTERVAL", 0.0)
    await new_batch_runner(ledger, settings).turn()
    assert await LlmLedger(ledger).batches.llm_batches() == []
    async with ModelClient.open(settings, ledger) as client:
        assert [await ask_numbered(client, n) for n in range(3)] == [True] * 3
    (row,) = await LlmLedger(ledger).spending.llm_spend("model")
    assert (row.calls, row.saved_calls, row.cost, row.reserved) == (3, 0, 27, 0)
    assert llm.requests == []

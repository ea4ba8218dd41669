"""Questions of jobs that go through a Batch API: together, cheaper, concluded one by one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from switchyard.broker.publish.publisher import Publisher
from switchyard.services.engine.records.states import State
from switchyard.services.llm.batch_runner import BatchRunner
from switchyard.services.llm.ledger import LlmLedger
from tests.support.batching import chat, only_batch
from tests.support.brokers import TestBroker
from tests.support.llm_batches import ANSWER, with_batches
from tests.support.llm_server import FakeLlmServer
from tests.support.system import System, open_system


@pytest.fixture
async def system(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, llm: FakeLlmServer, no_delays: None
) -> AsyncIterator[System]:
    modules = ("switchyard.services.llm.job_types",)
    async with open_system(broker310, sqlite_url, data_dir=tmp_path, modules=modules) as opened:
        opened.settings = opened.settings.model_copy(update=with_batches(llm.url, tmp_path))
        yield opened


@pytest.fixture
async def batch_runner(system: System) -> AsyncIterator[BatchRunner]:
    async with Publisher(system.settings, name="batches") as publisher:
        yield BatchRunner(system.settings, system.ledger, publisher)


async def publish_backfill(system: System, number: int) -> list[str]:
    """Publish jobs in the lane backfill, and return their ids once they wait for a batch."""
    await system.start_worker("llm")
    job_ids = [
        await system.publish("backfill.chat_completion", chat(f"Question {n}?"))
        for n in range(number)
    ]
    for each in job_ids:
        record = await system.wait_for_state(each, State.RETRYING)
        assert record.error_type == "WaitingForBatch"
        assert record.attempts == 0
    return job_ids


async def test_backfilled_questions_go_together_and_come_back_one_by_one_at_half_the_price(
    system: System, batch_runner: BatchRunner, llm: FakeLlmServer
) -> None:
    job_ids = await publish_backfill(system, 3)
    await batch_runner.turn()
    questions = llm.batches.questions(only_batch(llm))
    assert len({each["custom_id"] for each in questions}) == 3
    assert questions[0]["body"]["model"] == "m"
    hot = await system.publish("hot.chat_completion", chat("Question 0?"))
    await system.wait_for_state(hot, State.SUCCEEDED)
    assert len(llm.requests) == 1, "a hot job does not wait for a batch"
    await batch_runner.turn()
    assert await system.state(job_ids[1]) is State.RETRYING
    llm.batches.finish(only_batch(llm))
    await batch_runner.turn()
    for each in job_ids[1:]:
        record = await system.wait_for_state(each, State.SUCCEEDED)
        assert record.result is not None
        assert record.result["text"] == ANSWER
    await system.wait_for_state(job_ids[0], State.SUCCEEDED)
    assert len(llm.requests) == 1
    (row,) = await LlmLedger(system.ledger).spending.llm_spend("model")
    assert (row.calls, row.cost, row.reserved) == (4, 18 + 3 * 9, 0)
    assert row.saved_calls == 0, "an answer that a batch has paid for is not counted as saved"
    assert await LlmLedger(system.ledger).batches.llm_batches() == []
    assert set(llm.batches.deleted) == set(llm.batches.files)


async def test_questions_that_a_batch_does_not_answer_are_asked_live(
    system: System, batch_runner: BatchRunner, llm: FakeLlmServer
) -> None:
    job_ids = await publish_backfill(system, 4)
    await batch_runner.turn()
    questions = llm.batches.questions(only_batch(llm))
    empty_answer = {
        "custom_id": questions[1]["custom_id"],
        "response": {"status_code": 200, "body": {}},
    }
    foreign_answer = {"custom_id": "../../x", "response": {"status_code": 200, "body": {}}}
    invalid_lines = [b"no json", b"[]", b'{"custom_id": 7}', json.dumps(foreign_answer).encode()]
    appended = b"\n".join([*invalid_lines, json.dumps(empty_answer).encode()])
    failed = {questions[0]["custom_id"]: 500}
    llm.batches.finish(only_batch(llm), "expired", unanswered=2, failed=failed, appended=appended)
    await batch_runner.turn()
    for each in job_ids:
        await system.wait_for_state(each, State.SUCCEEDED)
    assert len(llm.requests) == 3
    (row,) = await LlmLedger(system.ledger).spending.llm_spend("model")
    assert (row.calls, row.cost, row.reserved) == (4, 9 + 3 * 18, 0)


async def test_questions_of_expiring_and_cancelled_jobs_are_not_sent(
    system: System, batch_runner: BatchRunner, llm: FakeLlmServer
) -> None:
    (first, second) = await publish_backfill(system, 2)
    await system.ledger.jobs.cancel(first, system.ledger.clock.time())
    soon = system.ledger.clock.now() + timedelta(hours=20)
    expiring = await system.publish("backfill.chat_completion", chat("When?"), expires_at=soon)
    await system.wait_for_state(expiring, State.SUCCEEDED)
    assert len(llm.requests) == 1
    await batch_runner.turn()
    (question,) = llm.batches.questions(only_batch(llm))
    assert question["body"]["messages"][0]["content"] == "Question 1?"
    llm.batches.finish(only_batch(llm))
    await batch_runner.turn()
    await system.wait_for_state(second, State.SUCCEEDED)

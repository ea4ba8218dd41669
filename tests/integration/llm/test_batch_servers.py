"""Whatever a server's Batch API does or says, its questions are answered."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from switchyard.services.common.files.errors import StorageUnavailable
from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.llm import batch_api, batch_runner
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.model_client import ModelClient
from tests.support.batching import (
    ask_numbered,
    collect,
    new_batch_runner,
    only_batch,
    refusal,
    send_empty_list,
)
from tests.support.llm_server import FakeLlmServer


@pytest.mark.parametrize("status", ["failed", "cancelled", "expired"])
async def test_a_batch_that_ends_without_answers_frees_all_its_questions(
    plain_ledger: Ledger, settings: Settings, llm: FakeLlmServer, status: str
) -> None:
    await collect(plain_ledger, settings, 2)
    batch_runner = new_batch_runner(plain_ledger, settings)
    await batch_runner.turn()
    only_batch(llm).status = status
    await batch_runner.turn()
    async with ModelClient.open(settings, plain_ledger) as client:
        assert [await ask_numbered(client, n) for n in range(2)] == [False] * 2
    (row,) = await LlmLedger(plain_ledger).spending.llm_spend("model")
    assert (row.calls, row.cost, row.reserved) == (2, 36, 0)


async def test_a_batch_that_is_refused_or_never_ends_is_given_up_in_time(
    plain_ledger: Ledger, settings: Settings, llm: FakeLlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await collect(plain_ledger, settings, 1)
    llm.batches.fail_next = [send_empty_list, send_empty_list, refusal(400)]
    await new_batch_runner(plain_ledger, settings).turn()
    assert await LlmLedger(plain_ledger).batches.llm_batches() == []
    async with ModelClient.open(settings, plain_ledger) as client:
        assert await ask_numbered(client, 0) is False
    await collect(plain_ledger, settings, 1, 77)
    await new_batch_runner(plain_ledger, settings).turn()
    monkeypatch.setattr(batch_runner, "BATCH_TIMEOUT", -1.0)
    await new_batch_runner(plain_ledger, settings).turn()
    assert only_batch(llm).status == "cancelling"
    assert len(await LlmLedger(plain_ledger).batches.llm_batches()) == 1, (
        "its answers may still come"
    )
    monkeypatch.setattr(batch_runner, "CANCEL_TIMEOUT", 0.0)
    await new_batch_runner(plain_ledger, settings).turn()
    assert await LlmLedger(plain_ledger).batches.llm_batches() == []
    async with ModelClient.open(settings, plain_ledger) as client:
        assert await ask_numbered(client, 77) is False


async def test_a_batch_whose_answers_can_not_be_stored_delays_no_other(
    plain_ledger: Ledger, settings: Settings, llm: FakeLlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings.model_copy(update={"llm_batch_size": 1})
    await collect(plain_ledger, settings, 2)
    batch_runner = new_batch_runner(plain_ledger, settings)
    await batch_runner.turn()
    await batch_runner.turn()
    for each in llm.batches.batches.values():
        llm.batches.finish(each)
    store, store_calls = batch_runner._answers.store, 0

    async def fail_once(*args: Any) -> None:
        nonlocal store_calls
        store_calls += 1
        if store_calls == 1:
            raise StorageUnavailable("the file storage does not answer")
        await store(*args)

    monkeypatch.setattr(batch_runner._answers, "store", fail_once)
    await batch_runner.turn()
    (waiting,) = await LlmLedger(plain_ledger).batches.llm_batches()
    assert waiting.note == "the file storage does not answer"
    await batch_runner.turn()
    assert await LlmLedger(plain_ledger).batches.llm_batches() == []
    async with ModelClient.open(settings, plain_ledger) as client:
        assert [await ask_numbered(client, n) for n in range(2)] == [True] * 2


async def test_an_answer_with_lone_surrogates_does_not_block_its_batch(
    plain_ledger: Ledger, settings: Settings, llm: FakeLlmServer
) -> None:
    await collect(plain_ledger, settings, 2)
    batch_runner = new_batch_runner(plain_ledger, settings)
    await batch_runner.turn()
    keys = [each["custom_id"] for each in llm.batches.questions(only_batch(llm))]
    lines = []
    for key, text in zip(keys, ["half \ud83d", "both \ud83d\ude00"], strict=True):
        body = {"model": "m\ud800", "choices": [{"message": {"content": text}}]}
        lines.append({"custom_id": key, "response": {"status_code": 200, "body": body}})
    llm.batches.finish(
        only_batch(llm), unanswered=2, appended=b"\n".join(json.dumps(x).encode() for x in lines)
    )
    await batch_runner.turn()
    assert await LlmLedger(plain_ledger).batches.llm_batches() == []
    async with ModelClient.open(settings, plain_ledger) as client:
        assert [await ask_numbered(client, n) for n in range(2)] == [True] * 2


async def test_questions_for_a_server_without_a_batch_api_are_asked_live(
    plain_ledger: Ledger, settings: Settings, llm: FakeLlmServer
) -> None:
    await collect(plain_ledger, settings, 1)
    llm.batches.fail_next = [refusal(404)]
    await new_batch_runner(plain_ledger, settings).turn()
    async with ModelClient.open(settings, plain_ledger) as client:
        assert await ask_numbered(client, 0) is False


async def test_a_servers_id_that_is_a_path_is_refused(
    plain_ledger: Ledger, settings: Settings, llm: FakeLlmServer
) -> None:
    await collect(plain_ledger, settings, 1)
    llm.batches.fail_next = [
        send_empty_list,
        send_empty_list,
        lambda exchange: exchange.send_json(200, {"id": "../../admin", "object": "file"}),
    ]
    await new_batch_runner(plain_ledger, settings).turn()
    (batch,) = await LlmLedger(plain_ledger).batches.llm_batches()
    assert batch.remote_id is None
    assert "an invalid id" in (batch.note or "")


async def test_an_overlong_file_of_answers_is_not_read_to_its_end(
    plain_ledger: Ledger, settings: Settings, llm: FakeLlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed_lines: list[bytes] = []
    monkeypatch.setattr(batch_api, "MAX_LINE_BYTES", 2_000)

    def record_and_parse(line: bytes) -> Any:
        parsed_lines.append(line)
        return json.loads(line)

    monkeypatch.setattr(batch_api, "_json_or_none", record_and_parse)
    await collect(plain_ledger, settings, 2)
    await new_batch_runner(plain_ledger, settings).turn()
    llm.batches.finish(only_batch(llm), unanswered=1)
    questions = llm.batches.questions(only_batch(llm))  # in no fixed order
    first = 0 if "Question 0?" in json.dumps(questions[0]) else 1
    key = questions[1]["custom_id"]
    too_long = json.dumps({"custom_id": key, "response": "x" * 2_000}).encode() + b"\n"
    output = only_batch(llm).output_file_id
    assert output is not None
    llm.batches.files[output] = too_long + llm.batches.files[output] + b"{}\n" * 100_000
    await new_batch_runner(plain_ledger, settings).turn()
    assert len(parsed_lines) == 3  # of four lines for two questions, one is too long
    async with ModelClient.open(settings, plain_ledger) as client:
        assert await ask_numbered(client, first) is True  # from the batch
        assert await ask_numbered(client, 1 - first) is False  # asked live


async def test_a_very_long_list_of_batches_is_read_in_time(
    plain_ledger: Ledger, settings: Settings, llm: FakeLlmServer
) -> None:
    await collect(plain_ledger, settings, 1)
    page = {"object": "list", "has_more": True, "data": [{}] * 200_000}
    llm.batches.fail_next = [lambda exchange: exchange.send_json(200, page)]
    began = time.monotonic()
    await new_batch_runner(plain_ledger, settings).turn()
    assert time.monotonic() - began < 5
    assert only_batch(llm).status == "in_progress"

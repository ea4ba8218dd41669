"""Questions that go through a Batch API: together, cheaper, concluded one by one; nothing is lost
and nothing sent twice, whatever breaks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from switchyard.broker.publish.publisher import Publisher
from switchyard.services.files.storage_errors import StorageAway
from switchyard.services.ledger import Ledger
from switchyard.services.llm import batch_api, batch_sending
from switchyard.services.llm.batch_sending import BatchSender
from switchyard.services.llm.batches import Batched
from switchyard.services.llm.gate import Urgency
from switchyard.services.llm.lane import LlmLane
from switchyard.services.records import State
from switchyard.services.records.spending import AskedBy
from switchyard.services.settings import Settings
from tests.integration.ledger.made import new_job
from tests.support import llm_server
from tests.support.brokers import TestBroker
from tests.support.llm_batches import ANSWER, with_batches
from tests.support.llm_batches import Batch as RemoteBatch
from tests.support.llm_server import LlmServer
from tests.support.system import System, open_system


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sending, "POLL", 0.0)
    monkeypatch.setattr("switchyard.services.llm.client.FIRST_WAIT", 0.01)


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 7}


def only(llm: LlmServer) -> RemoteBatch:
    (batch,) = llm.batches.batches.values()
    return batch


# --- through the lanes ------------------------------------------------------------------------


@pytest.fixture
async def system(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, llm: LlmServer
) -> AsyncIterator[System]:
    modules = ("switchyard.services.workers.llm_requests",)
    async with open_system(broker310, sqlite_url, data_dir=tmp_path, modules=modules) as opened:
        opened.settings = opened.settings.model_copy(update=with_batches(llm.url, tmp_path))
        yield opened


@pytest.fixture
async def sender(system: System) -> AsyncIterator[BatchSender]:
    async with Publisher(system.settings, name="batches") as publisher:
        yield BatchSender(system.settings, system.ledger, publisher)


async def collected(system: System, number: int) -> list[str]:
    """Jobs of the lane backfill that wait for a batch."""
    await system.start_worker("llm")
    job_ids = [
        await system.publish("backfill.chat_completion", chat(f"Question {n}?"))
        for n in range(number)
    ]
    for each in job_ids:
        record = await system.wait_for_state(each, State.RETRYING)
        assert record.error_type == "Batched"
        assert record.attempts == 0
    return job_ids


async def test_backfilled_questions_go_together_and_come_back_one_by_one_at_half_the_price(
    system: System, sender: BatchSender, llm: LlmServer
) -> None:
    job_ids = await collected(system, 3)
    await sender.turn()
    asked = llm.batches.questions(only(llm))
    assert len({each["custom_id"] for each in asked}) == 3
    assert asked[0]["body"]["model"] == "m"
    hot = await system.publish("hot.chat_completion", chat("Question 0?"))
    await system.wait_for_state(hot, State.SUCCEEDED)
    assert len(llm.requests) == 1, "who is in a hurry does not wait for a batch"
    await sender.turn()
    assert await system.state(job_ids[1]) is State.RETRYING
    llm.batches.finish(only(llm))
    await sender.turn()
    for each in job_ids[1:]:
        record = await system.wait_for_state(each, State.SUCCEEDED)
        assert record.result is not None
        assert record.result["text"] == ANSWER
    await system.wait_for_state(job_ids[0], State.SUCCEEDED)
    assert len(llm.requests) == 1
    (row,) = await system.ledger.llm_spend("model")
    assert (row.calls, row.cost, row.reserved) == (4, 18 + 3 * 9, 0)
    assert row.saved_calls == 0, "an answer that a batch was paid for is no saved one"
    assert await system.ledger.llm_batches() == []
    assert set(llm.batches.deleted) == set(llm.batches.files)


async def test_what_a_batch_does_not_answer_is_asked_live(
    system: System, sender: BatchSender, llm: LlmServer
) -> None:
    job_ids = await collected(system, 4)
    await sender.turn()
    asked = llm.batches.questions(only(llm))
    known = {"custom_id": asked[1]["custom_id"], "response": {"status_code": 200, "body": {}}}
    foreign = {"custom_id": "../../x", "response": {"status_code": 200, "body": {}}}
    odd = [b"no json", b"[]", b'{"custom_id": 7}', json.dumps(foreign).encode()]
    more = b"\n".join([*odd, json.dumps(known).encode()])
    failed = {asked[0]["custom_id"]: 500}
    llm.batches.finish(only(llm), "expired", without=2, failed=failed, more=more)
    await sender.turn()
    for each in job_ids:
        await system.wait_for_state(each, State.SUCCEEDED)
    assert len(llm.requests) == 3
    (row,) = await system.ledger.llm_spend("model")
    assert (row.calls, row.cost, row.reserved) == (4, 9 + 3 * 18, 0)


async def test_who_is_near_its_end_or_cancelled_is_not_sent(
    system: System, sender: BatchSender, llm: LlmServer
) -> None:
    (first, second) = await collected(system, 2)
    await system.ledger.cancel(first, system.ledger.clock.time())
    soon = system.ledger.clock.now() + timedelta(hours=20)
    near = await system.publish("backfill.chat_completion", chat("When?"), expires_at=soon)
    await system.wait_for_state(near, State.SUCCEEDED)
    assert len(llm.requests) == 1
    await sender.turn()
    (asked,) = llm.batches.questions(only(llm))
    assert asked["body"]["messages"][0]["content"] == "Question 1?"
    llm.batches.finish(only(llm))
    await sender.turn()
    await system.wait_for_state(second, State.SUCCEEDED)


# --- killed at any point ----------------------------------------------------------------------


@pytest.fixture
def given(tmp_path: Path, llm: LlmServer) -> Settings:
    amqp = {"amqp_url": "amqp://127.0.0.1:1", "data_dir": tmp_path}
    return Settings.model_validate({**with_batches(llm.url, tmp_path), **amqp})


async def collect(ledger: Ledger, settings: Settings, number: int) -> None:
    async with LlmLane.open(settings, ledger) as lane:
        for n in range(number):
            await ledger.record(new_job(f"job-{n}"))
            with pytest.raises(Batched):
                await answer(lane, n)


async def answer(lane: LlmLane, n: int) -> bool:
    by = AskedBy(f"job-{n}")
    _, reused = await lane.answer(
        chat(f"Question {n}?"), urgency=Urgency(), within=20, by=by, batch=True
    )
    return reused


def new_sender(ledger: Ledger, settings: Settings) -> BatchSender:
    """As of a scheduler that has just become active."""
    return BatchSender(settings, ledger, Publisher(settings, name="batches"))


async def test_two_senders_at_once_send_each_question_once(
    ledger: Ledger, database_url: str, given: Settings, llm: LlmServer
) -> None:
    await collect(ledger, given, 5)
    async with await Ledger.open(database_url) as second:
        senders = [new_sender(each, given) for each in (ledger, second, ledger)]
        await asyncio.gather(*(each.turn() for each in senders))
    sent = [q for each in llm.batches.batches.values() for q in llm.batches.questions(each)]
    assert all(llm.batches.questions(each) for each in llm.batches.batches.values())
    assert len(sent) == 5
    assert len({each["custom_id"] for each in sent}) == 5


@pytest.mark.parametrize("point", ["before", "upload", "create", "recorded"])
async def test_a_sender_that_is_killed_while_it_sends_is_followed_by_one_that_sends_the_rest(
    ledger: Ledger,
    given: Settings,
    llm: LlmServer,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    monkeypatch.setattr(batch_sending, "FENCE", 600.0)
    await collect(ledger, given, 2)
    killed = new_sender(ledger, given)
    if point == "before":
        monkeypatch.setattr(killed, "_send", _killed)
    elif point == "upload":
        llm.batches.fail_next = [
            _list_of_none,
            _list_of_none,
            *[lambda exchange: exchange.reset()] * 3,
        ]
    elif point == "create":
        llm.batches.after_creating = lambda exchange: exchange.reset()
    else:
        monkeypatch.setattr(ledger, "note_llm_batch", _killed)
    try:
        await killed.turn()
    except asyncio.CancelledError:
        monkeypatch.undo()
    llm.batches.fail_next = []
    await new_sender(ledger, given).turn()
    (ours,) = await ledger.llm_batches()
    assert ours.remote_id is None, "the other may be sending it yet"
    await _fence_is_over(ledger)
    await new_sender(ledger, given).turn()
    (ours,) = await ledger.llm_batches()
    assert ours.remote_id == only(llm).id
    assert len(llm.batches.questions(only(llm))) == 2


@pytest.mark.parametrize("found", ["nothing", "a refusal", "no server", "an ending"])
async def test_a_sender_that_was_frozen_changes_nothing_of_what_another_has_sent_meanwhile(
    ledger: Ledger,
    database_url: str,
    given: Settings,
    llm: LlmServer,
    monkeypatch: pytest.MonkeyPatch,
    found: str,
) -> None:
    await collect(ledger, given, 2)
    async with await Ledger.open(database_url) as other:
        frozen = new_sender(other, given)
        await other.open_llm_batch("ours", "default", wait=0, most=9, most_bytes=10_000)
        as_read = await other.llm_batches()
        items_read = [await other.llm_batch_items(as_read[0])]
        await new_sender(ledger, given).turn()
        await _fence_is_over(ledger)

        async def read_before(*_: Any) -> Any:
            return as_read

        async def items_read_before(batch: Any) -> Any:
            return items_read.pop() if items_read else await ledger.llm_batch_items(batch)

        monkeypatch.setattr(other, "llm_batches", read_before)
        monkeypatch.setattr(other, "fence_llm_batch", read_before)
        monkeypatch.setattr(other, "llm_batch_items", items_read_before)
        llm.batches.fail_next = {
            "nothing": [_list_of_none, _list_of_none],
            "a refusal": [_list_of_none, _list_of_none, llm_server_error(400)],
            "no server": [lambda exchange: exchange.reset()] * 3,
            "an ending": [],
        }[found]
        if found == "an ending":
            llm.batches.finish(only(llm))
            await new_sender(ledger, given).turn()
        await frozen.turn()
    first, *second = llm.batches.batches.values()
    assert [each.status for each in second] == ["cancelling"] * (found == "nothing")
    left = [(each.remote_id, each.state) for each in await ledger.llm_batches()]
    assert left == ([] if found == "an ending" else [(first.id, "sent")])
    if left:
        llm.batches.finish(first)
        await new_sender(ledger, given).turn()
    async with LlmLane.open(given, ledger) as lane:
        assert [await answer(lane, n) for n in range(2)] == [True] * 2
    (row,) = await ledger.llm_spend("model")
    assert (row.calls, row.cost, row.reserved) == (2, 18, 0)
    assert llm.requests == []


async def test_a_sender_that_is_killed_while_it_concludes_pays_and_answers_once(
    ledger: Ledger, given: Settings, llm: LlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await collect(ledger, given, 3)
    killed = new_sender(ledger, given)
    await killed.turn()
    llm.batches.finish(only(llm))
    conclude, done = ledger.conclude_llm_item, 0

    async def once(*args: Any) -> bool:
        nonlocal done
        done += 1
        return await conclude(*args) if done == 1 else await _killed()

    monkeypatch.setattr(ledger, "conclude_llm_item", once)
    with pytest.raises(asyncio.CancelledError):
        await killed.turn()
    monkeypatch.setattr(ledger, "conclude_llm_item", conclude)
    monkeypatch.setattr(batch_sending, "POLL", 0.0)
    await new_sender(ledger, given).turn()
    assert await ledger.llm_batches() == []
    async with LlmLane.open(given, ledger) as lane:
        assert [await answer(lane, n) for n in range(3)] == [True] * 3
    (row,) = await ledger.llm_spend("model")
    assert (row.calls, row.saved_calls, row.cost, row.reserved) == (3, 0, 27, 0)
    assert llm.requests == []


@pytest.mark.parametrize("status", ["failed", "cancelled", "expired"])
async def test_a_batch_that_ends_without_answers_frees_all_its_questions(
    plain_ledger: Ledger, given: Settings, llm: LlmServer, status: str
) -> None:
    await collect(plain_ledger, given, 2)
    sender = new_sender(plain_ledger, given)
    await sender.turn()
    only(llm).status = status
    await sender.turn()
    async with LlmLane.open(given, plain_ledger) as lane:
        assert [await answer(lane, n) for n in range(2)] == [False] * 2
    (row,) = await plain_ledger.llm_spend("model")
    assert (row.calls, row.cost, row.reserved) == (2, 36, 0)


async def test_a_batch_that_is_refused_or_never_ends_is_given_up_in_time(
    plain_ledger: Ledger, given: Settings, llm: LlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await collect(plain_ledger, given, 1)
    llm.batches.fail_next = [_list_of_none, _list_of_none, llm_server_error(400)]
    await new_sender(plain_ledger, given).turn()
    assert await plain_ledger.llm_batches() == []
    async with LlmLane.open(given, plain_ledger) as lane:
        assert await answer(lane, 0) is False
    await collect_one(plain_ledger, given)
    await new_sender(plain_ledger, given).turn()
    monkeypatch.setattr(batch_sending, "DUE", -1.0)
    await new_sender(plain_ledger, given).turn()
    assert only(llm).status == "cancelling"
    assert len(await plain_ledger.llm_batches()) == 1, "what it has answered may come yet"
    monkeypatch.setattr(batch_sending, "CANCELLED_WITHIN", 0.0)
    await new_sender(plain_ledger, given).turn()
    assert await plain_ledger.llm_batches() == []
    async with LlmLane.open(given, plain_ledger) as lane:
        assert await answer(lane, 77) is False


async def test_a_batch_whose_answers_can_not_be_kept_holds_up_no_other(
    plain_ledger: Ledger, given: Settings, llm: LlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = given.model_copy(update={"llm_batch_size": 1})
    await collect(plain_ledger, settings, 2)
    sender = new_sender(plain_ledger, settings)
    await sender.turn()
    await sender.turn()
    for each in llm.batches.batches.values():
        llm.batches.finish(each)
    keep, refused = sender._answers.keep, 0

    async def refused_once(*args: Any) -> None:
        nonlocal refused
        refused += 1
        if refused == 1:
            raise StorageAway("the file storage does not answer")
        await keep(*args)

    monkeypatch.setattr(sender._answers, "keep", refused_once)
    await sender.turn()
    (waiting,) = await plain_ledger.llm_batches()
    assert waiting.note == "the file storage does not answer"
    await sender.turn()
    assert await plain_ledger.llm_batches() == []
    async with LlmLane.open(settings, plain_ledger) as lane:
        assert [await answer(lane, n) for n in range(2)] == [True] * 2


async def test_an_answer_that_can_not_be_written_as_it_is_keeps_no_batch_waiting(
    plain_ledger: Ledger, given: Settings, llm: LlmServer
) -> None:
    await collect(plain_ledger, given, 2)
    sender = new_sender(plain_ledger, given)
    await sender.turn()
    keys = [each["custom_id"] for each in llm.batches.questions(only(llm))]
    lines = []
    for key, text in zip(keys, ["half \ud83d", "both \ud83d\ude00"], strict=True):
        body = {"model": "m\ud800", "choices": [{"message": {"content": text}}]}
        lines.append({"custom_id": key, "response": {"status_code": 200, "body": body}})
    llm.batches.finish(only(llm), without=2, more=b"\n".join(json.dumps(x).encode() for x in lines))
    await sender.turn()
    assert await plain_ledger.llm_batches() == []
    async with LlmLane.open(given, plain_ledger) as lane:
        assert [await answer(lane, n) for n in range(2)] == [True] * 2


async def test_a_server_without_a_batch_api_keeps_no_question_waiting(
    plain_ledger: Ledger, given: Settings, llm: LlmServer
) -> None:
    await collect(plain_ledger, given, 1)
    llm.batches.fail_next = [llm_server_error(404)]
    await new_sender(plain_ledger, given).turn()
    async with LlmLane.open(given, plain_ledger) as lane:
        assert await answer(lane, 0) is False


async def test_ids_of_a_server_are_no_addresses(
    plain_ledger: Ledger, given: Settings, llm: LlmServer
) -> None:
    await collect(plain_ledger, given, 1)
    llm.batches.fail_next = [
        _list_of_none,
        _list_of_none,
        lambda exchange: exchange.send_json(200, {"id": "../../admin", "object": "file"}),
    ]
    await new_sender(plain_ledger, given).turn()
    (ours,) = await plain_ledger.llm_batches()
    assert ours.remote_id is None
    assert "id is none" in (ours.note or "")


async def test_a_file_of_answers_without_an_end_of_lines_is_not_all_read(
    plain_ledger: Ledger, given: Settings, llm: LlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []
    monkeypatch.setattr(batch_api, "LONGEST_LINE", 2_000)

    def noted(line: bytes) -> Any:
        read.append(line)
        return json.loads(line)

    monkeypatch.setattr(batch_api, "_json", noted)
    await collect(plain_ledger, given, 2)
    await new_sender(plain_ledger, given).turn()
    llm.batches.finish(only(llm), without=1)
    asked = llm.batches.questions(only(llm))  # in any order
    first = 0 if "Question 0?" in json.dumps(asked[0]) else 1
    key = asked[1]["custom_id"]
    too_long = json.dumps({"custom_id": key, "response": "x" * 2_000}).encode() + b"\n"
    output = only(llm).output_file_id
    assert output is not None
    llm.batches.files[output] = too_long + llm.batches.files[output] + b"{}\n" * 100_000
    await new_sender(plain_ledger, given).turn()
    assert len(read) == 3  # of four lines for two questions, one is too long
    async with LlmLane.open(given, plain_ledger) as lane:
        assert await answer(lane, first) is True  # kept
        assert await answer(lane, 1 - first) is False  # asked live


async def test_a_list_of_batches_without_an_end_holds_nobody_up(
    plain_ledger: Ledger, given: Settings, llm: LlmServer
) -> None:
    await collect(plain_ledger, given, 1)
    page = {"object": "list", "has_more": True, "data": [{}] * 200_000}
    llm.batches.fail_next = [lambda exchange: exchange.send_json(200, page)]
    began = time.monotonic()
    await new_sender(plain_ledger, given).turn()
    assert time.monotonic() - began < 5
    assert only(llm).status == "in_progress"


# --- means --------------------------------------------------------------------------------------


async def collect_one(ledger: Ledger, settings: Settings) -> None:
    async with LlmLane.open(settings, ledger) as lane:
        await ledger.record(new_job("job-77"))
        with pytest.raises(Batched):
            await answer(lane, 77)


async def _killed(*_: Any, **__: Any) -> Any:
    raise asyncio.CancelledError


async def _fence_is_over(ledger: Ledger) -> None:
    from sqlalchemy import text

    past = text("UPDATE llm_batches SET fenced_until = 0")
    await ledger._database.write(lambda connection: connection.execute(past))


def _list_of_none(exchange: llm_server.Exchange) -> None:
    exchange.send_json(200, {"object": "list", "data": [], "has_more": False})


def llm_server_error(status: int) -> Any:
    return lambda exchange: exchange.send_json(status, {"error": {"message": "not so"}})

"""A message that is no valid job becomes a dead letter, with its bytes as they came."""

import json
from typing import Any

from switchyard.broker.dead.dead_letter_headers import Reason, letter_id
from switchyard.broker.lanes import JOBS_EXCHANGE
from switchyard.broker.message import MAX_BODY_BYTES
from switchyard.broker.wire.envelope import Envelope
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System, open_system


def make_body(**changes: Any) -> bytes:
    return json.dumps({"job_id": "m", "job_type": "noop", "payload": {}, **changes}).encode()


MALFORMED = {
    "not json": b"{not json",
    "not utf-8": b"\xff\xfe",
    "empty": b"",
    "not an object": b"[1, 2]",
    "without anything": b"{}",
    "a bad id": make_body(job_id="no spaces, please"),
    "a bad priority": make_body(priority=99),
    "no time": make_body(metadata={"created_at": "yesterday"}),
    "no payload": make_body(payload=None),
    "over-large": make_body(payload={"text": "x" * MAX_BODY_BYTES}),
}


async def test_a_malformed_message_is_a_dead_letter_with_its_bytes_as_they_came(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system:
        worker = await system.start_worker("llm")
        for name, message_body in MALFORMED.items():
            await system.publish_raw("hot.noop", message_body, message_id=name)
        await eventually(lambda: worker.worker.counters.dead == len(MALFORMED))
        letters = await system.letters()
        assert sorted(letter.delivery.body for letter in letters) == sorted(MALFORMED.values())
        for letter in letters:
            assert letter.info.reason is Reason.MALFORMED
            assert letter.info.routing_key == "hot.noop"
            assert letter.info.message
            assert letter.delivery.body == MALFORMED[letter.delivery.message_id]
        assert journal.starts == []
        job_id = await system.publish("hot.noop")
        await system.wait_for_state(job_id, State.SUCCEEDED)


async def test_a_malformed_message_without_an_id_is_known_by_its_bytes(system: System) -> None:
    await system.start_worker("llm")
    await system.wire.send(JOBS_EXCHANGE, "hot.noop", Envelope(b"nameless", message_id=""))
    letter = await system.wait_for_letter(letter_id(None, b"nameless"))
    assert letter.delivery.message_id == letter.id


async def test_a_number_that_the_ledger_can_not_hold_is_malformed(
    broker310: TestBroker, postgres_url: str
) -> None:
    async with open_system(broker310, postgres_url) as system:
        await system.start_worker("llm")
        message_body = make_body(metadata={"attempts": 10**30})
        await system.publish_raw("hot.noop", message_body)
        (letter,) = await eventually(system.letters)
        assert (letter.info.reason, letter.delivery.body) == (Reason.MALFORMED, message_body)
        job_id = await system.publish("hot.noop")
        await system.wait_for_state(job_id, State.SUCCEEDED)

import asyncio

import pytest

from switchyard.broker.message import JobMessage
from switchyard.services.engine.ledger import Ledger, to_message
from switchyard.services.engine.ledger.jobs import OWN_STATEMENT_THRESHOLD
from switchyard.services.engine.records.errors import IdempotencyConflict, RowRejected
from switchyard.services.engine.records.results import Created, Existing
from switchyard.services.engine.records.states import State
from tests.support.made import NOW, claim, finish, message, new_job

UNKNOWN_IDS = [f"nobody-{number}" for number in range(OWN_STATEMENT_THRESHOLD)]
FEW_AND_MANY = pytest.mark.parametrize("other_ids", [[], UNKNOWN_IDS], ids=["few", "many"])
"""Few ids are marked by another statement than many."""


@FEW_AND_MANY
async def test_a_new_job_is_pending_and_a_confirmed_one_queued(
    ledger: Ledger, other_ids: list[str]
) -> None:
    assert await ledger.jobs.record(new_job()) == Created("job-1")
    assert await ledger.jobs.record(new_job()) == Existing("job-1", State.PENDING)
    await ledger.jobs.mark_queued(["job-1", *other_ids], NOW + 1)
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert (record.state, record.queued_at) == (State.QUEUED, NOW + 1)


@FEW_AND_MANY
async def test_a_late_confirm_leaves_a_claimed_or_finished_job_alone(
    ledger: Ledger, other_ids: list[str]
) -> None:
    await ledger.jobs.record_many([new_job("job-1"), new_job("job-2")])
    await ledger.jobs.claim(claim("job-1", "c1"))
    await ledger.jobs.claim(claim("job-2", "c2"))
    await ledger.jobs.finish(finish(job_id="job-2", claim_id="c2"))
    await ledger.jobs.mark_queued(["job-1", "job-2", *other_ids], NOW)
    first, second = await ledger.job_reads.get("job-1"), await ledger.job_reads.get("job-2")
    assert first is not None
    assert second is not None
    assert (first.state, second.state) == (State.RUNNING, State.SUCCEEDED)


async def test_a_job_without_room_in_its_lane_is_dead_as_overflowed(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job())
    assert await ledger.jobs.mark_overflowed("job-1", NOW)
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert (record.state, record.reason) == (State.DEAD, "overflowed")
    assert not await ledger.jobs.mark_overflowed("job-1", NOW)


async def test_one_idempotency_key_makes_one_job(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job(idempotency_key="k"))
    repeated = new_job(message("job-2"), idempotency_key="k")
    assert await ledger.jobs.record(repeated) == Existing("job-1", State.PENDING)
    assert await ledger.job_reads.get("job-2") is None


async def test_the_order_of_payload_fields_does_not_make_another_job(ledger: Ledger) -> None:
    first, second = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    await ledger.jobs.record(new_job(message(payload=first), idempotency_key="k"))
    repeated = new_job(message("job-2", payload=second), idempotency_key="k")
    assert await ledger.jobs.record(repeated) == Existing("job-1", State.PENDING)


async def test_an_idempotency_key_with_another_payload_is_a_conflict(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job(idempotency_key="k"))
    conflicting = new_job(message("job-2", payload={"text": "other"}), idempotency_key="k")
    with pytest.raises(IdempotencyConflict) as caught:
        await ledger.jobs.record(conflicting)
    assert (caught.value.idempotency_key, caught.value.job_id) == ("k", "job-1")


async def test_fifty_concurrent_records_of_one_key_make_one_job(ledger: Ledger) -> None:
    jobs = [new_job(message(f"job-{n}"), idempotency_key="k") for n in range(50)]
    answers = await asyncio.gather(*(ledger.jobs.record(job) for job in jobs))
    (created,) = [answer for answer in answers if isinstance(answer, Created)]
    assert {answer.job_id for answer in answers} == {created.job_id}


async def test_a_batch_answers_in_order_with_a_conflict_in_its_place(ledger: Ledger) -> None:
    answers = await ledger.jobs.record_many(
        [
            new_job("job-1", idempotency_key="k"),
            new_job(message("job-2", payload={"other": 1}), idempotency_key="k"),
            new_job("job-1"),
            new_job("job-3"),
        ]
    )
    assert answers[0] == Created("job-1")
    assert isinstance(answers[1], IdempotencyConflict)
    assert answers[2:] == [Existing("job-1", State.PENDING), Created("job-3")]


@pytest.mark.parametrize(
    "payload",
    [
        {"nul": "a\x00b", "deep": {"\x00": ["\x00"]}},
        {"lone": "a\ud800b", "text": "naïve 文 🚂"},
        {"large": "x" * 1_000_000},
        {"float": 0.1, "large": 2**70, "none": None, "true": True, "list": [[], {}]},
        {},
    ],
    ids=["nul", "surrogate", "one-megabyte", "numbers", "empty"],
)
async def test_a_payload_comes_back_as_it_was(ledger: Ledger, payload: dict) -> None:
    await ledger.jobs.record(new_job(message("recorded", payload=payload)))
    await ledger.jobs.claim(claim(message("foreign", payload=payload)))
    for job_id in ("recorded", "foreign"):
        record = await ledger.job_reads.get(job_id)
        assert record is not None
        assert record.payload == payload
        assert to_message(record).payload == payload


async def test_a_message_is_rebuilt_exactly(ledger: Ledger) -> None:
    body = (
        b'{"job_id":"job-1","job_type":"summarize_content","priority":7,'
        b'"payload":{"text":"na\xc3\xafve \\u0000"},"metadata":{"created_at":'
        b'"2026-01-02T03:04:05.678901+02:00","source":"arxiv","attempts":1,"max_attempts":5,'
        b'"redrives":2,"expires_at":"2030-01-01T00:00:00Z","pipeline":"p-1",'
        b'"tenant":{"id":9}},"schema":"v9","tags":["a",1.5]}'
    )
    sent = JobMessage.decode(body)
    await ledger.jobs.record(new_job(sent))
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert to_message(record).encode() == sent.encode()
    assert (record.parent_id, record.pipeline, record.priority) == (None, "p-1", 7)
    assert record.expires_at == 1893456000.0


async def test_a_rebuilt_message_is_of_the_generation_last_seen(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.finish(finish(State.RETRYING, attempts=1))
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert to_message(record).generation == (0, 1)


async def test_free_text_with_nul_and_lone_surrogates_is_kept_escaped(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim(source="a\x00b"))
    await ledger.jobs.finish(finish(State.DEAD, reason="\ud800", error_message="x\x00y" * 9_000))
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert (record.source, record.reason) == ("a\\x00b", "\\ud800")
    assert to_message(record).metadata.source == "a\x00b"
    assert len(record.error_message or "") < 20_000


async def test_a_payload_that_is_not_json_is_refused(ledger: Ledger) -> None:
    with pytest.raises(RowRejected, match="JSON"):
        await ledger.jobs.record(new_job(message(payload={"file": object()})))
    with pytest.raises(RowRejected, match="JSON"):
        await ledger.jobs.claim(claim(message(payload={"file": object()})))

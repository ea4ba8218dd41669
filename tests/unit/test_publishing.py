"""A request becomes a job: its checks and defaults, and the jobs that follow from a handler."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic_core import to_jsonable_python

from switchyard.broker.message import MAX_NEW_BODY_BYTES, JobMessage, Metadata
from switchyard.broker.publish.outcome import envelope_of
from switchyard.services.engine.backfill.spec import item_job_id, then_id_of
from switchyard.services.engine.jobs.outcomes import Job
from switchyard.services.engine.jobs.registry import InvalidPayload, Registry, UnknownJobType
from switchyard.services.engine.ledger.sql.codec import to_json
from switchyard.services.engine.ledger.sql.job_content import JobContent
from switchyard.services.engine.publishing.preparing import (
    CHILDREN_PER_TURN,
    InvalidJob,
    JobRequest,
    children_of,
    job_id_of,
    prepare,
)
from switchyard.services.engine.records.errors import RowRejected
from switchyard.services.engine.records.job_ids import PUBLIC_IDS
from switchyard.services.engine.records.requests import MAX_DELAY
from tests.support.system import JOB_MODULES
from tests.support.turns import turns_during

REGISTRY = Registry.load(JOB_MODULES)
PARENT = JobMessage(
    job_id="parent",
    job_type="spread",
    priority=7,
    payload={},
    metadata=Metadata(source="arxiv", traceparent="00-1-2-01"),
)


def make_job(routing_key: str = "hot.noop", payload: Any = None, **options: Any):
    return prepare(REGISTRY, JobRequest(routing_key, {} if payload is None else payload, **options))


def test_a_job_gets_its_lanes_priority_and_its_types_attempts() -> None:
    for key, priority in (("hot.noop", 10), ("backfill.noop", 1)):
        job = make_job(key, {"n": 3})
        assert (job.lane, job.worker, job.routing_key) == (key.partition(".")[0], "llm", key)
        assert (job.message.priority, job.message.payload) == (priority, {"n": 3})
        assert job.message.metadata.max_attempts == 3
    assert make_job("hot.slow").message.metadata.max_attempts == 1


def test_the_options_of_a_request_are_those_of_its_message() -> None:
    expires_at = datetime.now(UTC) + timedelta(hours=1)
    message = make_job(
        priority=0,
        max_attempts=9,
        source="github",
        expires_at=expires_at,
        job_id="mine",
        reply_to="amq.rabbitmq.reply-to",
        traceparent="00-1-2-01",
    ).message
    assert (message.job_id, message.priority) == ("mine", 0)
    metadata = message.metadata
    assert (metadata.max_attempts, metadata.source) == (9, "github")
    assert (metadata.expires_at, metadata.reply_to) == (expires_at, "amq.rabbitmq.reply-to")
    assert metadata.traceparent == "00-1-2-01"


def test_the_age_of_a_delayed_job_counts_from_its_due_time() -> None:
    job = make_job(delay=60)
    assert job.run_at is not None
    metadata = job.message.metadata
    assert metadata.queued_at == metadata.created_at + timedelta(seconds=60)
    assert job.run_at == pytest.approx(metadata.queued_at.timestamp())
    assert make_job().run_at is None


def test_one_idempotency_key_of_one_type_is_one_job() -> None:
    ids = {make_job(idempotency_key="a").message.job_id for _ in range(3)}
    assert len(ids) == 1
    ids.add(make_job(idempotency_key="b").message.job_id)
    ids.add(make_job("hot.gated", idempotency_key="a").message.job_id)
    assert len(ids) == 3


def test_ids_made_from_keys_and_from_numbers_never_collide() -> None:
    """The followers of a job with the id `key` once had the ids of the idempotency keys 0, 1, 2."""
    follower = job_id_of(PUBLIC_IDS, "key", "noop", 0)
    assert make_job(idempotency_key="0").message.job_id != follower
    operation = "backfill-1"
    keys = ["then", "item/then", "item/item/then", "item/", "a", "notice"]
    ids = {item_job_id(PUBLIC_IDS, operation, key) for key in keys}
    assert len(ids) == len(keys)
    assert then_id_of(PUBLIC_IDS, operation) not in ids


@pytest.mark.parametrize("key", ["api:0b0f6c1e order-1", "webhook:github webhook/github/1"])
def test_idempotency_keys_of_api_keys_and_webhooks_are_reserved(key: str) -> None:
    with pytest.raises(InvalidJob, match="choose another"):
        make_job(idempotency_key=key)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("noop", "<lane>.<job_type>"),
        ("", "<lane>.<job_type>"),
        ("hot.", "<lane>.<job_type>"),
        ("hot.no.op", "<lane>.<job_type>"),
        ("tepid.noop", "no lane 'tepid'"),
        ("maintenance.noop", "hot.noop or backfill.noop"),
    ],
)
def test_an_invalid_routing_key_is_refused_with_valid_ones(key: str, text: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        make_job(key)
    assert text in str(refused.value)


def nest(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def test_a_payload_too_deep_or_large_for_a_worker_is_refused() -> None:
    for value in (nest(210), nest(240), [[nest(205)]] * 3, 10**4_300, [[-(10**6_000)]]):
        with pytest.raises(InvalidPayload, match="payload of spread"):
            make_job("hot.spread", {"payload": {"value": value}})
    for value in (nest(150), [{"a": [1]}] * 2_000, "9" * 9_000, 10**4_299, "[" * 1_000, "\x00"):
        message = make_job("hot.spread", {"payload": {"value": value}}).message
        assert JobMessage.decode(message.encode()).payload == {"payload": {"value": value}}


def test_json_that_can_not_be_read_again_is_not_stored() -> None:
    for value in (nest(260), nest(900), 10**4_300, {"a": [10**9_000]}):
        with pytest.raises(RowRejected, match="not to be written as JSON"):
            to_json({"value": value})
    for value in (nest(240), "9" * 9_000, 10**4_299, "\ud800", {"ü": nest(200)}):
        stored = json.loads(to_json({"value": value}))
        assert stored == {"value": value}
        to_jsonable_python(stored)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(UnknownJobType, match="nothing"):
        make_job("hot.nothing")


@pytest.mark.parametrize(
    "options",
    [
        {"priority": -1},
        {"priority": 11},
        {"priority": 5.5},
        {"max_attempts": 0},
        {"max_attempts": 1001},
        {"delay": -1},
        {"delay": math.nan},
        {"delay": math.inf},
        {"delay": MAX_DELAY + 1},
        {"job_id": ""},
        {"job_id": "a b"},
        {"job_id": "x" * 129},
        {"expires_at": datetime(2026, 1, 1)},  # noqa: DTZ001 - a time without a zone is the error
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob):
        make_job(**options)


@pytest.mark.parametrize(
    ("key", "payload"),
    [
        ("hot.noop", {"n": "three"}),
        ("hot.scripted", {}),
        ("hot.noop", {"extra": object()}),
        ("hot.noop", {"extra": "\ud800"}),
        ("hot.noop", {"text": "x" * (1024 * 1024)}),
    ],
)
def test_an_invalid_payload_is_refused(key: str, payload: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayload):
        make_job(key, payload)


def test_the_largest_job_that_is_accepted_can_be_read_by_a_worker() -> None:
    body = make_job("hot.noop", {"text": "x" * (MAX_NEW_BODY_BYTES - 1000)}).message.encode()
    assert JobMessage.decode(body).payload["text"]


async def test_next_jobs_have_the_same_ids_each_time() -> None:
    jobs = [Job("received", {"n": 1}), Job("received", {"n": 2}), Job("noop", {})]
    first_ids, second_ids = [
        [
            child.message.job_id
            for child in await children_of(REGISTRY, PUBLIC_IDS, PARENT, "hot", jobs)
        ]
        for _ in range(2)
    ]
    assert first_ids == second_ids
    assert len(set(first_ids)) == 3
    assert first_ids[0] == job_id_of(PUBLIC_IDS, "parent", "received", 0)


async def test_next_jobs_take_pipeline_source_and_priority_of_the_first() -> None:
    (child,) = await children_of(REGISTRY, PUBLIC_IDS, PARENT, "hot", [Job("received", {"n": 1})])
    metadata = child.message.metadata
    assert (metadata.parent_id, metadata.pipeline) == ("parent", "parent")
    assert (metadata.source, metadata.traceparent) == ("arxiv", "00-1-2-01")
    assert child.message.priority == 7
    jobs = [Job("noop", {}, priority=2)]
    (grandchild,) = await children_of(REGISTRY, PUBLIC_IDS, child.message, "hot", jobs)
    assert (grandchild.message.metadata.parent_id, grandchild.message.metadata.pipeline) == (
        child.message.job_id,
        "parent",
    )
    assert grandchild.message.priority == 2


@pytest.mark.parametrize(
    ("job", "is_later"),
    [
        (Job("noop", {}), True),
        (Job("received", {}), False),  # another kind of worker
        (Job("noop", {}, priority=7), False),  # its handler has set the priority
        (Job("noop", {}, own_pipeline=True), False),
        (Job("spread", {}), False),  # it continues in pieces, and other jobs run in between
    ],
)
async def test_a_later_stage_of_a_worker_goes_before_first_stages(job: Job, is_later: bool) -> None:
    for priority in range(11):
        parent = PARENT.model_copy(update={"priority": priority})
        job = replace(job, priority=None if job.priority is None else priority)
        (child,) = await children_of(REGISTRY, PUBLIC_IDS, parent, "hot", [job])
        assert child.message.priority == priority
        first, next_stage = (
            envelope_of(JobMessage.decode(each.encode())).priority
            for each in (parent, child.message)
        )
        assert (next_stage > first) is is_later
        assert max(first, next_stage) <= 10


@pytest.mark.parametrize(
    ("job", "parent_lane", "lane"),
    [
        (Job("received", {}), "backfill", "backfill"),
        (Job("received", {}), "maintenance", "hot"),
        (Job("tidied", {}), "backfill", "hot"),
        (Job("tidied", {}, lane="maintenance"), "hot", "maintenance"),
    ],
)
async def test_next_jobs_stay_in_the_lane_if_their_type_has_it(
    job: Job, parent_lane: str, lane: str
) -> None:
    (child,) = await children_of(REGISTRY, PUBLIC_IDS, PARENT, parent_lane, [job])
    assert (child.lane, child.routing_key) == (lane, f"{lane}.{job.job_type}")


@pytest.mark.parametrize(
    ("job", "error"),
    [
        (Job("nothing", {}), UnknownJobType),
        (Job("received", {"n": "three"}), InvalidPayload),
        (Job("received", {"text": "x" * (1024 * 1024)}), InvalidPayload),
        (Job("received", None), InvalidPayload),  # type: ignore[arg-type]
        (Job("received", {}, lane="vlm_ocr"), InvalidJob),
        (Job("received", {}, priority=11), InvalidJob),
    ],
)
async def test_next_jobs_are_checked_like_any_other(job: Job, error: type[Exception]) -> None:
    with pytest.raises(error):
        await children_of(REGISTRY, PUBLIC_IDS, PARENT, "hot", [job])


async def test_other_tasks_run_while_many_next_jobs_are_made() -> None:
    jobs = [Job("noop", {})] * 4 * CHILDREN_PER_TURN
    children, turns = await turns_during(children_of(REGISTRY, PUBLIC_IDS, PARENT, "hot", jobs))
    assert len(children) == len(jobs)
    assert turns >= 4


def test_the_recorded_payload_is_the_sent_one() -> None:
    """Otherwise its message would count as another job's, and the record stay queued for ever."""
    message = make_job(payload={"text": "x", "odd": [math.nan, math.inf, 10**30]}).message
    sent = JobMessage.decode(message.encode())
    assert JobContent.from_message(sent) == JobContent.from_message(message)


def test_a_field_name_that_is_no_valid_text_is_refused() -> None:
    with pytest.raises(InvalidPayload, match="surrogates not allowed"):
        make_job(payload={"text": "x", "odd": {"\ud800": 1}})

"""Messages of jobs: their encoding and decoding, and the malformed ones that are refused."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.broker.errors import MalformedMessage
from switchyard.broker.message import MAX_BODY_BYTES, JobMessage, Metadata
from switchyard.broker.times import EARLIEST, LATEST, format_local, to_datetime

SECRET = "hunter2-is-private"

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
json_objects = st.dictionaries(text, json_values, max_size=5)
times = st.datetimes(
    datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)  # noqa: DTZ001
)  # fmt: skip


def unknown_fields(model: type[JobMessage] | type[Metadata]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for fields that a model of this version does not have."""
    return st.dictionaries(
        text.filter(lambda name: name not in model.model_fields), json_values, max_size=4
    )


@given(json_objects, st.integers(0, 10), times, st.integers(0, 50), text)
def test_a_message_survives_its_encoding(
    payload: dict[str, Any], priority: int, created_at: datetime, attempts: int, source: str
) -> None:
    message = JobMessage(
        job_type="summarize_content",
        priority=priority,
        payload=payload,
        metadata=Metadata(created_at=created_at, attempts=attempts, source=source),
    )
    assert JobMessage.decode(message.encode()) == message


@given(json_objects, unknown_fields(JobMessage), unknown_fields(Metadata))
def test_unknown_fields_survive_a_retry(
    payload: dict[str, Any], unknown: dict[str, Any], unknown_metadata: dict[str, Any]
) -> None:
    metadata = {"created_at": "2026-01-02T03:04:05Z", "source": "arxiv", **unknown_metadata}
    sent = {"job_id": "a", "job_type": "b", "payload": payload, "metadata": metadata, **unknown}

    retried = JobMessage.decode(json.dumps(sent).encode()).with_metadata(attempts=2)

    decoded = json.loads(retried.encode())
    assert decoded["payload"] == payload
    assert {name: decoded[name] for name in unknown} == unknown
    assert {name: decoded["metadata"][name] for name in unknown_metadata} == unknown_metadata
    assert decoded["metadata"]["attempts"] == 2
    assert decoded["metadata"]["created_at"] == "2026-01-02T03:04:05Z"


def test_a_message_with_type_and_payload_alone_is_a_job() -> None:
    message = JobMessage.decode(b'{"job_type": "crawl", "payload": {}}')
    assert message.priority == 0
    assert message.metadata.max_attempts == 3
    assert message.metadata.created_at.tzinfo is UTC
    assert message.job_id != JobMessage.decode(b'{"job_type": "crawl", "payload": {}}').job_id


def test_a_message_carries_the_fields_of_requirement_t8() -> None:
    body = json.loads(JobMessage(job_type="crawl", payload={"url": "https://x"}).encode())
    assert {"job_id", "job_type", "priority", "payload", "metadata"} <= body.keys()
    assert {"created_at", "source", "attempts", "max_attempts"} <= body["metadata"].keys()


def test_copies_of_a_job_are_ordered_by_redrives_then_attempts() -> None:
    first = JobMessage(job_type="crawl", payload={})
    retried = first.with_metadata(attempts=2)
    redriven = retried.with_metadata(redrives=1, attempts=0)
    assert first.generation < retried.generation < redriven.generation
    assert first.metadata.attempts == 0


@pytest.mark.parametrize(
    "job_id", ["", "-a", "a b", "a/b", "../a", "é", "a" * 129, "a\n"]
)  # fmt: skip
def test_an_id_that_can_not_be_part_of_a_path_is_refused(job_id: str) -> None:
    with pytest.raises(MalformedMessage):
        JobMessage.decode(json.dumps({"job_id": job_id, "job_type": "a", "payload": {}}).encode())


MALFORMED = {
    "empty": b"",
    "not JSON": b"{" + SECRET.encode(),
    "not UTF-8": b'{"job_type": "\xff' + SECRET.encode() + b'"}',
    "half a surrogate": b'{"job_type": "a", "payload": {"a": "\\ud800' + SECRET.encode() + b'"}}',
    "not an object": json.dumps([SECRET]).encode(),
    "nested without end": b'{"job_type": "a", "payload": {"a": ' + b"[" * 50_000,
    "no payload": json.dumps({"job_type": "a", "extra": SECRET}).encode(),
    "payload is no object": json.dumps({"job_type": "a", "payload": SECRET}).encode(),
    "bad type name": json.dumps({"job_type": SECRET.upper(), "payload": {}}).encode(),
    "bad id": json.dumps({"job_id": f" {SECRET}", "job_type": "a", "payload": {}}).encode(),
    "priority is text": json.dumps(
        {"job_type": "a", "payload": {}, "priority": f"{SECRET}\nand more"}
    ).encode(),
    "priority too high": b'{"job_type": "a", "payload": {}, "priority": 11}',
    "time without a zone": json.dumps(
        {"job_type": "a", "payload": {}, "metadata": {"created_at": "2026-01-02T03:04:05"}}
    ).encode(),
    "time is text": json.dumps(
        {"job_type": "a", "payload": {}, "metadata": {"created_at": SECRET}}
    ).encode(),
    "everything is wrong": json.dumps(
        {"job_type": 1, "payload": SECRET, "priority": SECRET, "job_id": 2, "metadata": SECRET}
    ).encode(),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_message_is_refused_in_one_line_without_its_values(body: bytes) -> None:
    with pytest.raises(MalformedMessage) as refused:
        JobMessage.decode(body)
    assert str(refused.value)
    assert "\n" not in str(refused.value)
    assert SECRET not in str(refused.value).lower()


def test_a_refusal_names_the_fields() -> None:
    with pytest.raises(MalformedMessage, match=r"job_type: .*; payload: .*; metadata\.attempts: "):
        JobMessage.decode(b'{"job_type": "A", "metadata": {"attempts": -1}}')


def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    body = b'{"job_type": "a", "payload": {}}'
    assert JobMessage.decode(body.ljust(MAX_BODY_BYTES)).job_type == "a"
    with pytest.raises(MalformedMessage, match=rf"{MAX_BODY_BYTES + 1} bytes"):
        JobMessage.decode(body.ljust(MAX_BODY_BYTES + 1))


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_job_or_are_refused(body: bytes) -> None:
    try:
        message = JobMessage.decode(body)
    except MalformedMessage as refused:
        assert "\n" not in str(refused)  # noqa: PT017 – most bodies are refused, some are not
    else:
        assert JobMessage.decode(message.encode()) == message


def test_a_message_is_immutable() -> None:
    message = JobMessage(job_type="crawl", payload={})
    later = message.metadata.created_at + timedelta(days=1)
    with pytest.raises(ValueError, match="frozen"):
        message.metadata.created_at = later  # type: ignore[misc]


@pytest.mark.parametrize("field", ["created_at", "queued_at", "expires_at", "not_before"])
@pytest.mark.parametrize(
    ("moment", "is_accepted"),
    [
        ("0001-01-01T00:00:00Z", True),
        ("0001-01-01T00:00:00-23:59", True),
        ("9998-12-31T00:00:00Z", True),
        ("0001-01-01T00:00:00+01:00", False),
        ("9999-12-31T23:59:59-01:00", False),
        ("9999-12-31T23:59:59Z", False),
        ("2026-01-05T09:00:00", False),
    ],
)
def test_a_time_is_accepted_if_it_exists_in_every_zone(
    field: str, moment: str, is_accepted: bool
) -> None:
    metadata = {"created_at": "2026-01-05T09:00:00Z", field: moment}
    body = json.dumps({"job_id": "a", "job_type": "b", "payload": {}, "metadata": metadata})
    if is_accepted:
        parsed = getattr(JobMessage.decode(body.encode()).metadata, field)
        assert to_datetime(parsed.timestamp()) == parsed
        assert format_local(parsed.timestamp())
    else:
        with pytest.raises(MalformedMessage, match=field):
            JobMessage.decode(body.encode())


@given(st.floats())
def test_any_number_of_seconds_can_be_shown(seconds: float) -> None:
    assert EARLIEST <= to_datetime(seconds) <= LATEST
    assert format_local(seconds)

"""Filters of redrives, and the copies that a redrive makes of letters, without a broker."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from switchyard.api.models.dead import NewRedrive
from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, Reason
from switchyard.broker.dead.scan import QueuedDeadLetter
from switchyard.broker.message import JobMessage, Metadata
from switchyard.broker.wire.channel import PipelinedChannel
from switchyard.services.engine.dead.changes import (
    Change,
    InvalidRedrive,
    make_copy,
    parse_assignment,
)
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.jobs.registry import Registry

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
REGISTRY = Registry.load(["tests.support.jobs"])


def make_letter(
    *,
    routing_key: str = "hot.noop",
    reason: Reason = Reason.EXHAUSTED,
    error_type: str = "RuntimeError",
    dead_at: str = "2026-03-01T11:00:00+00:00",
    body: bytes | None = None,
    payload: dict[str, Any] | None = None,
    **metadata: Any,
) -> QueuedDeadLetter:
    """Return a letter of the job `job-1` that died an hour before NOW."""
    if body is None:
        message = JobMessage(
            job_id="job-1",
            job_type=routing_key.partition(".")[2] or "noop",
            payload=payload or {},
            metadata=Metadata(**metadata),
        )
        body = message.encode()
    info = DeadLetterInfo(reason, routing_key, error_type=error_type, dead_at=dead_at)
    delivery = Delivery(
        body=body,
        queue="jobs.dead",
        exchange="jobs.dlx",
        routing_key=routing_key,
        redelivered=False,
        priority=0,
        message_id="job-1",
        headers=info.headers(),
        received_at=0,
        unreadable="",
        properties=b"",
        _tag=1,
        _channel=cast("PipelinedChannel", None),
    )
    return QueuedDeadLetter.from_delivery(delivery)


# --- filters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("letter_filter", "matches"),
    [
        (LetterFilter(), True),
        (LetterFilter(ids=frozenset({"job-1", "job-2"})), True),
        (LetterFilter(ids=frozenset({"job-2"})), False),
        (LetterFilter(job_type="noop"), True),
        (LetterFilter(job_type="noo"), False),
        (LetterFilter(lane="hot"), True),
        (LetterFilter(lane="backfill"), False),
        (LetterFilter(reason="exhausted"), True),
        (LetterFilter(reason="permanent"), False),
        (LetterFilter(error_type="RuntimeError"), True),
        (LetterFilter(error_type="Error"), False),
        (LetterFilter(older_than=3600), True),
        (LetterFilter(older_than=3601), False),
        (LetterFilter(younger_than=3600), True),
        (LetterFilter(younger_than=3599), False),
        (LetterFilter(older_than=3000, younger_than=4000), True),
        (LetterFilter(lane="hot", reason="permanent"), False),
    ],
)
def test_a_filter_matches_letters_that_fit_every_field(
    letter_filter: LetterFilter, matches: bool
) -> None:
    assert letter_filter.matches(make_letter(), NOW) is matches


@pytest.mark.parametrize("dead_at", ["", "yesterday", "2026-03-01T11:00:00"])
def test_a_letter_without_a_readable_time_has_no_age(dead_at: str) -> None:
    undated = make_letter(dead_at=dead_at)
    assert not LetterFilter(older_than=0).matches(undated, NOW)
    assert not LetterFilter(younger_than=10**9).matches(undated, NOW)
    assert LetterFilter(lane="hot").matches(undated, NOW)


def test_a_malformed_letter_matches_every_filter_but_that_of_its_type() -> None:
    raw = make_letter(body=b"\xff", reason=Reason.MALFORMED)
    assert raw.id.startswith("raw-")
    assert LetterFilter(ids=frozenset({raw.id}), lane="hot", reason="malformed").matches(raw, NOW)
    assert not LetterFilter(job_type="noop").matches(raw, NOW)


def test_only_a_filter_without_any_field_is_empty() -> None:
    assert LetterFilter().is_empty
    assert not LetterFilter(older_than=0).is_empty
    assert not LetterFilter(ids=frozenset({"a"})).is_empty


# --- assignments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("payload.n=5", "payload.n", 5),
        ("payload.text=five", "payload.text", "five"),
        ('payload.text="5"', "payload.text", "5"),
        ("payload.text=", "payload.text", ""),
        ("payload.text=a=b", "payload.text", "a=b"),
        ("payload.options.deep=[1, null]", "payload.options.deep", [1, None]),
        ("payload.flag=true", "payload.flag", True),
        ("priority=3", "priority", 3),
        ("metadata.max_attempts=5", "metadata.max_attempts", 5),
        ("metadata.expires_at=null", "metadata.expires_at", None),
    ],
)
def test_an_assignment_is_a_path_and_json_or_else_text(text: str, path: str, value: Any) -> None:
    assert parse_assignment(text) == (path, value)


@pytest.mark.parametrize(
    "text",
    ["payload.n", "payload=5", "job_id=x", "metadata.redrives=0", "metadata.attempts=0", "=5", ""],
)
def test_an_assignment_to_another_path_is_refused(text: str) -> None:
    with pytest.raises(InvalidRedrive, match="PATH=VALUE"):
        parse_assignment(text)


# --- copies -----------------------------------------------------------------------------------


def test_a_copy_starts_a_new_generation() -> None:
    letter = make_letter(
        attempts=3, redrives=4, not_before=NOW, sent_on=7, queued_at=NOW, payload={"n": 1}
    )
    message, routing_key = make_copy(letter, Change(), REGISTRY)
    assert routing_key == "hot.noop"
    assert message.generation == (5, 0)
    assert message.metadata.not_before is None
    assert message.metadata.sent_on == 0
    assert message.metadata.queued_at is not None
    assert message.metadata.queued_at > NOW
    assert letter.message is not None
    assert message.generation > letter.message.generation
    assert (message.job_id, message.payload) == ("job-1", {"n": 1})


def test_a_past_expiry_is_removed_and_a_future_one_kept() -> None:
    past, future = (datetime.now(UTC) + timedelta(hours=hours) for hours in (-1, 1))
    message, _ = make_copy(make_letter(expires_at=past), Change(), REGISTRY)
    assert message.metadata.expires_at is None
    message, _ = make_copy(make_letter(expires_at=future), Change(), REGISTRY)
    assert message.metadata.expires_at == future


def test_values_are_set_at_their_paths() -> None:
    values = {"payload.n": 9, "payload.new.deep": [1], "priority": 2}
    message, _ = make_copy(
        make_letter(payload={"n": 1, "text": "kept"}), Change(values=values), REGISTRY
    )
    assert message.payload == {"n": 9, "text": "kept", "new": {"deep": [1]}}
    assert message.priority == 2


def test_another_routing_key_changes_lane_and_type() -> None:
    message, routing_key = make_copy(make_letter(), Change(to="backfill.gated"), REGISTRY)
    assert (routing_key, message.job_type) == ("backfill.gated", "gated")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (Change(values={"payload.n": "many"}), "payload of noop: n"),
        (Change(values={"payload.n.deeper": 1}), "n is not an object"),
        (Change(values={"priority": 11}), "priority"),
        (Change(values={"metadata.max_attempts": 0}), "metadata.max_attempts"),
        (Change(values={"metadata.expires_at": "soon"}), "metadata.expires_at"),
        (Change(to="hot.ghost"), "no job type 'ghost'"),
        (Change(to="nowhere.noop"), "no lane 'nowhere'"),
        (Change(to="maintenance.noop"), "noop is not worked in lane maintenance"),
        (Change(to="noop"), "<lane>.<job_type>"),
    ],
)
def test_a_change_to_an_invalid_job_is_refused(change: Change, complaint: str) -> None:
    with pytest.raises(InvalidRedrive) as refusal:
        make_copy(make_letter(payload={"n": 1}), change, REGISTRY)
    assert complaint in str(refusal.value)


def test_a_refusal_does_not_show_the_payload() -> None:
    with pytest.raises(InvalidRedrive) as refusal:
        make_copy(make_letter(payload={"n": "secret"}), Change(), REGISTRY)
    assert "secret" not in str(refusal.value)


def test_a_malformed_letter_can_not_be_copied() -> None:
    with pytest.raises(InvalidRedrive, match="no job message"):
        make_copy(make_letter(body=b"{}"), Change(), REGISTRY)


@given(
    payload=st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
            max_leaves=5,
        ),
        max_size=4,
    ).map(
        lambda payload: {key: value for key, value in payload.items() if key not in ("n", "text")}
    )
)
def test_a_copy_keeps_unknown_fields(payload: dict[str, Any]) -> None:
    body = {"job_id": "j", "job_type": "noop", "payload": payload, "extra": payload}
    body["metadata"] = {"own": payload}
    message, _ = make_copy(make_letter(body=json.dumps(body).encode()), Change(), REGISTRY)
    sent = json.loads(message.encode())
    assert (sent["payload"], sent["extra"]) == (payload, payload)
    assert sent["metadata"]["own"] == payload


@pytest.mark.parametrize(
    "values",
    [
        {"ids": frozenset({"no id"})},
        {"job_type": "No-Type"},
        {"group": "xyz"},
        {"error_type": "a\x00b"},
        {"older_than": -1},
        {"unknown": 1},
    ],
)
def test_a_filter_value_that_no_letter_can_have_is_refused(values: dict[str, Any]) -> None:
    """It is refused in a command, a request and the record of a redrive."""
    with pytest.raises(ValidationError):
        LetterFilter(**values)
    with pytest.raises(ValidationError):
        NewRedrive.model_validate({"filter": values})

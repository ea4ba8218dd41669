"""pamqp decodes the frames that broker/wire/envelope.py encodes."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body as pamqp_body
from pamqp import commands, frame, header

from switchyard.broker.dead.dead_letter_headers import (
    MESSAGE_LIMIT,
    TRACEBACK_LIMIT,
    DeadLetterInfo,
    Reason,
)
from switchyard.broker.message import JobMessage, Metadata
from switchyard.broker.publish.outcome import envelope_of
from switchyard.broker.wire.envelope import Envelope, Forwarded, encode_publish

FRAME_MAX = 131_072
SMALLEST_FRAME_MAX = 4_096
MAX_TIMESTAMP = 2**32 - 1  # pamqp reads greater numbers as milliseconds

short = st.text(st.characters(exclude_categories=["Cs"]), max_size=60).filter(
    lambda text: len(text.encode()) <= 255
)
names = short.filter(lambda text: len(text.encode()) <= 128)  # pamqp cuts longer names
header_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, width=32)
    | short
    | st.integers(0, MAX_TIMESTAMP).map(lambda second: datetime.fromtimestamp(second, UTC)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
envelopes = st.builds(
    Envelope,
    body=st.binary(max_size=300) | st.integers(3_900, 13_000).map(lambda size: b"\xce" * size),
    message_id=short,
    type=short,
    priority=st.integers(0, 255),
    timestamp=st.integers(0, MAX_TIMESTAMP),
    headers=st.none() | st.dictionaries(names, header_values, max_size=3),
    content_type=short,
)


def frames_of(data: bytes) -> list[tuple[int, Any]]:
    """Return (channel, frame) for each frame, and fail if a byte is left over."""
    frames = []
    while data:
        size, channel, content = frame.unmarshal(data)
        frames.append((channel, content))
        data = data[size:]
    return frames


@given(st.integers(1, 65_535), short, short, envelopes, st.booleans())
def test_a_publish_is_read_as_it_was_written(
    channel: int, exchange: str, routing_key: str, envelope: Envelope, mandatory: bool
) -> None:
    data = encode_publish(
        channel, exchange, routing_key, envelope, SMALLEST_FRAME_MAX, mandatory=mandatory
    )

    (number, method), (_, content), *body_frames = frames_of(data)
    assert isinstance(method, commands.Basic.Publish)
    assert isinstance(content, header.ContentHeader)
    assert (number, method.exchange, method.routing_key) == (channel, exchange, routing_key)
    assert method.mandatory is mandatory
    assert not method.immediate
    properties = content.properties
    assert properties.delivery_mode == 2
    assert properties.content_type == envelope.content_type
    assert properties.message_id == envelope.message_id
    assert properties.message_type == envelope.type
    assert properties.priority == envelope.priority
    assert properties.timestamp == datetime.fromtimestamp(envelope.timestamp, UTC)
    assert (properties.headers or None) == (envelope.headers or None)
    assert content.body_size == len(envelope.body)
    assert {each for each, _ in body_frames} <= {channel}
    assert b"".join(piece.value for _, piece in body_frames) == envelope.body


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_a_body_is_split_at_the_largest_frame(excess: int) -> None:
    max_piece = FRAME_MAX - 8
    data = encode_publish(1, "x", "y", Envelope(b"b" * (2 * max_piece + excess), "id"), FRAME_MAX)
    pieces = [piece for _, piece in frames_of(data) if isinstance(piece, pamqp_body.ContentBody)]
    sizes = [len(piece.value) for piece in pieces]
    assert (
        sizes
        == {
            -1: [max_piece, max_piece - 1],
            0: [max_piece, max_piece],
            1: [max_piece, max_piece, 1],
        }[excess]
    )


def test_an_empty_body_has_no_body_frame() -> None:
    assert len(frames_of(encode_publish(1, "x", "y", Envelope(b"", "id"), FRAME_MAX))) == 2


@pytest.mark.parametrize("field", ["exchange", "routing_key", "message_id", "type"])
def test_a_name_of_more_than_255_bytes_is_refused(field: str) -> None:
    def encode(text: str) -> bytes:
        values = {"exchange": "x", "routing_key": "y", "message_id": "id", "type": "t", field: text}
        envelope = Envelope(b"", values["message_id"], type=values["type"])
        return encode_publish(1, values["exchange"], values["routing_key"], envelope, FRAME_MAX)

    assert encode("é" * 127 + "e")
    with pytest.raises(ValueError, match="at most 255 bytes here, this has 256: é"):
        encode("é" * 128)


def test_headers_that_do_not_fit_into_a_frame_are_refused() -> None:
    envelope = Envelope(b"", "id", headers={"x": "t" * SMALLEST_FRAME_MAX})
    with pytest.raises(ValueError, match="one frame of this broker carries"):
        encode_publish(1, "x", "y", envelope, SMALLEST_FRAME_MAX)


def test_the_longest_headers_of_a_dead_letter_fit_into_a_frame() -> None:
    longest_character = "\N{PILE OF POO}"  # four bytes
    info = DeadLetterInfo(
        Reason.EXHAUSTED,
        "hot." + "k" * 200,
        message=longest_character * MESSAGE_LIMIT,
        traceback=longest_character * TRACEBACK_LIMIT,
    )
    envelope = Envelope(b"", "id", headers=info.headers())
    assert encode_publish(1, "jobs.dlx", info.routing_key, envelope, FRAME_MAX)


def test_properties_repeat_id_type_priority_and_time_of_the_job() -> None:
    message = JobMessage(
        job_id="job-1",
        job_type="crawl",
        priority=7,
        payload={"url": "https://example.org"},
        metadata=Metadata(created_at=datetime(2026, 1, 2, 3, 4, 5, 600_000, UTC)),
    )
    envelope = envelope_of(message, {"x-note": "kept"})
    assert (envelope.message_id, envelope.type, envelope.priority) == ("job-1", "crawl", 7)
    assert envelope.timestamp == int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp())
    assert envelope.headers == {"x-note": "kept"}
    assert json.loads(envelope.body)["payload"] == {"url": "https://example.org"}


def test_a_job_from_before_1970_can_be_sent() -> None:
    """AMQP counts seconds without a sign, and a foreign publisher may write any time."""
    message = JobMessage(
        job_type="crawl", payload={}, metadata=Metadata(created_at=datetime(1900, 1, 1, tzinfo=UTC))
    )
    assert encode_publish(1, "x", "y", envelope_of(message), FRAME_MAX)


@given(
    properties=st.fixed_dictionaries(
        {"user_id": names},
        optional={
            "content_type": names,
            "content_encoding": names,
            "headers": st.dictionaries(names, header_values, min_size=1, max_size=3),
            "delivery_mode": st.sampled_from([1, 2]),
            "priority": st.integers(0, 255),
            "correlation_id": names,
            "reply_to": names,
            "expiration": names,
            "message_id": names,
            "timestamp": st.integers(0, MAX_TIMESTAMP).map(
                lambda second: datetime.fromtimestamp(second, UTC)
            ),
            "message_type": names,
            "app_id": names,
        },
    )
)
def test_a_forwarded_message_loses_only_its_user_id(
    properties: dict[str, Any],
) -> None:
    with_user = commands.Basic.Properties(**properties)
    without_user = commands.Basic.Properties(**(properties | {"user_id": None}))
    assert Forwarded(b"", "", with_user.marshal()).properties() == without_user.marshal()
    assert Forwarded(b"", "", without_user.marshal()).properties() == without_user.marshal()

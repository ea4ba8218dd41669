"""Header tables and property bytes: any bytes are read, or refused with the same error."""

import asyncio
import struct
import time
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from aiormq.exceptions import AMQPConnectionError
from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode, encode

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.dead.dead_letter_headers import letter_id, unreadable_properties
from switchyard.broker.wire.envelope import (
    BASIC,
    DELIVER,
    HEADER,
    METHOD,
    RETURN,
    Envelope,
    encode_publish,
)
from switchyard.broker.wire.field_table import MAX_DEPTH, UnreadableTable, read_table
from switchyard.broker.wire.frame_tap import FrameTap
from switchyard.broker.wire.incoming import Assembler, Incoming
from tests.support.raw_amqp import BAD_ID, HOSTILE, nested, short, table, with_headers

FRAME_MAX = 131_072
names = st.text(max_size=10)
values: st.SearchStrategy[Any] = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, width=32)
    | st.text(max_size=20)
    | st.binary(max_size=20).map(bytearray)
    | st.datetimes(datetime(1970, 1, 2), datetime(2105, 1, 1)).map(  # noqa: DTZ001
        lambda moment: moment.replace(microsecond=0, tzinfo=UTC)
    )
    | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=15,
)
typed_values = st.builds(
    lambda kind, data: bytes((kind,)) + data,
    st.sampled_from(b"tbBsuIilLfdDSxTAFV\0") | st.integers(0, 255),
    st.binary(max_size=20) | st.binary(max_size=20).map(lambda data: struct.pack(">I", 20) + data),
)
tables = st.lists(st.tuples(st.binary(max_size=5), typed_values), max_size=5).map(
    lambda entries: table(*entries)
)
properties = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda flags, *parts: struct.pack(">H", flags) + b"".join(parts),
        st.integers(0, 0xFFFF),
        st.binary(max_size=4).map(short),
        tables,
        st.binary(max_size=40),
    ),
    tables.map(lambda headers: struct.pack(">H", 1 << 13) + headers),
)


@given(st.dictionaries(names, values, max_size=5))
def test_a_table_is_read_as_pamqp_reads_it(entries: dict[str, Any]) -> None:
    raw = b"xyz" + encode.field_table(entries)
    assert read_table(raw, 3) == (decode.field_table(raw[3:])[1], len(raw))


def test_every_type_is_read() -> None:
    raw = table(
        (b"t", b"t\x02"), (b"b", b"b\xff"), (b"B", b"B\xff"), (b"s", b"s\xff\xff"),
        (b"u", b"u\xff\xff"), (b"I", b"I\xff\xff\xff\xff"), (b"i", b"i\xff\xff\xff\xff"),
        (b"l", b"l" + b"\xff" * 8), (b"L", b"L" + b"\xff" * 8), (b"f", b"f\x3f\x80\0\0"),
        (b"d", b"d\x3f\xf0" + bytes(6)), (b"D", b"D\x02\0\0\0\x7b"), (b"S", b"S\0\0\0\1\xff"),
        (b"x", b"x\0\0\0\1a"), (b"T", b"T" + bytes(8)), (b"A", b"A\0\0\0\2VV"),
        (b"F", b"F\0\0\0\0"), (b"V", b"V"), (b"0", b"\0"),
        (b"ms", b"T" + struct.pack(">Q", 1_700_000_000_500)),
    )  # fmt: skip
    epoch = datetime.fromtimestamp(0, UTC)
    assert read_table(raw, 0)[0] == {
        "t": True, "b": -1, "B": 255, "s": -1, "u": 65535, "I": -1, "i": 2**32 - 1, "l": -1,
        "L": -1, "f": 1.0, "d": 1.0, "D": Decimal("1.23"), "S": b"\xff", "x": b"a", "T": epoch,
        "A": [None, None], "F": {}, "V": None, "0": None,
        "ms": datetime.fromtimestamp(1_700_000_000.5, UTC),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (table((b"\xff", b"V")), "name is not UTF-8"),
        (table((b"a", b"T" + b"\xff" * 8)), "no calendar has"),
        (table((b"a", nested(MAX_DEPTH))), "nested more than"),
        (table((b"a", b"?")), "unknown type"),
        (table((b"a", b"S\xff\xff\xff\xff")), "cut off"),
        (table((b"a", b"F\0\0\0\1")), "cut off"),
        (table((b"a", b"A\0\0\0\1t"), (b"b", b"V")), "longer than the table"),
        (b"\xff\xff\xff\xff", "cut off"),
        (b"", "cut off"),
    ],
)
def test_an_unreadable_table_is_refused_with_the_reason(raw: bytes, why: str) -> None:
    with pytest.raises(UnreadableTable, match=why):
        read_table(raw, 0)


def test_the_largest_table_is_read_quickly() -> None:
    """pamqp takes seconds for each of these: it copies the remaining bytes for every value."""
    size = FRAME_MAX - 100
    began = time.process_time()
    read_table(table((b"a", b"A" + struct.pack(">I", size) + b"V" * size)), 0)
    read_table(struct.pack(">I", size) + b"\0V" * (size // 2), 0)
    assert time.process_time() - began < 0.5


@given(st.binary(max_size=200) | tables)
def test_any_bytes_are_a_table_or_refused(raw: bytes) -> None:
    with suppress(UnreadableTable):
        assert read_table(raw, 0)[1] <= len(raw)


class Sink:
    """Takes the frames of a channel, and keeps its messages."""

    def __init__(self) -> None:
        self.assembler = Assembler()
        self.messages: list[Incoming] = []

    def take_frame(self, kind: int, frame: memoryview) -> bool:
        if kind == METHOD:
            self.assembler.start(int.from_bytes(frame[2:4]), frame)
        elif message := self.assembler.add(kind, frame):
            self.messages.append(message)
        return True


def encode_frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


def delivery_frames(exchange: bytes, key: bytes, raw: bytes, body: bytes, tag: int) -> bytes:
    """Return the frames of a delivery, or with tag 0 those of a returned message."""
    if tag:
        method = struct.pack(">HH", BASIC, DELIVER) + short(b"me") + struct.pack(">Q?", tag, True)
    else:
        method = struct.pack(">HHH", BASIC, RETURN, 312) + short(b"\xff")
    frames = encode_frame(METHOD, method + short(exchange) + short(key))
    frames += encode_frame(HEADER, struct.pack(">HHQ", BASIC, 0, len(body)) + raw)
    return frames + (encode_frame(3, body) if body else b"")


async def read_messages(stream: bytes) -> list[Incoming]:
    tap, sink = FrameTap(asyncio.get_running_loop()), Sink()
    tap.attach(1, sink)
    tap.feed_data(stream)
    return sink.messages


def delivery_of(message: Incoming) -> Delivery:
    return Delivery.from_incoming(message, "hot.llm", None)  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=255),
            st.binary(max_size=255),
            properties.filter(lambda raw: len(raw) >= 2),
            st.binary(max_size=5),
            st.integers(0, 2**64 - 1),
        ),
        max_size=4,
    )
)
def test_a_message_with_any_properties_is_received_and_can_be_sent_again(
    sent: list[tuple[bytes, bytes, bytes, bytes, int]],
) -> None:
    messages = asyncio.run(read_messages(b"".join(delivery_frames(*each) for each in sent)))
    assert [(each.delivery_tag, each.body) for each in messages] == [
        (tag, body) for *_, body, tag in sent
    ]
    for message, (*_, raw, _, _) in zip(messages, sent, strict=True):
        assert message.properties == raw
        info = unreadable_properties(delivery_of(message))
        message_id = message.message_id or letter_id(None, message.body)
        envelope = Envelope(message.body, message_id, headers=info.headers())
        encode_publish(1, message.exchange, message.routing_key, envelope, FRAME_MAX)


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
async def test_unreadable_properties_are_kept_unchanged(raw: bytes) -> None:
    [message] = await read_messages(delivery_frames(b"", b"hot.noop", raw, b"{}", 7))
    assert (message.delivery_tag, message.body, message.properties) == (7, b"{}", raw)
    assert message.unreadable
    assert message.headers == {}


async def test_the_largest_unreadable_properties_fit_into_a_dead_letter() -> None:
    size = FRAME_MAX - 100
    raw = with_headers((b"a", b"x" + struct.pack(">I", size) + bytes(size)), (b"\xff" * 255, b"V"))
    [message] = await read_messages(delivery_frames(b"", b"k" * 255, raw, b"", 1))
    assert message.unreadable
    envelope = Envelope(b"", "id", headers=unreadable_properties(delivery_of(message)).headers())
    encode_publish(1, "jobs.dlx", message.routing_key, envelope, FRAME_MAX)


async def test_replacing_invalid_bytes_does_not_lengthen_names_and_ids() -> None:
    [message] = await read_messages(
        delivery_frames(b"\xff" * 255, b"\xe2\x82" * 127, BAD_ID, b"", 1)
    )
    assert message.exchange == message.message_id == "?" * 255
    assert len(message.routing_key.encode()) <= 255
    assert not message.unreadable
    [message] = await read_messages(delivery_frames(b"", "\ufffd".encode(), b"\0\0", b"", 1))
    assert message.routing_key == "\ufffd"


@pytest.mark.parametrize("payload", [b"", b"\0\x3c", b"\0\x3c\0\x3c\xff"])
async def test_an_invalid_frame_is_a_lost_connection(payload: bytes) -> None:
    tap = FrameTap(asyncio.get_running_loop())
    tap.attach(1, Sink())
    with pytest.raises(AMQPConnectionError, match="can't be read"):
        tap.feed_data(encode_frame(METHOD, payload + b"\0"))

"""The tap takes the frames of its channels out of the stream, however the stream is cut."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pamqp.frame
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from switchyard.broker.wire.envelope import BASIC, DELIVER, METHOD, RETURN
from switchyard.broker.wire.frame_tap import FrameTap
from switchyard.broker.wire.incoming import Assembler, Incoming

TAPPED_CHANNEL, OTHER_CHANNEL = 3, 4
DeliveryValues = tuple[bytes, str, str, int, dict[str, Any]]

tables = st.dictionaries(
    st.text(min_size=1, max_size=20), st.text(max_size=20) | st.booleans(), max_size=3
)
deliveries = st.tuples(
    st.binary(max_size=300),
    st.text(max_size=30),
    st.text(max_size=30),
    st.integers(0, 10),
    tables,
)


class Sink:
    """Assembles deliveries and leaves everything else to the reader behind the tap."""

    def __init__(self) -> None:
        self.assembler = Assembler()
        self.messages: list[Incoming] = []

    def take_frame(self, kind: int, frame: memoryview) -> bool:
        if kind == METHOD:
            class_id, method = int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])
            if class_id != BASIC or method not in (DELIVER, RETURN):
                return False
            self.assembler.start(method, frame)
            return True
        if not self.assembler.is_busy:
            return False
        message = self.assembler.add(kind, frame)
        if message is not None:
            self.messages.append(message)
        return True


def frames_of(delivery: DeliveryValues, tag: int, channel: int, piece_size: int = 97) -> bytes:
    body, routing_key, message_id, priority, headers = delivery
    properties = spec.Basic.Properties(
        content_type="application/json",
        headers=headers or None,
        delivery_mode=2,
        priority=priority,
        correlation_id="c",
        message_id=message_id or None,
        timestamp=None,
        message_type="t",
    )
    frames: list[Any] = [
        spec.Basic.Deliver("consumer", tag, tag % 2 == 0, "exchange", routing_key),
        ContentHeader(body_size=len(body), properties=properties),
    ]
    frames += [
        ContentBody(body[start : start + piece_size]) for start in range(0, len(body), piece_size)
    ]
    return b"".join(pamqp.frame.marshal(frame, channel) for frame in frames)


def cut_stream(stream: bytes, sizes: Iterable[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(stream[:size])
        stream = stream[size:]
    return [*pieces, stream]


@given(st.lists(deliveries, max_size=5), st.lists(st.integers(1, 80), max_size=40))
def test_messages_arrive_whole_however_the_stream_is_cut(
    sent: list[DeliveryValues], sizes: list[int]
) -> None:
    consume_ok = pamqp.frame.marshal(spec.Basic.ConsumeOk("consumer"), TAPPED_CHANNEL)
    stream = consume_ok + pamqp.frame.marshal(Heartbeat(), 0)
    for tag, delivery in enumerate(sent, start=1):
        stream += frames_of(delivery, tag, TAPPED_CHANNEL)

    async def feed() -> tuple[list[Incoming], bytes]:
        tap = FrameTap(asyncio.get_running_loop())
        sink = Sink()
        tap.attach(TAPPED_CHANNEL, sink)
        for piece in cut_stream(stream, sizes):
            if piece:
                tap.feed_data(piece)
        tap.feed_eof()
        return sink.messages, await tap.read()

    messages, passed_on = asyncio.run(feed())
    received = [(m.body, m.routing_key, m.message_id, m.priority, m.headers) for m in messages]
    assert received == sent
    assert [m.delivery_tag for m in messages] == list(range(1, len(sent) + 1))
    assert [m.redelivered for m in messages] == [m.delivery_tag % 2 == 0 for m in messages]
    assert passed_on.startswith(consume_ok)


@given(st.lists(deliveries, min_size=1, max_size=3), st.lists(st.integers(1, 80), max_size=40))
def test_other_channels_pass_untouched(sent: list[DeliveryValues], sizes: list[int]) -> None:
    stream = b"".join(frames_of(delivery, 1, OTHER_CHANNEL) for delivery in sent)

    async def feed() -> bytes:
        tap = FrameTap(asyncio.get_running_loop())
        tap.attach(TAPPED_CHANNEL, Sink())
        for piece in cut_stream(stream, sizes):
            if piece:
                tap.feed_data(piece)
        tap.feed_eof()
        return await tap.read()

    assert asyncio.run(feed()) == stream


async def test_aiormq_gets_a_heartbeat_in_place_of_taken_frames() -> None:
    tap = FrameTap(asyncio.get_running_loop())
    tap.attach(TAPPED_CHANNEL, Sink())
    tap.feed_data(frames_of((b"{}", "hot.noop", "id", 1, {}), 1, TAPPED_CHANNEL))
    tap.feed_eof()
    assert await tap.read() == pamqp.frame.marshal(Heartbeat(), 0)


async def test_a_detached_channel_gets_no_more_frames() -> None:
    tap, sink = FrameTap(asyncio.get_running_loop()), Sink()
    frames = frames_of((b"{}", "hot.noop", "id", 1, {}), 1, TAPPED_CHANNEL)
    tap.attach(TAPPED_CHANNEL, sink)
    tap.detach(TAPPED_CHANNEL, Sink())  # detaching another sink has no effect
    tap.feed_data(frames)
    tap.detach(TAPPED_CHANNEL, sink)
    tap.feed_data(frames)
    tap.feed_eof()
    assert len(sink.messages) == 1
    assert (await tap.read()).endswith(frames)


async def test_an_answer_in_another_protocol_reaches_aiormq_unchanged() -> None:
    tap = FrameTap(asyncio.get_running_loop())
    tap.feed_data(b"AMQP\x00\x01\x00\x00 and more")
    tap.feed_eof()
    assert await tap.read() == b"AMQP\x00\x01\x00\x00 and more"

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

OURS, OTHER = 3, 4
Expected = tuple[bytes, str, str, int, dict[str, Any]]

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


def frames_of(delivery: Expected, tag: int, channel: int, piece: int = 97) -> bytes:
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
    frames += [ContentBody(body[at : at + piece]) for at in range(0, len(body), piece)]
    return b"".join(pamqp.frame.marshal(frame, channel) for frame in frames)


def cut(stream: bytes, sizes: Iterable[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(stream[:size])
        stream = stream[size:]
    return [*pieces, stream]


@given(st.lists(deliveries, max_size=5), st.lists(st.integers(1, 80), max_size=40))
def test_messages_arrive_whole_however_the_stream_is_cut(
    sent: list[Expected], sizes: list[int]
) -> None:
    passed = pamqp.frame.marshal(spec.Basic.ConsumeOk("consumer"), OURS)
    stream = passed + pamqp.frame.marshal(Heartbeat(), 0)
    for tag, delivery in enumerate(sent, start=1):
        stream += frames_of(delivery, tag, OURS)

    async def feed() -> tuple[list[Incoming], bytes]:
        tap = FrameTap(asyncio.get_running_loop())
        sink = Sink()
        tap.attach(OURS, sink)
        for piece in cut(stream, sizes):
            if piece:
                tap.feed_data(piece)
        tap.feed_eof()
        return sink.messages, await tap.read()

    messages, left = asyncio.run(feed())
    got = [(m.body, m.routing_key, m.message_id, m.priority, m.headers) for m in messages]
    assert got == sent
    assert [m.delivery_tag for m in messages] == list(range(1, len(sent) + 1))
    assert [m.redelivered for m in messages] == [m.delivery_tag % 2 == 0 for m in messages]
    assert left.startswith(passed)


@given(st.lists(deliveries, min_size=1, max_size=3), st.lists(st.integers(1, 80), max_size=40))
def test_other_channels_pass_untouched(sent: list[Expected], sizes: list[int]) -> None:
    stream = b"".join(frames_of(delivery, 1, OTHER) for delivery in sent)

    async def feed() -> bytes:
        tap = FrameTap(asyncio.get_running_loop())
        tap.attach(OURS, Sink())
        for piece in cut(stream, sizes):
            if piece:
                tap.feed_data(piece)
        tap.feed_eof()
        return await tap.read()

    assert asyncio.run(feed()) == stream


async def test_aiormq_sees_a_sign_of_life_beside_taken_frames() -> None:
    tap = FrameTap(asyncio.get_running_loop())
    tap.attach(OURS, Sink())
    tap.feed_data(frames_of((b"{}", "hot.noop", "id", 1, {}), 1, OURS))
    tap.feed_eof()
    assert await tap.read() == pamqp.frame.marshal(Heartbeat(), 0)


async def test_a_detached_channel_gets_nothing_more() -> None:
    tap, sink = FrameTap(asyncio.get_running_loop()), Sink()
    frames = frames_of((b"{}", "hot.noop", "id", 1, {}), 1, OURS)
    tap.attach(OURS, sink)
    tap.detach(OURS, Sink())  # another one's end does not concern it
    tap.feed_data(frames)
    tap.detach(OURS, sink)
    tap.feed_data(frames)
    tap.feed_eof()
    assert len(sink.messages) == 1
    assert (await tap.read()).endswith(frames)


async def test_an_answer_in_another_protocol_reaches_aiormq_as_it_is() -> None:
    tap = FrameTap(asyncio.get_running_loop())
    tap.feed_data(b"AMQP\x00\x01\x00\x00 and more")
    tap.feed_eof()
    assert await tap.read() == b"AMQP\x00\x01\x00\x00 and more"

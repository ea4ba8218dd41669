"""A job's output text is sent in few pieces of limited size, without waiting for readers."""

import asyncio

from switchyard.services.engine.jobs import output_stream
from switchyard.services.engine.jobs.output_stream import OutputStream
from switchyard.services.engine.monitoring.job_events import (
    BACKLOG,
    MAX_BYTES,
    EventHub,
    text_event,
)
from switchyard.services.llm.answer_follower import AnswerStream
from tests.support.eventually import MAX_WAIT


class PieceRecorder:
    def __init__(self) -> None:
        self.pieces: list[tuple[str, int]] = []
        self.received = asyncio.Event()

    def __call__(self, text: str, offset: int) -> None:
        self.pieces.append((text, offset))
        self.received.set()


async def test_words_are_joined_into_few_pieces() -> None:
    recorder = PieceRecorder()
    stream = OutputStream(recorder)
    for _ in range(100):
        stream.write("word ")
    assert recorder.pieces == []
    await asyncio.wait_for(recorder.received.wait(), MAX_WAIT)
    assert recorder.pieces == [("word " * 100, 0)]
    stream.write("the end")
    stream.end()
    assert recorder.pieces[1:] == [("the end", 500)]


async def test_text_beyond_the_backlog_is_left_out_and_the_next_offset_shows_it() -> None:
    recorder = PieceRecorder()
    stream = OutputStream(recorder)
    stream.write("x" * 1_000_000)
    while len(recorder.pieces) < output_stream.MAX_BACKLOG // output_stream.MAX_PIECE:
        recorder.received.clear()
        await asyncio.wait_for(recorder.received.wait(), MAX_WAIT)
    assert sum(len(text) for text, _ in recorder.pieces) == output_stream.MAX_BACKLOG
    stream.write("after")
    stream.end()
    assert recorder.pieces[-1] == ("after", 1_000_000)


async def test_a_restarted_text_begins_at_offset_zero() -> None:
    recorder = PieceRecorder()
    stream = OutputStream(recorder)
    stream.write("one answer")
    stream.begin()
    stream.write("another")
    stream.end()
    assert recorder.pieces == [("another", 0)]


def test_a_stream_without_a_listener_does_nothing() -> None:
    stream = OutputStream()  # works without an event loop
    stream.begin()
    stream.write("a word")
    stream.end()


def test_a_piece_of_any_characters_fits_into_an_event() -> None:
    for character in ("\x00", "\U0001f600", '"'):
        event = text_event("job", character * output_stream.MAX_PIECE, 10**9, 1e9)
        assert len(event.body) < MAX_BYTES


async def test_a_reader_too_slow_for_the_pieces_gets_heartbeats_and_the_end() -> None:
    hub = EventHub()
    answer_stream = AnswerStream(hub, "job")
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def end() -> None:
        await ended

    following = answer_stream.follow(end(), heartbeat=0.01)
    hub.deliver(text_event("job", "a", 0, 1.0))
    hub.deliver(text_event("another", "b", 0, 1.0))
    first = await anext(following)
    assert (getattr(first, "text", None), getattr(first, "offset", None)) == ("a", 0)
    for number in range(BACKLOG + 1):
        hub.deliver(text_event("job", "a", number, 1.0))
    assert await anext(following) is None  # a heartbeat instead of the pieces
    ended.set_result(None)
    assert [each async for each in following] == []
    answer_stream.close()
    assert hub.subscribers == 0


async def test_a_subscription_to_a_stopping_hub_is_over_at_once() -> None:
    hub = EventHub()
    with hub.subscribe(lambda event: True) as earlier:
        hub.end()
        with hub.subscribe(lambda event: True) as later:
            assert (earlier.is_over, later.is_over) == (True, True)

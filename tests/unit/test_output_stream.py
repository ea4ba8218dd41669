"""What a job writes, told in pieces: never too many, never too large, and nobody is waited for."""

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


class Heard:
    def __init__(self) -> None:
        self.pieces: list[tuple[str, int]] = []
        self.first = asyncio.Event()

    def __call__(self, text: str, offset: int) -> None:
        self.pieces.append((text, offset))
        self.first.set()


async def test_words_are_gathered_into_few_pieces() -> None:
    heard = Heard()
    told = OutputStream(heard)
    for _ in range(100):
        told.write("word ")
    assert heard.pieces == []
    await asyncio.wait_for(heard.first.wait(), MAX_WAIT)
    assert heard.pieces == [("word " * 100, 0)]
    told.write("the end")
    told.end()
    assert heard.pieces[1:] == [("the end", 500)]


async def test_what_there_is_no_time_to_tell_is_left_out_and_the_next_piece_says_so() -> None:
    heard = Heard()
    told = OutputStream(heard)
    told.write("x" * 1_000_000)
    while len(heard.pieces) < output_stream.MAX_BACKLOG // output_stream.MAX_PIECE:
        heard.first.clear()
        await asyncio.wait_for(heard.first.wait(), MAX_WAIT)
    assert sum(len(text) for text, _ in heard.pieces) == output_stream.MAX_BACKLOG
    told.write("after")
    told.end()
    assert heard.pieces[-1] == ("after", 1_000_000)


async def test_a_text_that_begins_anew_begins_at_nothing() -> None:
    heard = Heard()
    told = OutputStream(heard)
    told.write("one answer")
    told.begin()
    told.write("another")
    told.end()
    assert heard.pieces == [("another", 0)]


def test_nothing_is_done_where_nobody_hears() -> None:
    told = OutputStream()  # without an event loop, too
    told.begin()
    told.write("a word")
    told.end()


def test_a_piece_fits_into_an_event_whatever_it_is() -> None:
    for character in ("\x00", "\U0001f600", '"'):
        event = text_event("job", character * output_stream.MAX_PIECE, 10**9, 1e9)
        assert len(event.body) < MAX_BYTES


async def test_a_reader_that_is_too_slow_for_the_pieces_gets_the_end() -> None:
    hub = EventHub()
    written = AnswerStream(hub, "job")
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def end() -> None:
        await ended

    following = written.follow(end(), heartbeat=0.01)
    hub.deliver(text_event("job", "a", 0, 1.0))
    hub.deliver(text_event("another", "b", 0, 1.0))
    first = await anext(following)
    assert (getattr(first, "text", None), getattr(first, "offset", None)) == ("a", 0)
    for number in range(BACKLOG + 1):
        hub.deliver(text_event("job", "a", number, 1.0))
    assert await anext(following) is None  # no pieces any more, only signs of life
    ended.set_result(None)
    assert [each async for each in following] == []
    written.close()
    assert hub.subscribers == 0


async def test_a_stream_that_begins_while_its_process_stops_is_over_at_once() -> None:
    hub = EventHub()
    with hub.subscribe(lambda event: True) as before:
        hub.end()
        with hub.subscribe(lambda event: True) as behind:
            assert (before.is_over, behind.is_over) == (True, True)

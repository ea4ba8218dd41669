import asyncio
from contextlib import aclosing
from functools import partial
from types import SimpleNamespace

import pytest

from switchyard.api.dashboard import live, readings
from switchyard.api.dashboard.formats import ago, since
from switchyard.api.dashboard.live import Feeds
from switchyard.api.dashboard.readings import Reading

NOW = 1_790_000_000.0


async def test_a_page_whose_ages_alone_changed_sends_no_event() -> None:
    # Seconds of the event, which the page shows, and of its reading; the last is read first.
    readings = [(2, 5), (1, 4), (1, 3), (0, 2), (0, 1)]

    async def read() -> dict[str, str]:
        event_at, read_at = readings.pop() if len(readings) > 1 else readings[0]
        return {"live_it": ago(NOW + event_at, NOW + 60 + read_at) + since(NOW, NOW + read_at)}

    async with aclosing(Feeds(interval=0.0).follow("it", read, await read())) as events:
        received = [(await anext(events)).decode() for _ in range(3)]
    for second, event in enumerate(received):
        assert f"T14:13:2{second}" in event
        assert "data-ago>1 min " in event  # shown where no script runs


async def test_after_a_long_reading_a_page_rests_ten_times_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, read_seconds, rests = [0.0], [0.01, 3.0, 60.0, 0.0], []
    monkeypatch.setattr(f"{live.__name__}.time", SimpleNamespace(monotonic=lambda: clock[0]))
    all_read = asyncio.Event()

    def record_rest(rest: float, _: float) -> float:
        rests.append(rest)
        return 0.0

    monkeypatch.setattr(live, "_until_together", record_rest)

    async def read() -> dict[str, str]:
        clock[0] += read_seconds.pop(0)
        if not read_seconds:
            all_read.set()
            await asyncio.Event().wait()
        return {}

    async with aclosing(Feeds(interval=2.0).follow("it", read, {"live_it": ""})) as events:
        await anext(events)
        await all_read.wait()
    assert rests == [2.0, 2.0, 30.0, live.MAX_REST]


def test_pages_are_read_at_the_same_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    for now in (0.0, 0.9, 1.1, 7.99):
        monkeypatch.setattr(f"{live.__name__}.time", SimpleNamespace(monotonic=partial(float, now)))
        for rest in (2.0, 7.0):
            wait = live._until_together(rest, 2.0)
            assert (now + wait) / 2 == pytest.approx(round((now + wait) / 2))
            assert rest - 1 <= wait <= rest + 1.01


async def test_an_old_value_is_read_again_before_it_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, values = [100.0], [1, 2, 3]
    clocks = SimpleNamespace(monotonic=lambda: clock[0], time=lambda: clock[0])
    monkeypatch.setattr(f"{readings.__name__}.time", clocks)
    is_answered = asyncio.Event()
    is_answered.set()

    async def ask() -> int:
        await is_answered.wait()
        return values.pop(0)

    reading = Reading(ask, 1.0)
    assert await reading.look() == 1
    clock[0] += 5
    assert await reading.look() == 1  # meanwhile, the next value is read
    await asyncio.sleep(0)
    assert await reading.look() == 2
    clock[0] += 1.0 + readings.MAX_AGE + 0.1
    monkeypatch.setattr(readings, "FIRST_TIMEOUT", 0.01)
    is_answered.clear()
    assert await reading.look() is None  # not the old value
    is_answered.set()
    await asyncio.sleep(0)
    assert await reading.look() == 3
    await reading.close()


def test_an_age_has_one_unit_and_a_time_to_come_has_two() -> None:
    def text(at: float) -> str:
        return ago(NOW + at, NOW).partition("data-ago>")[2].removesuffix("</time>")

    assert [text(-each) for each in (0.4, 1.3, 59.6, 877, 7_300)] == [
        *("now", "1 s ago", "1 min ago", "14 min ago", "2 h ago"),
    ]
    assert text(7_300) == "in 2 h 1 min"

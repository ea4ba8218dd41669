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


async def test_how_long_ago_something_was_is_no_change() -> None:
    readings = [(2, 5), (1, 4), (1, 3), (0, 2), (0, 1)]

    async def read() -> dict[str, str]:
        at, after = readings.pop() if len(readings) > 1 else readings[0]
        return {"live_it": ago(NOW + at, NOW + 60 + after) + since(NOW, NOW + after)}

    async with aclosing(Feeds(interval=0.0).follow("it", read, await read())) as events:
        seen = [(await anext(events)).decode() for _ in range(3)]
    for second, event in enumerate(seen):
        assert f"T14:13:2{second}" in event
        assert "data-ago>1 min " in event  # for who has no script


async def test_a_page_that_takes_long_to_read_rests_ten_times_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, costs, asked = [0.0], [0.01, 3.0, 60.0, 0.0], []
    monkeypatch.setattr(f"{live.__name__}.time", SimpleNamespace(monotonic=lambda: at[0]))
    over = asyncio.Event()

    def until(rest: float, _: float) -> float:
        asked.append(rest)
        return 0.0

    monkeypatch.setattr(live, "_until_together", until)

    async def read() -> dict[str, str]:
        at[0] += costs.pop(0)
        if not costs:
            over.set()
            await asyncio.Event().wait()
        return {}

    async with aclosing(Feeds(interval=2.0).follow("it", read, {"live_it": ""})) as events:
        await anext(events)
        await over.wait()
    assert asked == [2.0, 2.0, 30.0, live.MAX_REST]


def test_pages_are_read_at_the_same_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    for now in (0.0, 0.9, 1.1, 7.99):
        monkeypatch.setattr(f"{live.__name__}.time", SimpleNamespace(monotonic=partial(float, now)))
        for rest in (2.0, 7.0):
            wait = live._until_together(rest, 2.0)
            assert (now + wait) / 2 == pytest.approx(round((now + wait) / 2))
            assert rest - 1 <= wait <= rest + 1.01


async def test_what_nobody_has_looked_at_for_a_while_is_read_before_it_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, values = [100.0], [1, 2, 3]
    clocks = SimpleNamespace(monotonic=lambda: at[0], time=lambda: at[0])
    monkeypatch.setattr(f"{readings.__name__}.time", clocks)
    is_answered = asyncio.Event()
    is_answered.set()

    async def ask() -> int:
        await is_answered.wait()
        return values.pop(0)

    reading = Reading(ask, 1.0)
    assert await reading.look() == 1
    at[0] += 5
    assert await reading.look() == 1  # beside it, the next one is asked for
    await asyncio.sleep(0)
    assert await reading.look() == 2
    at[0] += 1.0 + readings.MAX_AGE + 0.1
    monkeypatch.setattr(readings, "FIRST_TIMEOUT", 0.01)
    is_answered.clear()
    assert await reading.look() is None  # rather than what was half a minute ago
    is_answered.set()
    await asyncio.sleep(0)
    assert await reading.look() == 3
    await reading.close()


def test_an_age_has_one_unit_and_what_is_to_come_has_two() -> None:
    def text(at: float) -> str:
        return ago(NOW + at, NOW).partition("data-ago>")[2].removesuffix("</time>")

    assert [text(-each) for each in (0.4, 1.3, 59.6, 877, 7_300)] == [
        *("now", "1 s ago", "1 min ago", "14 min ago", "2 h ago"),
    ]
    assert text(7_300) == "in 2 h 1 min"

from contextlib import aclosing

from switchyard.api.dashboard.formats import ago
from switchyard.api.dashboard.live import Feeds

NOW = 1_790_000_000.0


async def test_how_long_ago_something_was_is_no_change() -> None:
    readings = [(2, 5), (1, 4), (1, 3), (0, 2), (0, 1)]

    async def read() -> dict[str, str]:
        at, after = readings.pop() if len(readings) > 1 else readings[0]
        return {"live_it": str(ago(NOW + at, NOW + 60 + after))}

    async with aclosing(Feeds(interval=0.0).follow("it", read, await read())) as events:
        seen = [(await anext(events)).decode() for _ in range(3)]
    for second, event in enumerate(seen):
        assert f"T14:13:2{second}" in event
        assert "data-ago>1 min " in event  # for who has no script

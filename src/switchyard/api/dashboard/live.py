"""Pages that stay up to date: each is read once for all browsers that show it, and only while one
does."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable

import structlog
from starlette.exceptions import HTTPException

from switchyard.api.http.errors import problem_of
from switchyard.api.http.event_stream import HEARTBEAT, frame
from switchyard.broker.errors import BrokerError
from switchyard.broker.task_supervisor import end_tasks
from switchyard.services.common.errors import SwitchyardError

INTERVAL = 2.0
"""Seconds between two readings of a page that a browser shows."""
REST = 10
"""A page is read again after this many times the duration of its last reading, at least: an
expensive page, such as a rare filter of a million jobs, is read less often."""
MAX_REST = 60.0
SECONDS_FOR_EACH = 0.1
"""Seconds between two readings for each of the pages that are shown: 50 different pages are read
every 5 s."""
HEARTBEAT_INTERVAL = 15.0
Read = Callable[[], Awaitable[dict[str, str]]]
_COUNTED = re.compile(r"data-(?:ago|since)>[^<]*")
"""Texts of `formats.ago` and `formats.since`, which the page's script keeps up to date."""


class _Feed:
    """One page at one address, read again and again."""

    def __init__(self, regions: dict[str, str]) -> None:
        self.followers = 0
        self.changed = asyncio.Event()
        self.events: dict[str, tuple[int, bytes]] = {}
        """By region: the number of its last change, and the event that was sent; under `""`,
        whether the page is up to date."""
        self.turn = 0
        self._content: dict[str, str] = {}
        """The regions as they were sent last, without the texts that the page's script keeps up to
        date."""
        self.update(regions)
        self.task: asyncio.Task[None] | None = None
        self._trouble: str | None = None

    def update(self, regions: dict[str, str]) -> None:
        """Take over what has changed."""
        content = {name: _COUNTED.sub("", html) for name, html in regions.items()}
        changed = [name for name in content if self._content.get(name) != content[name]]
        if not changed:
            return
        self.turn += 1
        self._content.update(content)
        for name in changed:
            event = frame("region", {"name": name, "html": regions[name]})
            self.events[name] = (self.turn, event)
        self.wake()

    def set_trouble(self, trouble: str | None) -> None:
        """Tell why the page could not be read again; None: it was."""
        if trouble == self._trouble:
            return
        self._trouble = trouble
        self.turn += 1
        event = frame("fresh", {}) if trouble is None else frame("stale", {"why": trouble})
        self.events[""] = (self.turn, event)
        self.wake()

    def wake(self) -> None:
        """Wake all streams of this page, so that they look for changes."""
        waiting, self.changed = self.changed, asyncio.Event()
        waiting.set()


class Feeds:
    """All pages that browsers show."""

    def __init__(self, *, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._feeds: dict[Hashable, _Feed] = {}
        self._ended = False

    @property
    def number(self) -> int:
        """Number of different pages that browsers show."""
        return len(self._feeds)

    def end(self) -> None:
        """End every stream, also those that are about to begin, as this process stops."""
        self._ended = True
        for feed in self._feeds.values():
            feed.wake()

    async def follow(
        self, key: Hashable, read: Read, known: dict[str, str]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the event of each region, and again when it has changed. `known` are the regions as
        they are now."""
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = _Feed(known)
            feed.task = asyncio.create_task(self._keep_reading(feed, read))
        feed.followers += 1
        seen = 0
        try:
            while not self._ended:
                changed = feed.changed
                for turn, event in list(feed.events.values()):
                    if turn > seen:
                        yield event
                seen = feed.turn
                try:
                    async with asyncio.timeout(HEARTBEAT_INTERVAL):
                        await changed.wait()
                except TimeoutError:
                    yield HEARTBEAT
        finally:
            feed.followers -= 1
            if not feed.followers:
                self._feeds.pop(key, None)
                await end_tasks(*([feed.task] if feed.task is not None else []))

    async def _keep_reading(self, feed: _Feed, read: Read) -> None:
        log = structlog.get_logger("dashboard")
        rest = self._interval
        while True:
            await asyncio.sleep(_until_together(rest, self._interval))
            began = time.monotonic()
            try:
                feed.update(await read())
            except (SwitchyardError, BrokerError, HTTPException) as error:
                log.warning("page not read again", error=str(error))
                feed.set_trouble(problem_of(error).kind.title)
            else:
                feed.set_trouble(None)
            rest = min(REST * (time.monotonic() - began), MAX_REST)
            rest = max(self._interval, rest, SECONDS_FOR_EACH * len(self._feeds))


def _until_together(rest: float, interval: float) -> float:
    """Return a number of seconds, nearly `rest` or more, after which all pages with that interval
    are read at the same time, so that they can share their questions."""
    if not interval:
        return rest
    due = time.monotonic() + rest - interval / 2
    return due + interval - due % interval - time.monotonic()

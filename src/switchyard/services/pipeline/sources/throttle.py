"""Decide when the next request to a server may be sent, by one rule for all processes together.

The rule is kept by leases in the ledger, named after the server: `arxiv.connection` is held while a
request is under way, `arxiv.pause` until the next request may begin. Only two callers at a time
have a place at a server: the one whose request runs or is next, and one behind it, so that no turn
is lost. Others are refused at once, as waiting would keep their workers from other work; with
`waits_for_place` they wait. Jobs of the hot lane wait, too; while one waits (`arxiv.hot`), no other
job gets a place. A process renews the leases that it holds: when it is killed, others get them
within six seconds (ledger/leases.py), whatever the server's own time limit.

Language models' servers have a gate of their own (services/llm/gate.py): they take many requests at
once, and the gate finds out how many. Servers of documents take one request after the other, at a
known interval.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from switchyard.broker.lanes import HOT
from switchyard.services.pipeline.sources.source_errors import SourceBusy

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger

HOT_WAIT_TTL = 2.0
"""Seconds for which places are kept for a waiting hot job, unless the job renews this."""
HOT_RETURN_TTL = 10.0
"""Seconds for which places are kept for a hot job that got none in time, and comes back soon."""
MAX_PAUSE = 3600.0
"""Longest pause in seconds, even if the server asks for a longer one."""
_POLL_INTERVAL = 0.2
"""Seconds between attempts to take a lease that another caller holds."""
_MARGIN = 5.0
"""Seconds for which a connection may be held beyond the time limit of its request."""


async def pause_remaining(ledger: Ledger, server: str) -> float:
    """Return the seconds for which a server is left alone by the whole fleet; 0 where it is not.
    Raises LedgerUnavailable."""
    return await ledger.leases.lease_remaining(f"{server}.pause", longest=MAX_PAUSE)


@dataclass(frozen=True, slots=True)
class RequestTurn:
    """The permission for one request, valid while its context is open."""

    _pause: Callable[[float], Awaitable[None]]

    async def pause(self, seconds: float) -> float:
        """Let nobody begin another request for `seconds`, or MAX_PAUSE if that is less. Returns the
        seconds of the pause."""
        bounded = min(seconds, MAX_PAUSE)
        await self._pause(bounded)
        return bounded


class RequestThrottle(Protocol):
    """Lets requests to one server begin, one after the other."""

    def turn(self, *, takes: float) -> AbstractAsyncContextManager[RequestTurn]:
        """Wait until a request may begin that takes at most `takes` seconds. Raises SourceBusy
        when the wait would exceed the throttle's max_wait."""
        ...

    def reserve(self, *, takes: float) -> AbstractAsyncContextManager[None]:
        """Wait for the right to send several requests that belong together: at the interval,
        without requests of other callers in between. Otherwise, a caller that needs three requests
        for one document would start again each time that the third request gets no turn. Raises
        SourceBusy."""
        ...


class FleetThrottle:
    """Paces the requests of all processes that share a ledger."""

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        *,
        label: str,
        interval: float,
        max_wait: float,
        waits_for_place: bool,
        lane: str = "",
    ) -> None:
        """`lane` is the lane of the job that asks; empty for a caller that is no job."""
        self._ledger = ledger
        self._connection_lease = f"{name}.connection"
        self._pause_lease = f"{name}.pause"
        self._places = (f"{name}.place.1", f"{name}.place.2")
        self._hot_lease = f"{name}.hot"
        self._is_hot = lane == HOT.name
        self._label = label
        self._interval = interval
        """Seconds from one request's beginning to the next one's."""
        self._max_pause = max(interval, MAX_PAUSE)
        """Longest time to the next request, in seconds."""
        self._max_wait = max_wait
        """Longest time that a caller waits, in seconds."""
        self._waits_for_place = waits_for_place
        """Whether a caller waits while both places are taken; otherwise it is refused, unless it is
        hot."""
        self._is_reserved = False
        """Whether a caller is within `reserve`."""

    @asynccontextmanager
    async def turn(self, *, takes: float) -> AsyncIterator[RequestTurn]:
        """As in RequestThrottle. Raises LedgerUnavailable too."""
        holder = str(uuid4())
        # Within a reservation the interval is always waited for: otherwise no second request could
        # be sent.
        max_wait = max(self._max_wait, self._interval + 1) if self._is_reserved else self._max_wait
        deadline = time.monotonic() + max_wait
        async with self._hold_connection(holder, takes, deadline):
            await self._wait_for_interval(holder, deadline)

            async def pause(seconds: float) -> None:
                # Always succeeds: the lease is this holder's, or has run out, and nobody else can
                # take it while this one holds the connection.
                await self._ledger.leases.acquire_lease(
                    self._pause_lease,
                    holder,
                    max(seconds, self._interval),
                    longest=self._max_pause,
                )

            yield RequestTurn(pause)

    @asynccontextmanager
    async def reserve(self, *, takes: float) -> AsyncIterator[None]:
        """As in RequestThrottle. Raises LedgerUnavailable too."""
        async with self._hold_connection(str(uuid4()), takes, time.monotonic() + self._max_wait):
            self._is_reserved = True
            try:
                yield
            finally:
                self._is_reserved = False

    @asynccontextmanager
    async def _hold_connection(
        self, holder: str, takes: float, deadline: float
    ) -> AsyncIterator[None]:
        """Hold a place and the connection, unless the caller has reserved them. Raises SourceBusy
        at once if the server's pause ends after `deadline`."""
        if remaining := await self._remaining_pause():  # none: go on, however slow the ledger is
            self._refuse_if_due_after(deadline, remaining)
        if self._is_reserved:
            yield
            return
        max_held = self._max_wait + takes + _MARGIN
        place_deadline = deadline if self._waits_for_place or self._is_hot else 0.0
        async with (
            self._hold_lease(self._take_place, holder, max_held, place_deadline),
            self._hold_lease(self._take_connection, holder, max_held, deadline),
        ):
            yield

    @asynccontextmanager
    async def _hold_lease(
        self,
        take: Callable[[str], Awaitable[str | None]],
        holder: str,
        max_hold: float,
        deadline: float,
    ) -> AsyncIterator[None]:
        """Call `take` until it returns the name of the lease that it has taken, or until the
        deadline. Then hold this lease, for `max_hold` seconds at most."""
        while not (name := await take(holder)):
            if time.monotonic() >= deadline:
                await self._keep_places_for_hot(HOT_RETURN_TTL)
                raise SourceBusy(f"others are waiting to ask {self._label}", wait=self._interval)
            await asyncio.sleep(_POLL_INTERVAL)
        async with self._ledger.leases.keeping_lease(name, holder, longest_hold=max_hold):
            yield

    async def _take_place(self, holder: str) -> str | None:
        leases = self._ledger.leases
        if not self._is_hot and await leases.lease_remaining(
            self._hot_lease, longest=HOT_RETURN_TTL
        ):
            return None
        for name in self._places:
            if await leases.acquire_lease(name, holder):
                return name
        await self._keep_places_for_hot(HOT_WAIT_TTL)
        return None

    async def _keep_places_for_hot(self, seconds: float) -> None:
        """Keep the next places for hot jobs, if this is one."""
        if self._is_hot:
            # One lease for all hot jobs: whoever waits renews it.
            await self._ledger.leases.acquire_lease(
                self._hot_lease, HOT.name, seconds, longest=HOT_RETURN_TTL
            )

    async def _take_connection(self, holder: str) -> str | None:
        name = self._connection_lease
        return name if await self._ledger.leases.acquire_lease(name, holder) else None

    async def _wait_for_interval(self, holder: str, deadline: float) -> None:
        leases = self._ledger.leases
        while not await leases.acquire_lease(
            self._pause_lease, holder, self._interval, longest=self._max_pause
        ):
            remaining = await self._remaining_pause()
            self._refuse_if_due_after(deadline, remaining)
            await asyncio.sleep(remaining + 0.005)

    async def _remaining_pause(self) -> float:
        """Return the seconds until the next request is due."""
        return await self._ledger.leases.lease_remaining(self._pause_lease, longest=self._max_pause)

    def _refuse_if_due_after(self, deadline: float, remaining: float) -> None:
        """Raise SourceBusy if the next request, due in `remaining` seconds, is due after
        `deadline`."""
        if time.monotonic() + remaining > deadline:
            raise SourceBusy(
                f"the next request to {self._label} is due in {remaining:.0f} s for the whole "
                "fleet",
                wait=remaining,
            )


class LocalThrottle:
    """Paces the requests of one client, where there is no ledger to pace those of all."""

    def __init__(self, *, label: str, interval: float, max_wait: float) -> None:
        self._label = label
        self._interval = interval
        self._max_wait = max_wait
        self._connection = asyncio.Lock()
        self._next = 0.0

    @asynccontextmanager
    async def turn(self, *, takes: float) -> AsyncIterator[RequestTurn]:
        """As in RequestThrottle."""
        async with self._connection:
            remaining = max(0.0, self._next - time.monotonic())
            if remaining > self._max_wait:
                message = f"the next request to {self._label} is due in {remaining:.0f} s"
                raise SourceBusy(message, wait=remaining)
            await asyncio.sleep(remaining)
            self._next = time.monotonic() + self._interval

            async def pause(seconds: float) -> None:
                self._next = time.monotonic() + max(seconds, self._interval)

            yield RequestTurn(pause)

    @asynccontextmanager
    async def reserve(self, *, takes: float) -> AsyncIterator[None]:
        """As in RequestThrottle: with a single client, no other request can come in between."""
        yield

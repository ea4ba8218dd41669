"""Token buckets: limit the requests of each client, and the calls of a costly function."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MAX_BUCKETS = 10_000
"""Clients remembered at once; the one that was seen longest ago is forgotten first. A bucket
that was forgotten starts full again, perhaps before it would have been full."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Decision on one request."""

    allowed: bool
    limit: int
    """Requests that a client may make at once."""
    remaining: int
    reset_after: float
    """Seconds until the bucket is full again."""
    retry_after: float
    """Seconds until the next request is allowed; 0 when this one was."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class RateLimiter:
    """A bucket of `burst` tokens for each client, filled at `rate` tokens a second."""

    def __init__(
        self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError("rate must be positive, and burst at least 1")
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, client: str) -> Allowance:
        """Take a token out of the client's bucket, if there is one."""
        now = self._clock()
        bucket = self._buckets.get(client)
        if bucket is None:
            bucket = self._buckets[client] = _Bucket(self._burst, now)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(client)
            gained = max(0.0, now - bucket.at) * self._rate
            bucket.tokens = min(self._burst, bucket.tokens + gained)
            bucket.at = now
        allowed = bucket.tokens >= 1
        if allowed:
            bucket.tokens -= 1
        return Allowance(
            allowed=allowed,
            limit=self._burst,
            remaining=math.floor(bucket.tokens),
            reset_after=(self._burst - bucket.tokens) / self._rate,
            retry_after=0.0 if allowed else (1 - bucket.tokens) / self._rate,
        )


class Rationed(Generic[T]):
    """Calls `find` at most `rate` times a second and `burst` times at once. Further callers get the
    last result, and concurrent callers share one call."""

    def __init__(
        self,
        find: Callable[[], Coroutine[Any, Any, T]],
        rate: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find
        self._limiter = RateLimiter(rate, burst, clock=clock)
        self._found: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return a result of `find`, new or the last one. Raises what `find` raises."""
        found = self._found
        if (found is None or found.done()) and (self._limiter.take("").allowed or found is None):
            found = self._found = asyncio.create_task(self._find())
        return await asyncio.shield(found)  # others wait for it, too

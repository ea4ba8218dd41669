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
"""Clients remembered at once; the one that was seen longest ago is forgotten first. Its bucket is
full again at its next request, perhaps too early."""


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
    filled_at: float
    """When the tokens were counted, by the limiter's clock."""


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
            gained = max(0.0, now - bucket.filled_at) * self._rate
            bucket.tokens = min(self._burst, bucket.tokens + gained)
            bucket.filled_at = now
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


class RateLimitedCall(Generic[T]):
    """Calls `function` at most `rate` times a second and `burst` times at once. Further callers get
    the last result, and concurrent callers share one call."""

    def __init__(
        self,
        function: Callable[[], Coroutine[Any, Any, T]],
        rate: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._function = function
        self._limiter = RateLimiter(rate, burst, clock=clock)
        self._last_call: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return a new result of `function`, or the last one. Raises what `function` raises."""
        call = self._last_call
        if (call is None or call.done()) and (self._limiter.take("").allowed or call is None):
            call = self._last_call = asyncio.create_task(self._function())
        return await asyncio.shield(call)  # others wait for it, too

"""The HTTP API in a fault run: asked as a careful program does, and watched as an operator does."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import httpx

from tests.support.fault_run.chronicle import Chronicle

MAX_WAIT = 20.0
"""Seconds that an answer is waited for."""
PAUSE = 0.3
"""Seconds before something is asked again."""
TRY_AGAIN = frozenset({429, 503})


class Api:
    """All processes of the API; each request goes to any of them."""

    def __init__(self, urls: Sequence[str], dice: Random, told: Chronicle) -> None:
        self._urls = urls
        self._dice = dice
        self._told = told
        self._client = httpx.AsyncClient(timeout=MAX_WAIT, trust_env=False, verify=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def once(
        self, method: str, path: str, *, also: Sequence[int] = (), **request: Any
    ) -> httpx.Response | None:
        """Send a request once. Return its answer; None where there was none, or one that says to
        come again.

        Any but a good one, those, and the statuses of `also` is wrong, whatever is broken.
        """
        url = self._dice.choice(self._urls)
        try:
            answer = await self._client.request(method, f"{url}{path}", **request)
        except httpx.TransportError:
            self._told.answers["none"] += 1
            return None
        self._told.answers[str(answer.status_code)] += 1
        if answer.is_success or answer.status_code in also:
            return answer
        is_problem = answer.headers.get("content-type") == "application/problem+json"
        if answer.status_code not in TRY_AGAIN or not is_problem:
            what = f"{method} {path} was answered {answer.status_code}: {answer.text[:300]}"
            self._told.blame(what)
        return None

    async def insist(
        self, method: str, path: str, make: Callable[[], dict[str, Any]] = dict, **options: Any
    ) -> httpx.Response:
        """Ask until there is an answer; `make` gives what is sent, anew for each try."""
        while True:
            answer = await self.once(method, path, **options, **make())
            if answer is not None:
                return answer
            await asyncio.sleep(PAUSE)

"""A client of the HTTP API in a fault run, which retries requests and reports wrong answers."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import httpx

from tests.support.fault_run.chronicle import Chronicle

MAX_WAIT = 20.0
"""Seconds to wait for an answer."""
PAUSE = 0.3
"""Seconds before a request is sent again."""
RETRY_STATUSES = frozenset({429, 503})


class Api:
    """Client of all API processes; each request goes to one of them at random."""

    def __init__(self, urls: Sequence[str], dice: Random, chronicle: Chronicle) -> None:
        self._urls = urls
        self._dice = dice
        self._chronicle = chronicle
        self._client = httpx.AsyncClient(timeout=MAX_WAIT, trust_env=False, verify=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def request_once(
        self, method: str, path: str, *, allowed: Sequence[int] = (), **request: Any
    ) -> httpx.Response | None:
        """Send a request once. Return its answer; None if there was none, or one that asks for a
        retry.

        An answer that is none of these, not successful and not in `allowed` is an error, whatever
        is broken.
        """
        url = self._dice.choice(self._urls)
        try:
            answer = await self._client.request(method, f"{url}{path}", **request)
        except httpx.TransportError:
            self._chronicle.answers["none"] += 1
            return None
        self._chronicle.answers[str(answer.status_code)] += 1
        if answer.is_success or answer.status_code in allowed:
            return answer
        is_problem = answer.headers.get("content-type") == "application/problem+json"
        if answer.status_code not in RETRY_STATUSES or not is_problem:
            what = f"{method} {path} was answered {answer.status_code}: {answer.text[:300]}"
            self._chronicle.blame(what)
        return None

    async def request_until_answered(
        self,
        method: str,
        path: str,
        make_options: Callable[[], dict[str, Any]] = dict,
        **options: Any,
    ) -> httpx.Response:
        """Send a request until it is answered; `make_options` makes its content for each try."""
        while True:
            answer = await self.request_once(method, path, **options, **make_options())
            if answer is not None:
                return answer
            await asyncio.sleep(PAUSE)

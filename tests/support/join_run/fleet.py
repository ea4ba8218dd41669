"""Workers and schedulers that are killed at random while jobs run."""

import asyncio
from random import Random
from typing import Self

from switchyard.broker.closeable import AsyncCloseable
from tests.support.worker_process import Process, Processes

SCHEDULER = {"turn": 0.1, "lease": 1.0, "pending": 2.0, "silent": 3.0}
ROLES = ("worker", "worker", "worker", "scheduler", "scheduler")


class Fleet(AsyncCloseable):
    """Processes that are started again when killed; one of each role is always left running."""

    def __init__(self, processes: Processes, random: Random) -> None:
        self._processes = processes
        self._random = random
        self._alive: dict[str, list[Process]] = {role: [] for role in ROLES}
        self._starting: set[asyncio.Task[None]] = set()
        self.killed: dict[str, int] = dict.fromkeys(ROLES, 0)

    async def __aenter__(self) -> Self:
        for role in ROLES:  # one after the other: a busy machine starts five at once slowly
            await self._start(role)
        return self

    async def close(self) -> None:
        await asyncio.gather(*self._starting, return_exceptions=True)

    async def _start(self, role: str) -> None:
        options = SCHEDULER if role == "scheduler" else {"slots": 16}
        self._alive[role].append(await self._processes.start(role, **options))

    async def kill(self, role: str) -> None:
        """Kill a process of the role if another one of it runs, so that the work goes on."""
        alive = self._alive[role]
        if len(alive) < 2:
            return
        victim = alive.pop(self._random.randrange(len(alive)))
        victim.kill()
        await victim.ended()
        self.killed[role] += 1
        task = asyncio.create_task(self._start(role))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def keep_killing(self, interval: float) -> None:
        """Kill a process every `interval` seconds until cancelled, but wait until all run again: on
        a busy machine they would otherwise be killed faster than the work goes on."""
        while True:
            role = self._random.choice(ROLES)
            await asyncio.gather(self.kill(role), asyncio.sleep(interval))
            await asyncio.gather(*self._starting)

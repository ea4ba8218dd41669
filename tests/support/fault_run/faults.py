"""What is broken in a fault run: every few seconds something else, as the dice say."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from random import Random

from switchyard.cli.system.rabbitmq_node import LocalNode
from tests.support.fault_run.chronicle import Chronicle
from tests.support.fault_run.keeper import Keeper, Kept
from tests.support.postgres import PostgresServer
from tests.support.tcp_proxy import DIRECTIONS, TcpProxy

Fault = Callable[[], Awaitable[None]]
REST = (1.0, 4.0)
"""Seconds between two faults."""
AT_ONCE = 0.25
"""How likely it is that two things break at the same time."""


class Faults:
    """Breaks things until it is told to stop, and leaves all whole then."""

    def __init__(
        self,
        dice: Random,
        keeper: Keeper,
        told: Chronicle,
        *,
        node: LocalNode,
        broker_proxy: TcpProxy,
        fill_lane: Fault,
        sqlite: str | None = None,
        postgres: PostgresServer | None = None,
        postgres_proxy: TcpProxy | None = None,
    ) -> None:
        """Prepare the faults. `sqlite` is the ledger's file, where it is one; `fill_lane` publishes
        to `vlm_ocr` more than it holds."""
        self._dice = dice
        self._keeper = keeper
        self._told = told
        self._node = node
        self._broker_proxy = broker_proxy
        self._fill_lane = fill_lane
        self._sqlite = sqlite
        self._postgres = postgres
        self._postgres_proxy = postgres_proxy
        self._stopping = asyncio.Event()
        self._node_is_free = asyncio.Lock()
        self._ledger_is_free = asyncio.Lock()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        weighted = self._all()
        faults, weights = list(weighted), list(weighted.values())
        while not self._stopping.is_set():
            count = 2 if self._dice.random() < AT_ONCE else 1
            now = self._dice.choices(faults, weights, k=count)
            await asyncio.gather(*(self._break(fault) for fault in now))
            try:
                await asyncio.wait_for(self._stopping.wait(), self._dice.uniform(*REST))
            except TimeoutError:
                continue

    def _all(self) -> dict[Fault, int]:
        """Return each fault with its weight."""
        common: dict[Fault, int] = {
            self.kill: 6,
            self.pause: 5,
            self.terminate: 4,
            self.cut_broker: 4,
            self.hang_broker: 2,
            self.restart_broker: 1,
            self.kill_broker: 1,
            self.alarm: 1,
            self.full_lane: 2,
        }
        if self._postgres is None:
            return common | {self.lock_sqlite: 4}
        return common | {
            self.cut_postgres: 3,
            self.restart_postgres: 2,
            self.freeze_postgres: 2,
        }

    async def _break(self, fault: Fault) -> None:
        name = getattr(fault, "__name__", str(fault))
        self._told.faults[name] += 1
        self._told.note(f"fault {name} begins")
        await fault()
        self._told.note(f"fault {name} is over")

    # --- processes --------------------------------------------------------------------------

    async def kill(self) -> None:
        await self._victim().kill()

    async def pause(self) -> None:
        await self._victim().pause(self._dice.uniform(0.5, 6))

    async def terminate(self) -> None:
        await self._victim().terminate()

    def _victim(self) -> Kept:
        victim = self._dice.choice(self._keeper.kept)
        self._told.note(f"fault hits {victim.name}")
        return victim

    # --- the broker -------------------------------------------------------------------------

    async def cut_broker(self) -> None:
        self._broker_proxy.cut()

    async def hang_broker(self) -> None:
        """Delay bytes to or from the broker, or both."""
        self._broker_proxy.pause(*self._dice.choice([DIRECTIONS[:1], DIRECTIONS[1:], DIRECTIONS]))
        await asyncio.sleep(self._dice.uniform(0.5, 4))
        self._broker_proxy.resume()

    async def restart_broker(self) -> None:
        async with self._node_is_free:
            await asyncio.to_thread(self._node.stop)
            await asyncio.sleep(self._dice.uniform(0, 3))
            await asyncio.to_thread(self._node.start)

    async def kill_broker(self) -> None:
        async with self._node_is_free:
            await asyncio.to_thread(self._node.kill)
            await asyncio.to_thread(self._node.start)

    async def alarm(self) -> None:
        """Raise a memory alarm of the broker, so that it takes nothing in."""
        async with self._node_is_free:
            await self._watermark("1MB")
            await asyncio.sleep(self._dice.uniform(1, 4))
            await self._watermark("2GB")

    async def _watermark(self, size: str) -> None:
        arguments = ("set_vm_memory_high_watermark", "absolute", size)
        await asyncio.to_thread(self._node.rabbitmqctl, *arguments)

    async def full_lane(self) -> None:
        """Stop the workers of a lane, and publish more than it holds."""
        paused = asyncio.gather(*(each.pause(4) for each in self._keeper.of("ocr")))
        await self._fill_lane()
        await paused

    # --- the ledger -------------------------------------------------------------------------

    async def lock_sqlite(self) -> None:
        """Lock the ledger as a program does that writes for long."""
        assert self._sqlite is not None
        async with self._ledger_is_free:
            connected = sqlite3.connect(self._sqlite, timeout=60, check_same_thread=False)
            with closing(connected) as other:
                await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
                await asyncio.sleep(self._dice.uniform(0.5, 6))
                other.rollback()

    async def cut_postgres(self) -> None:
        assert self._postgres_proxy is not None
        self._postgres_proxy.cut()

    async def restart_postgres(self) -> None:
        assert self._postgres is not None
        async with self._ledger_is_free:
            await asyncio.to_thread(self._postgres.stop)
            await asyncio.sleep(self._dice.uniform(0, 4))
            await asyncio.to_thread(self._postgres.start)

    async def freeze_postgres(self) -> None:
        assert self._postgres is not None
        async with self._ledger_is_free:
            self._postgres.pause()
            await asyncio.sleep(self._dice.uniform(0.5, 5))
            self._postgres.resume()

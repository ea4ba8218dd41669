"""Faults of a fault run: every few seconds another one, chosen at random."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from random import Random

from switchyard.cli.system.rabbitmq_node import LocalNode
from tests.support.fault_run.chronicle import Chronicle
from tests.support.fault_run.keeper import Keeper, KeptProcess
from tests.support.postgres import PostgresServer
from tests.support.tcp_proxy import DIRECTIONS, TcpProxy

Fault = Callable[[], Awaitable[None]]
PAUSE_RANGE = (1.0, 4.0)
"""Shortest and longest pause between two faults, in seconds."""
TWO_FAULTS_PROBABILITY = 0.25
"""Probability that two faults happen at the same time."""


class Faults:
    """Causes faults until it is told to stop; then everything works again."""

    def __init__(
        self,
        dice: Random,
        keeper: Keeper,
        chronicle: Chronicle,
        *,
        node: LocalNode,
        broker_proxy: TcpProxy,
        fill_lane: Fault,
        sqlite: str | None = None,
        postgres: PostgresServer | None = None,
        postgres_proxy: TcpProxy | None = None,
    ) -> None:
        """Prepare the faults. `sqlite` is the ledger's file, if it is SQLite; `fill_lane` publishes
        more to `vlm_ocr` than it holds."""
        self._dice = dice
        self._keeper = keeper
        self._chronicle = chronicle
        self._node = node
        self._broker_proxy = broker_proxy
        self._fill_lane = fill_lane
        self._sqlite = sqlite
        self._postgres = postgres
        self._postgres_proxy = postgres_proxy
        self._stopping = asyncio.Event()
        self._node_lock = asyncio.Lock()
        self._ledger_lock = asyncio.Lock()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        weights_by_fault = self._weigh_faults()
        faults, weights = list(weights_by_fault), list(weights_by_fault.values())
        while not self._stopping.is_set():
            count = 2 if self._dice.random() < TWO_FAULTS_PROBABILITY else 1
            chosen = self._dice.choices(faults, weights, k=count)
            await asyncio.gather(*(self._cause(fault) for fault in chosen))
            try:
                await asyncio.wait_for(self._stopping.wait(), self._dice.uniform(*PAUSE_RANGE))
            except TimeoutError:
                continue

    def _weigh_faults(self) -> dict[Fault, int]:
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

    async def _cause(self, fault: Fault) -> None:
        name = getattr(fault, "__name__", str(fault))
        self._chronicle.faults[name] += 1
        self._chronicle.note(f"fault {name} begins")
        await fault()
        self._chronicle.note(f"fault {name} is over")

    # --- processes --------------------------------------------------------------------------

    async def kill(self) -> None:
        await self._choose_victim().kill()

    async def pause(self) -> None:
        await self._choose_victim().pause(self._dice.uniform(0.5, 6))

    async def terminate(self) -> None:
        await self._choose_victim().terminate()

    def _choose_victim(self) -> KeptProcess:
        victim = self._dice.choice(self._keeper.processes)
        self._chronicle.note(f"fault hits {victim.name}")
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
        async with self._node_lock:
            await asyncio.to_thread(self._node.stop)
            await asyncio.sleep(self._dice.uniform(0, 3))
            await asyncio.to_thread(self._node.start)

    async def kill_broker(self) -> None:
        async with self._node_lock:
            await asyncio.to_thread(self._node.kill)
            await asyncio.to_thread(self._node.start)

    async def alarm(self) -> None:
        """Raise a memory alarm of the broker, so that it takes nothing in."""
        async with self._node_lock:
            await self._set_watermark("1MB")
            await asyncio.sleep(self._dice.uniform(1, 4))
            await self._set_watermark("2GB")

    async def _set_watermark(self, size: str) -> None:
        arguments = ("set_vm_memory_high_watermark", "absolute", size)
        await asyncio.to_thread(self._node.rabbitmqctl, *arguments)

    async def full_lane(self) -> None:
        """Stop the workers of a lane, and publish more than it holds."""
        paused = asyncio.gather(*(process.pause(4) for process in self._keeper.named("ocr")))
        await self._fill_lane()
        await paused

    # --- the ledger -------------------------------------------------------------------------

    async def lock_sqlite(self) -> None:
        """Lock the ledger for seconds, as a program with a long write transaction does."""
        assert self._sqlite is not None
        async with self._ledger_lock:
            opened = sqlite3.connect(self._sqlite, timeout=60, check_same_thread=False)
            with closing(opened) as connection:
                await asyncio.to_thread(connection.execute, "BEGIN IMMEDIATE")
                await asyncio.sleep(self._dice.uniform(0.5, 6))
                connection.rollback()

    async def cut_postgres(self) -> None:
        assert self._postgres_proxy is not None
        self._postgres_proxy.cut()

    async def restart_postgres(self) -> None:
        assert self._postgres is not None
        async with self._ledger_lock:
            await asyncio.to_thread(self._postgres.stop)
            await asyncio.sleep(self._dice.uniform(0, 4))
            await asyncio.to_thread(self._postgres.start)

    async def freeze_postgres(self) -> None:
        assert self._postgres is not None
        async with self._ledger_lock:
            self._postgres.pause()
            await asyncio.sleep(self._dice.uniform(0.5, 5))
            self._postgres.resume()

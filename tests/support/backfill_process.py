"""Run a backfill in processes that are killed at random, one after the other.

    python -m tests.support.backfill_process BACKFILL KILLS SEED

Prints the number of processes that were killed while they ran the backfill. They are forked from
one process that has imported everything, so fifty of them take seconds.
"""

import asyncio
import os
import random
import signal
import sys
import time
from typing import Any
from unittest.mock import patch

from switchyard.services.common import logs
from switchyard.services.common.settings import Settings
from switchyard.services.engine.backfill.handler import BackfillHandler
from switchyard.services.engine.backfill.sources import Sources
from switchyard.services.engine.bulk import session as bulk_session
from switchyard.services.engine.bulk.control import BulkConflict
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.bulk.session import BulkSession
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import BulkState
from tests.support.system import lanes_with

LEASE = 0.3
MAX_LIFETIME = 0.4
"""Seconds that a process lives at most after its last message through the pipe."""
KILLED_EARLY, KILLED_AFTER_BEGIN = 0.2, 0.6
"""Of all processes, the share EARLY is killed at about the time when it gets the backfill; those
from there to BEGUN, soon after they have it. All others are killed after their first checkpoint: on
a busy machine connecting takes longer than any of them would live."""


class ReportingHandler(BackfillHandler):
    """Writes to a pipe when it begins, and after each recorded checkpoint."""

    def __init__(self, pipe: int, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._pipe = pipe

    async def run(self, session: BulkSession) -> None:
        os.write(self._pipe, b"!")
        save = session.save_progress

        async def save_and_report(**values: Any) -> None:
            await save(**values)
            if values.get("cursor") is not None:
                os.write(self._pipe, b"!")

        with patch.object(session, "save_progress", save_and_report):
            await super().run(session)


async def continue_backfill(backfill: str, pipe: int) -> BulkState:
    """Continue the backfill as soon as the lease of the process before has expired."""
    settings = Settings()
    async with await Ledger.open(settings.ledger_url) as ledger:
        registry = Registry.load(settings.modules)
        lanes = lanes_with(max_length={"backfill": 100_000})
        sources = Sources.load()
        handler = ReportingHandler(pipe, settings, registry, ledger, sources, lanes=lanes)
        while True:
            try:
                return (await BulkRunner(ledger, [handler], lease=LEASE).run_one(backfill)).state
            except BulkConflict:
                await asyncio.sleep(0.02)


def main(backfill: str, kills: int, seed: int) -> None:
    bulk_session.LEASE_RENEW_INTERVAL = 0.05
    rng = random.Random(seed)
    killed = 0
    while killed < kills:
        reports, pipe = os.pipe()
        child = os.fork()
        if child == 0:
            logs.configure("error")  # to stderr: stdout is for the count
            os._exit(
                0 if asyncio.run(continue_backfill(backfill, pipe)) is BulkState.COMPLETED else 1
            )
        os.close(pipe)
        chance = rng.random()
        if chance < KILLED_EARLY:
            time.sleep(rng.random() * LEASE)
        else:
            for _ in range(1 if chance < KILLED_AFTER_BEGIN else 2):
                os.read(reports, 1)
            time.sleep(rng.random() * MAX_LIFETIME)
        os.kill(child, signal.SIGKILL)
        os.close(reports)  # only now, because the child may be writing to it
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            break
        killed += 1
    print(f"\n{killed}", flush=True)  # a process may have been killed within a line


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

"""A redrive that is killed half-way: every letter is still there, or its job runs, once."""

import random
import signal
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard.cli.system.free_ports import LOOPBACK
from switchyard.services.engine.bulk.control import require_bulk
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import ACTIVE
from switchyard.services.engine.records.states import State
from switchyard.services.engine.redrive.handler import RedriveHandler
from switchyard.services.engine.redrive.spec import RedriveSpec, start_redrive
from tests.support.brokers import TestBroker
from tests.support.chaos import (
    BOTH_QUEUE_TYPES,
    assert_all_accounted_for,
    open_chaos,
    publish_all,
    requests_of,
)
from tests.support.redrives import EVERYTHING
from tests.support.tcp_proxy import TcpProxy
from tests.support.worker_process import Process, Processes

pytestmark = pytest.mark.chaos

LETTERS = 300
ROUNDS = 5
BYTES_PER_LETTER = 300
"""What a redrive sends for each, at least."""


@BOTH_QUEUE_TYPES
async def test_redrive_killed_at_any_point_loses_no_letter(
    broker: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    dice = random.Random(broker.version + broker.profile)
    async with (
        open_chaos(broker, sqlite_url, tmp_path) as system,
        TcpProxy(LOOPBACK, broker.node.amqp_port) as proxy,
        Processes(system.settings, tmp_path) as processes,
    ):
        await system.start_worker(slots=8)
        accepted = await publish_all(system, requests_of(LETTERS, max_attempts=1, fail_redrives=1))
        await system.wait_until_all(accepted, State.DEAD)

        through_proxy = {"amqp_url": SecretStr(proxy.url(broker.amqp_url))}
        spec = RedriveSpec(EVERYTHING, remote=False)
        redrive = await start_redrive(system.ledger, spec, created_by="test")
        killed = 0
        for _ in range(ROUNDS):
            if not await is_free(system.ledger, redrive.id):
                break
            left = len(await system.letters())
            proxy.pause()
            process = await processes.start(
                "redrives", settings=through_proxy, operation_id=redrive.id
            )
            point = dice.randint(500, 500 + left * BYTES_PER_LETTER)
            proxy.cut_when(partial(killed_at, process, point), forward=dice.random() < 0.5)
            proxy.resume()
            killed += await process.ended() == -signal.SIGKILL
        assert killed >= 2

        if await is_free(system.ledger, redrive.id):
            handler = RedriveHandler(system.settings, system.registry, system.ledger)
            await BulkRunner(system.ledger, [handler]).run_one(redrive.id)
        await assert_all_accounted_for(system, accepted)


async def is_free(ledger: Ledger, operation_id: str) -> bool:
    """Whether there is more to do; then the hold of the process that died is over at once."""
    operation = await require_bulk(ledger, operation_id)
    if operation.holder is not None:
        await ledger.bulk.release_bulk(operation_id, operation.holder)
    return operation.state in ACTIVE


def killed_at(process: Process, point: int, seen: bytes) -> bool:
    """Kill the process once it has sent so many bytes."""
    if len(seen) < point:
        return False
    process.kill()
    return True

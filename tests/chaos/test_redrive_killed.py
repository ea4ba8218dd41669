"""A redrive that is killed half-way: each letter is still there, or its job runs once."""

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
"""Bytes that a redrive sends for each letter, at least."""


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
        kills = 0
        for _ in range(ROUNDS):
            if not await release_unless_ended(system.ledger, redrive.id):
                break
            letters_left = len(await system.letters())
            proxy.pause()
            process = await processes.start(
                "redrives", settings=through_proxy, operation_id=redrive.id
            )
            kill_byte = dice.randint(500, 500 + letters_left * BYTES_PER_LETTER)
            proxy.cut_when(partial(kill_at_byte, process, kill_byte), forward=dice.random() < 0.5)
            proxy.resume()
            kills += await process.ended() == -signal.SIGKILL
        assert kills >= 2

        if await release_unless_ended(system.ledger, redrive.id):
            handler = RedriveHandler(system.settings, system.registry, system.ledger)
            await BulkRunner(system.ledger, [handler]).run_one(redrive.id)
        await assert_all_accounted_for(system, accepted)


async def release_unless_ended(ledger: Ledger, operation_id: str) -> bool:
    """Return whether the operation has not ended; release the dead process's hold on it at once."""
    operation = await require_bulk(ledger, operation_id)
    if operation.holder is not None:
        await ledger.bulk.release_bulk(operation_id, operation.holder)
    return operation.state in ACTIVE


def kill_at_byte(process: Process, kill_byte: int, sent: bytes) -> bool:
    """Kill the process once it has sent that many bytes; return whether it did."""
    if len(sent) < kill_byte:
        return False
    process.kill()
    return True

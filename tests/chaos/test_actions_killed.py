"""A bulk action that is killed half-way and resumed acts on every job once."""

import random
import signal
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard.cli.system.free_ports import LOOPBACK
from switchyard.services.engine.actions.handler import action_handlers
from switchyard.services.engine.actions.spec import (
    ActionProgress,
    ActionSpec,
    rerun_id_of,
    start_action,
)
from switchyard.services.engine.bulk.control import require_bulk
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.records.job_actions import JobAction
from switchyard.services.engine.records.requests import JobFilter
from switchyard.services.engine.records.states import State
from tests.chaos.test_redrive_killed import kill_at_byte, release_unless_ended
from tests.support.brokers import TestBroker
from tests.support.chaos import (
    assert_all_accounted_for,
    open_chaos,
    outbox,
    publish_all,
    requests_of,
)
from tests.support.tcp_proxy import TcpProxy
from tests.support.worker_process import Processes

pytestmark = pytest.mark.chaos

JOBS = 300
ROUNDS = 4
BYTES_PER_JOB = 300
"""Bytes that an action sends for each job, at least."""
JOB_FILTER = JobFilter(job_type="effect")


@pytest.mark.parametrize(
    "spec",
    [ActionSpec(JobAction.RERUN, JOB_FILTER), ActionSpec(JobAction.MOVE, JOB_FILTER, priority=9)],
    ids=lambda spec: str(spec.action),
)
async def test_an_action_killed_at_any_point_acts_on_every_job_and_on_none_twice(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, spec: ActionSpec
) -> None:
    dice = random.Random(spec.action)
    async with (
        open_chaos(broker310, sqlite_url, tmp_path) as system,
        TcpProxy(LOOPBACK, broker310.node.amqp_port) as proxy,
        Processes(system.settings, tmp_path) as processes,
    ):
        accepted = await publish_all(system, requests_of(JOBS))
        if spec.action is JobAction.RERUN:
            await system.start_worker(slots=8)
            await system.wait_until_all(accepted, State.SUCCEEDED)
        through_proxy = {"amqp_url": SecretStr(proxy.url(broker310.amqp_url))}
        started = await start_action(system.ledger, spec, created_by="test")
        kills = 0
        for _ in range(ROUNDS):
            if not await release_unless_ended(system.ledger, started.id):
                break
            jobs_left = JOBS - await system.ledger.job_actions.count(started.id)
            proxy.pause()
            process = await processes.start(
                "actions", settings=through_proxy, operation_id=started.id
            )
            kill_byte = dice.randint(500, 500 + jobs_left * BYTES_PER_JOB)
            proxy.cut_when(partial(kill_at_byte, process, kill_byte), forward=dice.random() < 0.5)
            proxy.resume()
            kills += await process.ended() == -signal.SIGKILL
        assert kills >= 2

        if await release_unless_ended(system.ledger, started.id):
            handlers = action_handlers(system.settings, system.registry, system.ledger)
            await BulkRunner(system.ledger, handlers).run_one(started.id)
        progress = ActionProgress.from_operation(await require_bulk(system.ledger, started.id))
        assert (progress.total, progress.done, progress.skipped) == (JOBS, JOBS, 0)
        assert await system.ledger.job_actions.count(started.id) == JOBS
        if spec.action is JobAction.RERUN:
            ids = await system.ledger.system.job_ids()
            accepted += [rerun_id_of(ids, started.id, job_id) for job_id in accepted]
        else:
            await system.start_worker(slots=8)
        async with outbox(system):
            await assert_all_accounted_for(system, accepted)

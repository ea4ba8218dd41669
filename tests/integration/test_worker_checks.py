"""What the doctor says of processes that have ended, and of event loops that were blocked."""

import os
import subprocess
import sys
from typing import Any

import pytest

from switchyard.broker.management.client import ManagementClient
from switchyard.services.common.instance_ids import process_mark
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.engine.monitoring.checks import workers
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.checks.workers import blocked, consuming
from switchyard.services.engine.records.results import LoopBlock
from tests.support.system import System

IDENTITY_SCRIPT = (
    "import os; from switchyard.services.common.instance_ids import process_mark; "
    "print(os.getpid(), process_mark())"
)


def make_context(system: System) -> DoctorContext:
    return DoctorContext(system.settings, system.registry, ledger=system.ledger)


async def test_a_process_that_has_just_ended_has_lost_no_consumer(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "CONSUMERS_LISTED_AFTER", -60.0)
    monkeypatch.setattr(workers, "MIN_HEARTBEAT_WAIT", 0.0)
    monkeypatch.setattr(workers, "MAX_HEARTBEAT_WAIT", 0.0)
    identity = subprocess.run(
        [sys.executable, "-c", IDENTITY_SCRIPT], check=True, capture_output=True, text=True
    ).stdout
    pid, _, mark = identity.strip().partition(" ")
    register = system.ledger.workers.register_worker
    fields: dict[str, Any] = {"kinds": ["llm"], "lanes": ["hot"], "host": "h", "concurrency": 4}
    await register("ended", pid=int(pid), mark=mark, **fields)
    await register("lives", pid=os.getpid(), mark=process_mark(), **fields)
    context = make_context(system)
    context.management = ManagementClient(
        system.settings.require_management_url(), system.settings.vhost
    )
    (diagnostic,) = await consuming(context)
    await context.management.close()
    assert diagnostic.finding is Finding.CONSUMER_LOST
    assert "lives (process" in diagnostic.detail
    assert "ended" not in diagnostic.detail


async def test_a_loop_that_was_blocked_while_no_job_ran_is_not_blamed_on_a_handler(
    system: System,
) -> None:
    now = system.ledger.clock.time()

    def make_block(block_id: str, job_type: str | None, seconds: float) -> LoopBlock:
        job_id = None if job_type is None else f"job-{block_id}"
        return LoopBlock(block_id, "worker-1", job_id, job_type, "x.py:1", now, seconds, True)

    await system.ledger.workers.record_loop_block(make_block("1", None, 9.0))
    (diagnostic,) = await blocked(make_context(system))
    assert "blocked for 9 s while no job ran there, at x.py:1" in diagnostic.detail
    assert diagnostic.remedy.startswith("nothing, if it stays rare")
    assert "@job" not in diagnostic.remedy
    await system.ledger.workers.record_loop_block(make_block("2", "slow", 2.0))
    (diagnostic,) = await blocked(make_context(system))
    assert "by slow (job job-2) at x.py:1" in diagnostic.detail
    assert "@job" in diagnostic.remedy
    assert diagnostic.remedy.endswith("`jobctl jobs show job-2`")

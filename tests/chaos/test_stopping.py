"""Workers that are stopped or frozen: no attempt is used up, and no job counts as crashed."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard.cli.system.free_ports import LOOPBACK
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.chaos import (
    BOTH_QUEUE_TYPES,
    Effects,
    assert_all_accounted_for,
    open_chaos,
    publish_all,
    requests_of,
    write,
)
from tests.support.eventually import eventually
from tests.support.tcp_proxy import TcpProxy
from tests.support.worker_process import Processes

pytestmark = pytest.mark.chaos

GRACE = 0.3
"""Seconds that running jobs have after SIGTERM."""
HEARTBEAT = "?heartbeat=1"
"""Parameter of the URL: the broker closes a connection that is silent for two heartbeats."""


@BOTH_QUEUE_TYPES
async def test_sigterm_in_the_middle_of_jobs_uses_up_no_attempt(
    broker: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_chaos(broker, sqlite_url, tmp_path, shutdown_grace=GRACE) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        effects = Effects(tmp_path)
        first_worker = await processes.start("worker", slots=6, reserve=0)
        accepted = await publish_all(system, requests_of(6, until="second"))
        await effects.reach("started", 6)

        first_worker.terminate()
        assert await first_worker.ended() == 0
        assert effects.ids("done") == []
        assert set((await system.ledger.job_reads.states(accepted)).values()) == {State.QUEUED}

        write(tmp_path, "second")
        await processes.start("worker", slots=6, reserve=0)
        await assert_all_accounted_for(system, accepted)
        for job_id in accepted:
            record = await system.record(job_id)
            assert (record.attempts, record.crashes) == (0, 0)
            assert [line.outcome for line in record.timeline] == ["released"]
        assert {effect.attempt for effect in effects.all()} == {1}


async def test_sigterm_lets_jobs_end_within_the_grace(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_chaos(broker310, sqlite_url, tmp_path, shutdown_grace=20) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        effects = Effects(tmp_path)
        worker = await processes.start("worker", slots=4, reserve=0)
        accepted = await publish_all(system, requests_of(8, until="grace"))
        await effects.reach("started", 4)

        worker.terminate()
        await system.wait_until_ready("backfill.llm", 4)
        write(tmp_path, "grace")
        assert await worker.ended() == 0
        assert sorted(effects.ids("done")) == sorted(set(effects.ids("started")))
        assert len(effects.ids("done")) == 4

        await processes.start("worker")
        await assert_all_accounted_for(system, accepted)


async def test_sigterm_while_a_retry_waits_for_its_confirm_counts_no_crash(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_chaos(broker310, sqlite_url, tmp_path, shutdown_grace=GRACE) as system,
        TcpProxy(LOOPBACK, broker310.node.amqp_port) as proxy,
        Processes(system.settings, tmp_path) as processes,
    ):
        effects = Effects(tmp_path)
        through_proxy = {"amqp_url": SecretStr(proxy.url(broker310.amqp_url))}
        worker = await processes.start("worker", settings=through_proxy)
        accepted = await publish_all(system, requests_of(3, until="stuck", fail_attempts=1))
        await effects.reach("started", 3)
        proxy.pause()
        write(tmp_path, "stuck")

        await effects.reach("failed", 3)
        worker.terminate()
        await system.wait_until_all(accepted, State.QUEUED)
        proxy.cut()
        assert await worker.ended() == 0

        await processes.start("worker")
        await assert_all_accounted_for(system, accepted)
        for job_id in accepted:
            record = await system.record(job_id)
            assert record.crashes == 0
            assert record.attempts == 1


async def test_job_of_a_frozen_worker_is_taken_over_and_its_late_end_does_not_count(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_chaos(broker310, sqlite_url, tmp_path) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        effects = Effects(tmp_path)
        short_heartbeat = {"amqp_url": SecretStr(broker310.amqp_url + HEARTBEAT)}
        frozen = await processes.start("worker", settings=short_heartbeat)
        requests = [
            *requests_of(2, until="thaw"),
            # It fails for good on the frozen worker, after it has succeeded on another one.
            *requests_of(1, until="thaw", fail_on=frozen.worker_id),
        ]
        accepted = await publish_all(system, requests)
        await effects.reach("started", 3)
        frozen.pause()
        second_worker = await processes.start("worker", settings=short_heartbeat)

        write(tmp_path, "thaw")
        await system.wait_until_all(accepted, State.SUCCEEDED, timeout=30)
        assert {effect.worker_id for effect in effects.all() if effect.what == "done"} == {
            second_worker.worker_id
        }
        frozen.resume()
        await eventually(lambda: not effects.under_way(frozen.worker_id))
        frozen.terminate()
        assert await frozen.ended() == 0
        await assert_all_accounted_for(system, accepted)

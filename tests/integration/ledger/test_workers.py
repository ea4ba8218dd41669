import asyncio
from typing import Any

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.results import WorkerRecord
from tests.support.made import claim


async def register(ledger: Ledger, worker_id: str) -> None:
    await ledger.workers.register_worker(
        worker_id, kinds=["llm"], lanes=["hot", "backfill"], host="h", pid=7, concurrency=4
    )


async def test_a_beat_counts_up(ledger: Ledger) -> None:
    await register(ledger, "worker-1")
    first = await ledger.workers.worker_beat("worker-1")
    assert await ledger.workers.beat("worker-1")
    second = await ledger.workers.worker_beat("worker-1")
    assert first is not None
    assert second == first + 1


async def test_an_unknown_or_stopped_worker_has_no_beat(ledger: Ledger) -> None:
    assert not await ledger.workers.beat("worker-1")
    assert await ledger.workers.worker_beat("worker-1") is None
    await register(ledger, "worker-1")
    assert await ledger.workers.mark_stopped("worker-1")
    assert await ledger.workers.worker_beat("worker-1") is None
    await register(ledger, "worker-1")
    assert await ledger.workers.worker_beat("worker-1") is not None


async def test_workers_are_listed(ledger: Ledger) -> None:
    await register(ledger, "worker-1")
    (worker,) = await ledger.workers.list_workers()
    assert (worker.kinds, worker.lanes, worker.pid) == (("llm",), ("hot", "backfill"), 7)
    assert worker.beat_at >= worker.started_at
    assert worker.stopped_at is None


async def test_a_beat_reports_the_memory_and_since_when_a_worker_is_stopping(
    ledger: Ledger,
) -> None:
    await register(ledger, "worker-1")

    async def beat(**report: Any) -> WorkerRecord:
        await ledger.workers.beat("worker-1", **report)
        return (await ledger.workers.list_workers())[0]

    working = await beat(memory_bytes=5 * 2**30)
    assert (working.memory_bytes, working.stopping_at) == (5 * 2**30, None)
    stopping = await beat(is_stopping=True)
    assert stopping.memory_bytes is None
    assert stopping.stopping_at is not None
    assert working.beat_at <= stopping.stopping_at
    assert (await beat(is_stopping=True)).stopping_at == stopping.stopping_at
    await register(ledger, "worker-1")
    assert (await beat()).stopping_at is None


async def test_hot_idle_is_the_time_since_a_worker_reported_a_hot_job(ledger: Ledger) -> None:
    for worker_id in ("worker-1", "worker-2"):
        await register(ledger, worker_id)
        await ledger.workers.beat(worker_id)
    assert await ledger.workers.hot_idle() is None
    await ledger.workers.beat("worker-1", hot=True)
    idle_seconds = await ledger.workers.hot_idle()
    assert idle_seconds is not None
    assert 0 <= idle_seconds < 60
    await ledger.workers.beat("worker-1")
    await ledger.workers.beat("worker-2")
    (reporting, silent) = sorted(
        await ledger.workers.list_workers(), key=lambda worker: worker.worker_id
    )
    assert reporting.hot_at is not None
    assert reporting.started_at <= reporting.hot_at <= reporting.beat_at
    assert silent.hot_at is None


async def test_jobs_of_silent_stopped_and_unknown_workers_are_stale(ledger: Ledger) -> None:
    for worker_id in ("alive", "stopped"):
        await register(ledger, worker_id)
    for worker_id in ("alive", "stopped", "unknown"):
        await ledger.jobs.claim(claim(f"of-{worker_id}", worker_id, worker_id=worker_id))
    await ledger.workers.mark_stopped("stopped")
    stale = await ledger.job_reads.stale_running(silent_for=60, limit=10)
    assert {job.id for job in stale} == {"of-stopped", "of-unknown"}
    assert {job.claim_id for job in stale} == {"stopped", "unknown"}
    # With -1, any beat is too old, however recent.
    stale = await ledger.job_reads.stale_running(silent_for=-1, limit=10)
    assert {job.id for job in stale} == {"of-alive", "of-stopped", "of-unknown"}


async def test_one_holder_at_a_time_has_the_lease(ledger: Ledger) -> None:
    answers = await asyncio.gather(
        *(ledger.leases.acquire_lease("scheduler", f"p{n}", ttl=60) for n in range(10))
    )
    (holder,) = [f"p{n}" for n, answer in enumerate(answers) if answer]
    assert await ledger.leases.acquire_lease("scheduler", holder, ttl=60)
    assert await ledger.leases.renew_lease("scheduler", holder, ttl=60)
    assert not await ledger.leases.renew_lease("scheduler", "nobody", ttl=60)
    assert not await ledger.leases.release_lease("scheduler", "nobody")
    assert await ledger.leases.acquire_lease("another", "nobody", ttl=60)
    assert await ledger.leases.release_lease("scheduler", holder)
    assert await ledger.leases.acquire_lease("scheduler", "next", ttl=60)


async def test_a_lease_that_ran_out_goes_to_the_next(ledger: Ledger) -> None:
    assert await ledger.leases.acquire_lease("scheduler", "first", ttl=-1)
    assert not await ledger.leases.renew_lease("scheduler", "first", ttl=60)
    assert await ledger.leases.acquire_lease("scheduler", "second", ttl=60)
    assert not await ledger.leases.acquire_lease("scheduler", "first", ttl=60)


async def test_a_lease_says_how_long_it_still_lasts(ledger: Ledger) -> None:
    assert await ledger.leases.lease_remaining("pause") == 0
    await ledger.leases.acquire_lease("pause", "somebody", 100)
    assert 90 < await ledger.leases.lease_remaining("pause") <= 100
    await ledger.leases.acquire_lease("pause", "somebody", -1)
    assert await ledger.leases.lease_remaining("pause") == 0

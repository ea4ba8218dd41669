from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.states import State
from tests.support.made import NOW, claim, finish, letter, new_job


async def test_open_jobs_are_counted_by_lane_and_state_and_the_oldest_found(ledger: Ledger) -> None:
    for number in range(3):
        await ledger.jobs.record(new_job(f"job-{number}", now=NOW + number))
    await ledger.jobs.record(new_job("later", lane="backfill", run_at=NOW + 900))
    await ledger.jobs.mark_queued(["job-1"], NOW + 5)
    await ledger.jobs.claim(claim("job-2"))
    gauges = await ledger.gauges.gauges()
    assert gauges.open_jobs == {
        ("hot", "pending"): 1,
        ("hot", "queued"): 1,
        ("hot", "running"): 1,
        ("backfill", "scheduled"): 1,
    }
    assert gauges.oldest == {("hot", "llm"): NOW + 5}
    assert gauges.oldest_pending == NOW


async def test_ended_jobs_are_not_counted(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job())
    await ledger.jobs.claim(claim())
    await ledger.jobs.finish(finish(State.SUCCEEDED))
    gauges = await ledger.gauges.gauges()
    assert (gauges.open_jobs, gauges.oldest, gauges.oldest_pending) == ({}, {}, None)
    assert (gauges.bulk, gauges.bulk_progress) == ({}, {})


async def test_dead_letters_are_counted_by_cause_also_without_a_lane(ledger: Ledger) -> None:
    await ledger.dead_letters.index_dead(
        [
            letter(lane="hot"),
            letter("job-2", lane="hot"),
            letter(None, "malformed", id="raw-1", lane=None),
        ]
    )
    gauges = await ledger.gauges.gauges()
    assert gauges.dead == {("hot", "exhausted"): 2, ("", "malformed"): 1}


async def test_the_load_of_a_host_is_counted_by_worker_kind(ledger: Ledger) -> None:
    for number in range(7):
        await ledger.jobs.record(new_job(f"job-{number}", now=NOW))
    await ledger.jobs.mark_queued(["job-0"], NOW + 7)
    await ledger.jobs.mark_queued(["job-1"], NOW + 5)
    for pid, host in ((7, "here"), (8, "here"), (9, "there")):
        await ledger.workers.register_worker(
            f"worker-{pid}", kinds=["llm"], lanes=["hot"], host=host, pid=pid, concurrency=4
        )
    for number, pid in ((2, 7), (4, 7), (5, 8), (6, 9)):
        await ledger.jobs.claim(claim(f"job-{number}", worker_id=f"worker-{pid}"))
    load = await ledger.gauges.load("here")  # job-3 is not on the broker: no worker could take it
    assert load.keys() == {"llm"}
    assert load["llm"].oldest == NOW + 5
    assert load["llm"].running == {7: 2, 8: 1}

from dataclasses import replace

from switchyard.broker.times import to_datetime
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.lane_history import KEPT_FOR, MINUTE
from switchyard.services.engine.records.states import State
from tests.support.made import NOW, claim, finish, letter, message, new_job

START = NOW - NOW % MINUTE
LANES = ["hot", "backfill"]


async def test_a_minute_counts_published_and_ended_jobs_and_how_long_hot_jobs_waited(
    ledger: Ledger,
) -> None:
    await ledger.lane_history.add_minute(LANES, {}, hot="hot", now=START)
    for number in range(3):
        await ledger.jobs.record(
            new_job(message(f"job-{number}", created_at=to_datetime(START + 10)))
        )
    await ledger.jobs.mark_queued(["job-0", "job-1"], NOW + 8)
    await ledger.jobs.claim(claim("job-0"))
    await ledger.jobs.finish(finish(State.SUCCEEDED, job_id="job-0", attempts=0))
    await ledger.dead_letters.index_dead([letter("job-9", lane="hot", dead_at=START + 20)])
    await ledger.lane_history.add_minute(LANES, {"hot": 2}, hot="hot", now=START + MINUTE)
    first, hot = [
        minute for minute in await ledger.lane_history.minutes(START) if minute.lane == "hot"
    ]
    assert (first.published, first.ended, first.ready) == (0, 0, None)
    assert (hot.published, hot.ended, hot.dead, hot.open_jobs, hot.ready) == (3, 1, 1, 2, 2)
    assert (hot.wait_p50, hot.wait_p99) == (2.0, 2.0)


async def test_the_delay_before_a_retry_is_no_wait_of_a_hot_job(ledger: Ledger) -> None:
    await ledger.lane_history.add_minute(LANES, {}, hot="hot", now=START)
    for name in ("retried", "dead"):
        await ledger.jobs.record(new_job(message(name, created_at=to_datetime(NOW))))
        await ledger.jobs.mark_queued([name], NOW + 9)
        await ledger.jobs.claim(claim(name, f"first of {name}"))
    for name, end in (("retried", State.RETRYING), ("dead", State.DEAD)):
        await ledger.jobs.finish(finish(end, f"first of {name}", job_id=name, attempts=1))
    retry = replace(claim("retried", "second", attempts=1), now=NOW + 25)
    await ledger.jobs.claim(retry)
    await ledger.lane_history.add_minute(LANES, {}, hot="hot", now=START + MINUTE)
    minutes = await ledger.lane_history.minutes(START + 1)
    (hot,) = [minute for minute in minutes if minute.lane == "hot"]
    assert (hot.wait_p50, hot.wait_p99) == (1.0, 1.0)  # the wait of the dead job alone


async def test_the_same_minute_is_counted_once(ledger: Ledger) -> None:
    await ledger.lane_history.add_minute(LANES, {"hot": 1}, hot="hot", now=START)
    await ledger.lane_history.add_minute(LANES, {"hot": 9}, hot="hot", now=START + 5)
    minutes = await ledger.lane_history.minutes(0)
    assert [(minute.lane, minute.ready) for minute in minutes] == [("backfill", None), ("hot", 1)]


async def test_minutes_without_a_scheduler_are_filled_in(ledger: Ledger) -> None:
    await ledger.lane_history.add_minute(LANES, {}, hot="hot", now=START)
    await ledger.jobs.record(new_job(message("early", created_at=to_datetime(START + 30))))
    await ledger.jobs.record(new_job(message("late", created_at=to_datetime(START + 130))))
    await ledger.lane_history.add_minute(LANES, {}, hot="hot", now=START + 3 * MINUTE)
    hot = [
        minute for minute in await ledger.lane_history.minutes(START + 1) if minute.lane == "hot"
    ]
    assert [minute.at - START for minute in hot] == [60, 120, 180]
    assert [minute.published for minute in hot] == [1, 0, 1]


async def test_old_minutes_are_forgotten(ledger: Ledger) -> None:
    await ledger.lane_history.add_minute(LANES, {}, hot="hot", now=START - KEPT_FOR - MINUTE)
    await ledger.lane_history.add_minute(LANES, {}, hot="hot", now=START)
    assert min(minute.at for minute in await ledger.lane_history.minutes(0)) >= START - KEPT_FOR
